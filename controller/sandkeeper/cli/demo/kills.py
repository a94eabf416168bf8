"""Killing, from outside, exactly what is meant: a container's process 1 and an owner's process.

Owns the proof that a pid is what it is taken for, before the signal: the process is held by a pidfd first, checked
after, and only then signalled, so that no reused pid is ever hit.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandkeeper.core.errors import FailedPrecondition
from sandkeeper.core.ids import BirthId


@dataclass(frozen=True, slots=True)
class Killed:
    """A process that was killed."""

    pid: int
    what: str


def kill_container(pid: int, *, birth_id: BirthId) -> Killed:
    """Send SIGKILL to process 1 of the container named `birth_id`.

    Raises:
        FailedPrecondition: `pid_not_ours`: the pid is not a process of that container.
    """
    return _kill(pid, what=f"process 1 of container {birth_id}", is_ours=lambda: _is_box(pid, birth_id))


def kill_owner(pid: int, *, lock_file: Path) -> Killed:
    """Send SIGKILL to the owner's process that holds `lock_file`.

    Raises:
        FailedPrecondition: `pid_not_ours`: the lock names another process, or one that started at another time.
    """
    return _kill(pid, what=f"owner {lock_file.parent.name}", is_ours=lambda: _holds(pid, lock_file))


def _kill(pid: int, *, what: str, is_ours: Callable[[], bool]) -> Killed:
    try:
        held = os.pidfd_open(pid)
    except ProcessLookupError as error:
        raise _not_ours(pid, what) from error
    try:
        if not is_ours():
            raise _not_ours(pid, what)
        signal.pidfd_send_signal(held, signal.SIGKILL)
    finally:
        os.close(held)
    return Killed(pid=pid, what=what)


def _is_box(pid: int, birth_id: BirthId) -> bool:
    """Process 1 of a PID namespace of its own, with this container's boot folder mounted."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        mounts = Path(f"/proc/{pid}/mountinfo").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    inner = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
    return len(inner) > 1 and inner[-1] == "1" and f"/{birth_id} /run/sandkeeper " in mounts


def _holds(pid: int, lock_file: Path) -> bool:
    try:
        noted = json.loads(lock_file.read_text())
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return False
    started = int(stat[stat.rindex(")") + 2 :].split()[19])
    return bool(noted.get("pid") == pid and noted.get("start_ticks") == started)


def _not_ours(pid: int, what: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"process {pid} is not {what}, so it is left alone",
        code="pid_not_ours",
        advice="it may have ended just now; run the demonstration again",
    )
