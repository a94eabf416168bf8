"""Calls to owners: repeated while nobody answers, never after an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sandkeeper.control.server import ControlServer, VerbTable
from sandkeeper.core.errors import FailedPrecondition, Unavailable
from sandkeeper.core.ids import OwnerId
from sandkeeper.core.verbs import Nothing
from sandkeeper.owner.config import StatePaths
from sandkeeper.owner.owner_calls import OwnerCalls
from sandkeeper.ports import real_ports
from tests.unit.owner.test_fence import stepping

OWNER = OwnerId("ow1")


def serving(folder: Path, answers: list[Any]) -> ControlServer:
    async def answer(params: Nothing) -> Any:
        said = answers.pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    path = StatePaths(folder).owner(OWNER).control_socket
    return ControlServer(path, table=VerbTable({"ping": (Nothing, answer)}))


async def test_an_owner_that_is_coming_up_is_waited_for(tmp_path: Path) -> None:
    ports, clock = stepping()
    server = serving(tmp_path, [{"n": 1}])

    async def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.at_s > 5 and not started:
            started.append(True)
            await server.start()

    started: list[bool] = []
    object.__setattr__(ports, "sleep", sleep)
    calls = OwnerCalls(StatePaths(tmp_path), ports=ports)
    assert await calls.call(OWNER, "ping", Nothing()) == {"n": 1}
    await calls.close()
    await server.close()


async def test_an_owner_that_is_closing_is_asked_again(tmp_path: Path) -> None:
    ports, _ = stepping()
    server = serving(tmp_path, [Unavailable("closing", code="owner_closing"), {"n": 2}])
    await server.start()
    calls = OwnerCalls(StatePaths(tmp_path), ports=ports)
    assert await calls.call(OWNER, "ping", Nothing()) == {"n": 2}
    await calls.close()
    await server.close()


async def test_a_refusal_is_an_answer(tmp_path: Path) -> None:
    answers: list[Any] = [FailedPrecondition("no", code="sandbox_paused"), {"n": 2}]
    server = serving(tmp_path, answers)
    await server.start()
    calls = OwnerCalls(StatePaths(tmp_path), ports=real_ports())
    with pytest.raises(FailedPrecondition):
        await calls.call(OWNER, "ping", Nothing())
    assert len(answers) == 1
    await calls.close()
    await server.close()


@pytest.mark.parametrize(("timeout_s", "expected_s"), [(150.0, 60.0), (10.0, 10.0)])
async def test_the_wait_for_an_owner_is_bounded(tmp_path: Path, timeout_s: float, expected_s: float) -> None:
    ports, clock = stepping()
    calls = OwnerCalls(StatePaths(tmp_path), ports=ports)
    with pytest.raises(Unavailable) as refusal:
        await calls.call(OWNER, "ping", Nothing(), timeout_s=timeout_s)
    assert refusal.value.code == "owner_unreachable"
    assert expected_s - 1.5 < clock.at_s <= expected_s
    await calls.close()


async def test_a_ping_is_one_try(tmp_path: Path) -> None:
    ports, clock = stepping()
    calls = OwnerCalls(StatePaths(tmp_path), ports=ports)
    with pytest.raises(Unavailable):
        await calls.ping(OWNER, timeout_s=1.0)
    assert clock.at_s == 0
    await calls.close()
    await calls.close()
