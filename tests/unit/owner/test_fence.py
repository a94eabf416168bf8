"""The order of fencing: epoch, then lock, then anything else."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from sandkeeper.control.server import ControlServer, VerbTable
from sandkeeper.core.errors import NotFound, Unavailable
from sandkeeper.core.ids import OwnerId
from sandkeeper.owner.directory import Enlist
from sandkeeper.owner.fence import enlist_at, fence
from sandkeeper.ports import Ports, real_ports
from sandkeeper.store.processes import this_process
from tests.fakes.host import StepClock

OWNER = OwnerId("ow1")


@dataclass
class NotedLock:
    order: list[str] = field(default_factory=list)
    error: Exception | None = None

    async def acquire_or_end(self, *, grace_s: float = 0.0, timeout_s: float = 10.0) -> object | None:
        self.order.append("lock")
        if self.error is not None:
            raise self.error
        return None


async def test_the_epoch_is_raised_before_the_lock_is_taken() -> None:
    lock = NotedLock()

    async def enlist() -> int:
        lock.order.append("epoch")
        return 7

    fenced = await fence(OWNER, enlist=enlist, lock=lock)
    assert (lock.order, fenced.epoch, fenced.lock) == (["epoch", "lock"], 7, lock)


async def test_without_an_epoch_nobody_is_ended() -> None:
    lock = NotedLock()

    async def enlist() -> int:
        raise Unavailable("no directory", code="owner_unreachable")

    with pytest.raises(Unavailable):
        await fence(OWNER, enlist=enlist, lock=lock)
    assert lock.order == []


async def test_a_holder_that_cannot_be_ended_keeps_the_new_one_out() -> None:
    async def enlist() -> int:
        return 1

    with pytest.raises(Unavailable):
        await fence(OWNER, enlist=enlist, lock=NotedLock(error=Unavailable("held", code="lock_held")))


def stepping() -> tuple[Ports, StepClock]:
    """Return ports on which sleeping takes no time but moves the clock."""
    clock = StepClock()

    async def sleep(seconds: float) -> None:
        clock.sleep(seconds)

    return replace(real_ports(), clock=clock, sleep=sleep), clock


async def test_it_enlists_as_the_process_it_is(tmp_path: Path) -> None:
    asked: list[Enlist] = []

    async def answer(params: Enlist) -> Any:
        asked.append(params)
        return {"epoch": 3}

    server = ControlServer(tmp_path / "directory.sock", table=VerbTable({"enlist": (Enlist, answer)}))
    await server.start()
    assert await enlist_at(tmp_path / "directory.sock", OWNER, ports=real_ports()) == 3
    await server.close()
    mark = this_process()
    assert [(one.owner_id, one.pid, one.start_ticks) for one in asked] == [
        (OWNER, mark.pid, mark.start_ticks)
    ]


async def test_a_directory_that_is_coming_up_is_waited_for_a_minute(tmp_path: Path) -> None:
    ports, clock = stepping()
    with pytest.raises(Unavailable):
        await enlist_at(tmp_path / "directory.sock", OWNER, ports=ports)
    assert 60 <= clock.at_s < 61


async def test_an_owner_the_directory_does_not_know_is_told_at_once(tmp_path: Path) -> None:
    async def answer(params: Enlist) -> Any:
        raise NotFound("no such owner", code="owner_unknown")

    server = ControlServer(tmp_path / "directory.sock", table=VerbTable({"enlist": (Enlist, answer)}))
    await server.start()
    with pytest.raises(NotFound):
        await enlist_at(tmp_path / "directory.sock", OWNER, ports=real_ports())
    await server.close()
