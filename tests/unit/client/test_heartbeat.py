"""Heartbeats: from the first thing that is bound until the keeper is left, whatever the program does meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from sandkeeper.client.installation import Installation
from sandkeeper.client.keeper import Keeper
from sandkeeper.core.errors import InvalidArgument
from sandkeeper.core.record import Phase
from sandkeeper.ports import Ports
from tests.fakes.control import FakeControl, control_on_a_thread

PATIENCE_S = 30.0


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "sandkeeper-heartbeat"]


async def beats(control: FakeControl, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while len(control.called("heartbeat")) < count:
        assert time.monotonic() < deadline, "no heartbeat came"
        await asyncio.sleep(0.01)


async def test_a_bound_create_names_the_client_and_beats_until_leaving(
    control: FakeControl, hasty_ports: Ports
) -> None:
    keeper = Keeper(Installation(control.state_dir), config=None, client_ttl_s=1, ports=hasty_ports)
    async with keeper:
        assert threads() == []
        await keeper.create()
        await beats(control, 2)
        (request,) = control.called("create")
        assert (request.client_id, request.client_ttl_s) == (control.called("heartbeat")[0].client_id, 1)
        assert control.called("heartbeat")[0].ttl_s == 1
    assert threads() == []


async def test_a_detached_create_has_no_client(control: FakeControl, keeper: Keeper) -> None:
    async with keeper:
        await keeper.create(detached=True)
        await keeper.list()
        assert threads() == []
    assert control.called("create")[0].client_id is None
    assert control.called("heartbeat") == []


async def test_a_client_that_comes_back_beats_from_the_start(
    control: FakeControl, hasty_ports: Ports
) -> None:
    installation = Installation(control.state_dir)
    async with Keeper(installation, config=None, client_id="worker-7", ports=hasty_ports):
        await beats(control, 1)
    assert control.called("heartbeat")[0].client_id == "worker-7"


def test_a_program_that_blocks_its_loop_is_still_heard(state_dir: Path) -> None:
    async def program(control: FakeControl) -> int:
        async with Keeper.join(state_dir, client_ttl_s=1) as keeper:
            await keeper.create()
            deadline = time.monotonic() + PATIENCE_S
            before = len(control.called("heartbeat"))
            while len(control.called("heartbeat")) < before + 2 and time.monotonic() < deadline:
                time.sleep(0.01)
            return len(control.called("heartbeat")) - before

    with control_on_a_thread(state_dir) as control:
        assert asyncio.run(program(control)) >= 2


async def test_a_directory_that_is_away_is_tried_again(state_dir: Path, hasty_ports: Ports) -> None:
    keeper = Keeper(Installation(state_dir), config=None, client_id="a", client_ttl_s=1, ports=hasty_ports)
    async with keeper:
        heartbeat = keeper._heartbeat
        deadline = time.monotonic() + PATIENCE_S
        while heartbeat.last_error is None:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        assert heartbeat.last_error.code == "owner_unreachable"
        control = FakeControl(state_dir)
        await control.start()
        await beats(control, 1)
        await control.close()


@pytest.mark.parametrize("wrong", [{"client_id": "a b"}, {"client_ttl_s": 0.5}, {"client_ttl_s": 1e9}])
def test_what_is_no_client_is_refused(state_dir: Path, wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument):
        Keeper.join(state_dir, **wrong)  # type: ignore[arg-type]


async def test_what_get_or_create_makes_stays_and_is_found(control: FakeControl, keeper: Keeper) -> None:
    async with keeper:
        made = await keeper.get_or_create("dev", env={"A": "1"})
        again = await keeper.get_or_create("dev", env={"A": "1"})
        assert made.id == again.id
    assert control.sandboxes[made.id].phase is Phase.RUNNING
    assert threads() == []


async def test_what_get_or_create_binds_goes_and_what_it_found_stays(
    control: FakeControl, keeper: Keeper
) -> None:
    async with keeper:
        there = await keeper.create(name="there", detached=True)
        found = await keeper.get_or_create("there", detached=False)
        made = await keeper.get_or_create("made", detached=False)
        assert found.id == there.id
    assert control.sandboxes[there.id].phase is Phase.RUNNING
    assert control.sandboxes[made.id].phase is Phase.DESTROYED


async def test_a_parameter_that_does_not_exist_is_refused(keeper: Keeper) -> None:
    async with keeper:
        with pytest.raises(InvalidArgument) as refusal:
            await keeper.get_or_create("dev", colour="red")
    assert refusal.value.details["field"] == "colour"
