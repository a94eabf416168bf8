"""Chores: a failure is tried again, does not hinder the others, and a defect is not silent."""

from __future__ import annotations

from sandkeeper.core.errors import Unavailable
from sandkeeper.owner.chores import Chores
from sandkeeper.ports import Ports
from tests.support.virtual_time import in_virtual_time


@in_virtual_time
async def test_each_is_done_again_and_again_until_close(ports: Ports) -> None:
    done: list[str] = []
    chores = Chores(ports=ports, fatal=done.append)

    async def sweep() -> None:
        done.append("sweep")

    chores.start("sweep", sweep, every_s=10)
    await ports.sleep(35)
    assert done == ["sweep"] * 3
    chores.close()
    chores.close()
    await ports.sleep(35)
    assert done == ["sweep"] * 3


@in_virtual_time
async def test_one_that_fails_is_tried_again_and_hinders_no_other(ports: Ports) -> None:
    done: list[str] = []
    chores = Chores(ports=ports, fatal=done.append)

    async def reap() -> None:
        done.append("reap")
        raise Unavailable("away", code="engine_unavailable")

    async def sweep() -> None:
        done.append("sweep")

    chores.start("reap", reap, every_s=10)
    chores.start("sweep", sweep, every_s=10)
    await ports.sleep(25)
    assert done == ["reap", "sweep"] * 2
    chores.close()


@in_virtual_time
async def test_a_defect_is_told_once(ports: Ports) -> None:
    told: list[str] = []
    chores = Chores(ports=ports, fatal=told.append)

    async def divide() -> None:
        raise ZeroDivisionError

    chores.start("divide", divide, every_s=10)
    await ports.sleep(35)
    assert told == ["chore divide ended with ZeroDivisionError()"]
