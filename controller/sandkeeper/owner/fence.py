"""Makes one incarnation of an owner the only one: epoch first, then the lock, then everything else.

Owns the order of fencing. No engine call, no box call and no write to the owner's journal happens before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import structlog

from sandkeeper.control.caller import ControlCaller
from sandkeeper.core.errors import Unavailable
from sandkeeper.core.ids import OwnerId
from sandkeeper.ports import Ports
from sandkeeper.store.processes import this_process

log = structlog.get_logger(__name__)

DIRECTORY_WAIT_S = 60.0
RETRY_S = 0.1
LOCK_TIMEOUT_S = 15.0


class EndingLock(Protocol):
    """A lock whose holder is ended when it does not leave."""

    async def acquire_or_end(self, *, grace_s: float = 0.0, timeout_s: float = 10.0) -> object | None:
        """Take the lock; return whom that ended."""
        ...


Enlist = Callable[[], Awaitable[int]]
L = TypeVar("L", bound=EndingLock)


@dataclass(frozen=True, slots=True)
class Fence(Generic[L]):
    """The right to act for an owner.

    Attributes:
        epoch: Number of this incarnation; boxes refuse lower ones.
        lock: Held for the life of the process.
    """

    epoch: int
    lock: L


async def fence(owner_id: OwnerId, *, enlist: Enlist, lock: L) -> Fence[L]:
    """Raise the owner's epoch at the directory, then take its lock, ending whoever holds it.

    Raises:
        Unavailable: The directory does not answer, or the holder of the lock cannot be ended.
    """
    epoch = await enlist()
    ended = await lock.acquire_or_end(timeout_s=LOCK_TIMEOUT_S)
    log.info("owner_fenced", owner_id=owner_id, epoch=epoch, ended=str(ended) if ended else None)
    return Fence(epoch, lock)


async def enlist_at(directory_socket: Path, owner_id: OwnerId, *, ports: Ports) -> int:
    """Ask the directory for the next epoch of an owner, waiting while it is coming up.

    Raises:
        Unavailable: `owner_unreachable` for a minute.
    """
    mark = this_process()
    payload = {"owner_id": owner_id, "pid": mark.pid, "start_ticks": mark.start_ticks}
    caller = ControlCaller(directory_socket)
    deadline_s = ports.clock.monotonic_s() + DIRECTORY_WAIT_S
    try:
        while True:
            try:
                answer = await caller.call("enlist", payload, timeout_s=5.0)
                return int(answer["epoch"])
            except Unavailable:
                if ports.clock.monotonic_s() >= deadline_s:
                    raise
                await ports.sleep(RETRY_S)
    finally:
        await caller.close()
