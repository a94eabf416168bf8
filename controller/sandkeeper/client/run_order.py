"""What is to be run: one command, completely said, and checked before anything is sent.

Pure and light to import.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sandkeeper.boxd.events import RunLimits, TerminalSize
from sandkeeper.core.errors import InvalidArgument
from sandkeeper.core.ids import RunId

DEFAULT_TIMEOUT_S = 300.0
MAX_OUTPUT_BYTES = 1024 * 1024
LONGEST_TIMEOUT_S = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class RunOrder:
    """What is to be run.

    Attributes:
        argv: Program and arguments.
        run_id: Names the run inside the box; a repeat with the same id attaches to it.
        cwd: Folder; None = the sandbox's default.
        env: Variables beside the sandbox's.
        user: User name; None = the sandbox's default.
        stdin: Bytes to feed; None = no input.
        timeout_s: boxd kills the tree after this much of the box's time; None = never.
        keep_bytes: Output kept per stream.
        send_bytes: Output boxd sends per stream; None = all.
        stdin_open: Standard input stays open, to be written to later.
        limits: Limits beside the timeout.
        terminal: Size of the terminal it runs on; None = no terminal.
        detached: In a session of its own; it does not keep the sandbox awake.
    """

    argv: tuple[str, ...]
    run_id: RunId
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    stdin: bytes | None = None
    timeout_s: float | None = DEFAULT_TIMEOUT_S
    keep_bytes: int = MAX_OUTPUT_BYTES
    send_bytes: int | None = MAX_OUTPUT_BYTES
    stdin_open: bool = False
    limits: RunLimits | None = None
    terminal: TerminalSize | None = None
    detached: bool = False


def argv_of(command: str | Sequence[str]) -> tuple[str, ...]:
    """Return the argv of a command: a list as it is, a text as a line for `/bin/sh -c`."""
    if isinstance(command, str):
        return ("/bin/sh", "-c", command)
    words = tuple(command)
    if not words or not all(isinstance(word, str) for word in words):
        raise InvalidArgument("a command is a text or a list of texts, and not empty", code="argv_invalid")
    return words


def limits_of(*, quiet_timeout_s: float | None, cpu_limit_s: float | None) -> RunLimits | None:
    """Return the limits beside the timeout; None when there are none.

    Raises:
        InvalidArgument: `timeout_invalid`.
    """
    if quiet_timeout_s is None and cpu_limit_s is None:
        return None
    return RunLimits(
        quiet_timeout_ms=_limit_ms(quiet_timeout_s, field="quiet_timeout_s"),
        cpu_limit_ms=_limit_ms(cpu_limit_s, field="cpu_limit_s"),
    )


def _limit_ms(seconds: float | None, *, field: str) -> int | None:
    return None if seconds is None else max(1, round(checked_timeout_s(seconds, field=field) * 1000))


def checked_timeout_s(timeout_s: float, *, field: str = "timeout_s") -> float:
    """Return `timeout_s` if it is a time a command may have.

    Raises:
        InvalidArgument: `timeout_invalid`.
    """
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if not is_number or not math.isfinite(timeout_s) or not 0 < timeout_s <= LONGEST_TIMEOUT_S:
        raise InvalidArgument(
            f"{field} must be above 0 and at most {LONGEST_TIMEOUT_S:.0f}, not {timeout_s!r:.40}",
            code="timeout_invalid",
            details={"field": field},
        )
    return float(timeout_s)
