"""Makes one incarnation of an owner the only one: epoch first, then the lock, then everything else.

Owns the order of fencing. No engine call, no box call and no write to the owner's journal happens before.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from sandkeeper.control.caller import ControlCaller
from sandkeeper.core.errors import Unavailable
from sandkeeper.core.ids import OwnerId
from sandkeeper.owner.config import Config
from sandkeeper.ports import Ports
from sandkeeper.store.locks import ProcessLock
from sandkeeper.store.processes import this_process

log = structlog.get_logger(__name__)

DIRECTORY_WAIT_S = 60.0
RETRY_S = 0.1
LOCK_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class Fence:
    """The right to act for an owner.

    Attributes:
        epoch: Number of this incarnation; boxes refuse lower ones.
        lock: Held for the life of the process.
    """

    epoch: int
    lock: ProcessLock


async def fence(owner_id: OwnerId, *, config: Config, ports: Ports) -> Fence:
    """Raise the owner's epoch at the directory, then take its lock, ending whoever holds it.

    Raises:
        Unavailable: The directory does not answer, or the holder of the lock cannot be ended.
    """
    epoch = await _raise_epoch(owner_id, config=config, ports=ports)
    lock = ProcessLock(config.paths.owner(owner_id).lock, ports=ports)
    ended = await lock.acquire_or_end(timeout_s=LOCK_TIMEOUT_S)
    log.info("owner_fenced", owner_id=owner_id, epoch=epoch, ended_pid=ended.pid if ended else None)
    return Fence(epoch, lock)


async def _raise_epoch(owner_id: OwnerId, *, config: Config, ports: Ports) -> int:
    mark = this_process()
    payload = {"owner_id": owner_id, "pid": mark.pid, "start_ticks": mark.start_ticks}
    caller = ControlCaller(config.paths.directory_socket)
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
