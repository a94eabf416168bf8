"""A process as two numbers that cannot be mistaken for another: pid and start time.

Owns reading /proc for them and ending a process through a pidfd. Never signals a pid that now names
something else: pids are reused, start ticks within one boot are not.
"""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from sandkeeper.core.errors import PermissionDenied, Unavailable
from sandkeeper.ports import Ports

_START_TICKS_FIELD = 19
"""Index of `starttime` (field 22 of proc(5) stat) among the fields after the command name."""
_POLL_S = 0.005


class ProcessMark(BaseModel):
    """One process of one boot.

    Attributes:
        pid: Its number on the host.
        start_ticks: Clock ticks from boot to its start.
        boot_id: The kernel's id of the boot; a mark of another boot names nobody. Empty when not known.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    pid: int
    start_ticks: int
    boot_id: str = ""


def start_ticks(pid: int) -> int | None:
    """Return when `pid` was started, in clock ticks since boot, or None when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat[stat.rindex(b")") + 2 :].split()[_START_TICKS_FIELD])


def boot_id() -> str:
    """Return the kernel's id of the present boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def this_process() -> ProcessMark:
    """Return the mark of the calling process."""
    ticks = start_ticks(os.getpid())
    if ticks is None:
        raise Unavailable("/proc does not show this process", code="proc_unreadable", advice="mount /proc")
    return ProcessMark(pid=os.getpid(), start_ticks=ticks, boot_id=boot_id())


def is_alive(mark: ProcessMark) -> bool:
    """Return whether the marked process exists; a zombie, which can do nothing, counts as gone."""
    fd = _open(mark)
    if fd is None:
        return False
    try:
        return not _has_ended(fd)
    finally:
        os.close(fd)


async def end_process(mark: ProcessMark, *, ports: Ports, timeout_s: float = 10.0) -> bool:
    """End the marked process with SIGKILL and wait until it is gone. Safe to repeat.

    A stopped (SIGSTOP) process is ended too. A process that took over the pid is never touched.

    Args:
        mark: Whom to end.
        ports: Clock and sleep.
        timeout_s: Bound of the wait for its end.

    Returns:
        True when it was there and is gone now, False when there was nobody to end.

    Raises:
        PermissionDenied: `process_not_ours`.
        Unavailable: `process_not_ending`; it is in an uninterruptible wait of the kernel.
    """
    fd = _open(mark)
    if fd is None:
        return False
    try:
        if _has_ended(fd):
            return False
        if not _kill(fd, mark):
            return False
        deadline_s = ports.clock.monotonic_s() + timeout_s
        while not _has_ended(fd):
            if ports.clock.monotonic_s() >= deadline_s:
                raise Unavailable(
                    f"process {mark.pid} did not end within {timeout_s} s of SIGKILL",
                    code="process_not_ending",
                    details={"pid": mark.pid},
                )
            await ports.sleep(_POLL_S)
        return True
    finally:
        os.close(fd)


def signal_process(mark: ProcessMark, number: signal.Signals) -> bool:
    """Send a signal to the marked process; return whether it was there. Never hits a reused pid.

    Raises:
        PermissionDenied: `process_not_ours`.
    """
    fd = _open(mark)
    if fd is None:
        return False
    try:
        return not _has_ended(fd) and _kill(fd, mark, number=number)
    finally:
        os.close(fd)


def _open(mark: ProcessMark) -> int | None:
    """Return a pidfd of the marked process: opened first, compared after, so no reuse slips in between."""
    if mark.boot_id and mark.boot_id != boot_id():
        return None
    try:
        fd = os.pidfd_open(mark.pid)
    except ProcessLookupError:
        return None
    if start_ticks(mark.pid) == mark.start_ticks:
        return fd
    os.close(fd)
    return None


def _kill(fd: int, mark: ProcessMark, *, number: signal.Signals = signal.SIGKILL) -> bool:
    try:
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    except PermissionError as error:
        raise PermissionDenied(
            f"process {mark.pid} belongs to another user", code="process_not_ours", details={"pid": mark.pid}
        ) from error
    return True


def _has_ended(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
