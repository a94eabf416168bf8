"""The process lock: at most one process acts for an owner or writes a catalogue.

Owns the lock file: an exclusive flock held for the life of the process, and the mark of the holder as its
content. The kernel frees the lock when the last descriptor closes, however the process ends; descriptors are
close-on-exec, so a program started by the holder never keeps it. Never deletes a lock file.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from pydantic import ValidationError

from sandkeeper.core.errors import FailedPrecondition, Unavailable
from sandkeeper.ports import Ports
from sandkeeper.store.errors import mapped
from sandkeeper.store.processes import ProcessMark, end_process, is_alive, this_process

_POLL_S = 0.01
_MAX_CONTENT_BYTES = 4096


class ProcessLock:
    """An exclusive lock of this process on one file.

    Taking it is what makes an incarnation the only writer: no file of the owner is opened for writing and no
    engine call is made before.
    """

    def __init__(self, path: Path, *, ports: Ports) -> None:
        self.path = path
        self._ports = ports
        self._fd: int | None = None

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return self._fd is not None

    def holder(self) -> ProcessMark | None:
        """Return whom the file names, if that process lives; it may be about to take or to leave the lock."""
        mark = self._named()
        return mark if mark is not None and is_alive(mark) else None

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it; return whether this object holds it now. Safe to repeat."""
        if self._fd is not None:
            return True
        with mapped(self.path, step="taking the process lock"):
            fd = self._open()
            try:
                if not self._lock(fd):
                    os.close(fd)
                    return False
                content = this_process().model_dump_json().encode()
                os.ftruncate(fd, 0)
                os.pwrite(fd, content, 0)
            except BaseException:
                os.close(fd)
                raise
        self._fd = fd
        return True

    async def acquire(self, *, timeout_s: float) -> None:
        """Take the lock, waiting for its holder to leave by itself.

        Raises:
            Unavailable: `lock_held` after `timeout_s`, naming the holder.
        """
        deadline_s = self._ports.clock.monotonic_s() + timeout_s
        while not self.try_acquire():
            if self._ports.clock.monotonic_s() >= deadline_s:
                raise self._held(timeout_s)
            await self._ports.sleep(_POLL_S)

    async def acquire_or_end(self, *, grace_s: float = 0.0, timeout_s: float = 10.0) -> ProcessMark | None:
        """Take the lock, ending the process that holds it if it does not leave.

        The holder is ended by SIGKILL through a pidfd after its start time was compared, so a SIGSTOPped
        holder is ended before the lock is taken and a reused pid is never hit. A file that names nobody alive
        while the lock is held (the holder has not written its mark yet) is waited for.

        Args:
            grace_s: How long the holder may take to leave by itself.
            timeout_s: Bound of the whole, grace included.

        Returns:
            Whom it ended, or None.

        Raises:
            Unavailable: `lock_held` after `timeout_s`, or `process_not_ending`.
            FailedPrecondition: `lock_held_here`; another object of this very process holds it.
        """
        started_s = self._ports.clock.monotonic_s()
        ended: ProcessMark | None = None
        while not self.try_acquire():
            waited_s = self._ports.clock.monotonic_s() - started_s
            if waited_s >= timeout_s:
                raise self._held(timeout_s)
            holder = self.holder()
            if holder is not None and holder.pid == os.getpid():
                raise FailedPrecondition(
                    f"this process already holds {self.path.name}", code="lock_held_here"
                )
            if holder is not None and waited_s >= grace_s:
                if await end_process(holder, ports=self._ports, timeout_s=timeout_s - waited_s):
                    ended = holder
            else:
                await self._ports.sleep(_POLL_S)
        return ended

    def release(self) -> None:
        """Leave the lock; safe to repeat. Only after everything it guards is closed."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        try:
            os.ftruncate(fd, 0)
        finally:
            os.close(fd)

    def _open(self) -> int:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def _lock(self, fd: int) -> bool:
        """Return whether `fd` now holds the lock of the file the path names (and not of a replaced one)."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False
        mine = os.fstat(fd)
        return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)

    def _named(self) -> ProcessMark | None:
        try:
            with self.path.open("rb") as file:
                content = file.read(_MAX_CONTENT_BYTES)
        except FileNotFoundError:
            return None
        if not content:
            return None
        try:
            return ProcessMark.model_validate_json(content)
        except ValidationError:
            # Half-written by a holder that has just taken it: the next look reads the whole mark.
            return None

    def _held(self, waited_s: float) -> Unavailable:
        holder = self.holder()
        who = "a process that has not named itself" if holder is None else f"process {holder.pid}"
        return Unavailable(
            f"{self.path.name} is still held by {who} after {waited_s} s",
            code="lock_held",
            advice="end that process, or wait for it",
            details={"path": str(self.path), "pid": None if holder is None else holder.pid},
        )
