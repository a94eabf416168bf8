"""The process lock in memory: held by a named simulated process, freed when that process is ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.fakes.disk import MemoryDisk


@dataclass(slots=True)
class FakeLock:
    """`contract.WriterLock` on a `MemoryDisk`.

    Attributes:
        name: The lock's name on the disk.
        process: Name of the simulated process that takes it.
        end_process: Ends the named simulated process as SIGKILL does: after it, none of its tasks runs.
    """

    disk: MemoryDisk
    name: str
    process: str
    end_process: Callable[[str], Awaitable[None]] | None = None

    @property
    def is_held(self) -> bool:
        return self.disk.locks.get(self.name) == self.process

    def holder(self) -> str | None:
        """Return the name of the process that holds it."""
        return self.disk.locks.get(self.name)

    async def acquire_or_end(self, *, grace_s: float = 0.0, timeout_s: float = 10.0) -> Any:
        """Take the lock, ending whoever has it; return whom it ended."""
        holder = self.holder()
        ended = None
        if holder is not None and holder != self.process:
            if self.end_process is not None:
                await self.end_process(holder)
            self.disk.free_locks(holder)
            ended = holder
        self.disk.locks[self.name] = self.process
        return ended

    def release(self) -> None:
        if self.is_held:
            del self.disk.locks[self.name]
