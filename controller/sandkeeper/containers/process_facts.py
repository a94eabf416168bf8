"""Facts about host processes, read from /proc.

Owns the identity of a process over time (pid and start time together). It never signals anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One process as /proc shows it.

    Attributes:
        pid: Its number, which the kernel uses again later.
        name: Its short command name (15 characters at most).
        start_ticks: When it started, in clock ticks since boot; with the pid it is unique until a restart.
        is_zombie: It has ended and waits to be reaped.
    """

    pid: int
    name: str
    start_ticks: int
    is_zombie: bool


def read_process(pid: int, *, proc: Path = Path("/proc")) -> ProcessFacts | None:
    """Return the facts of `pid`, or None where there is no such process."""
    try:
        text = (proc / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name is in parentheses and may itself hold parentheses and spaces.
    name = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessFacts(pid=pid, name=name, start_ticks=int(fields[19]), is_zombie=fields[0] == "Z")
