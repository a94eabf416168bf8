"""A call whose answer was lost is repeated with the same request id; an answer never is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandkeeper.client.installation import Installation
from sandkeeper.client.keeper import Keeper
from sandkeeper.client.routing import Router
from sandkeeper.core.errors import FailedPrecondition, Internal, NotFound, ResourceExhausted, Unavailable
from sandkeeper.ports import Ports
from tests.fakes.control import FakeControl


async def test_a_folder_nobody_keeps_is_said_at_once(state_dir: Path, hasty_ports: Ports) -> None:
    router = Router(Installation(state_dir), ports=hasty_ports)
    with pytest.raises(Unavailable) as refused:
        await router.directory_raw("status", {})
    assert (refused.value.code, refused.value.admitted) == ("not_up", "no")
    assert "sandkeeper up" in refused.value.advice


async def test_a_closed_keeper_refuses(keeper: Keeper) -> None:
    sandbox = await keeper.create()
    await keeper.__aexit__(None, None, None)
    for call in (keeper.create(), keeper.list(), sandbox.describe()):
        with pytest.raises(FailedPrecondition) as refused:
            await call
        assert refused.value.code == "keeper_closed"


async def test_a_lost_answer_is_asked_for_again_with_the_same_request_id(
    control: FakeControl, keeper: Keeper
) -> None:
    lost = Unavailable("closing", code="owner_closing", admitted="unknown")
    control.failures["create"] = [lost, lost]
    sandbox = await keeper.create()
    ids = {params.request_id for params in control.called("create")}
    assert (len(control.called("create")), len(ids), sandbox.phase) == (3, 1, "running")


async def test_a_typed_refusal_is_not_repeated(control: FakeControl, keeper: Keeper) -> None:
    control.failures["create"] = [ResourceExhausted("full", code="machine_memory_full", retry_after_s=30)]
    with pytest.raises(ResourceExhausted) as refused:
        await keeper.create()
    assert (refused.value.code, len(control.called("create"))) == ("machine_memory_full", 1)


async def test_an_engine_that_is_away_is_an_answer(control: FakeControl, keeper: Keeper) -> None:
    control.failures["create"] = [Unavailable("engine away", code="engine_unavailable")]
    with pytest.raises(Unavailable):
        await keeper.create()
    assert len(control.called("create")) == 1


async def test_an_owner_that_moved_is_looked_up_again(control: FakeControl, keeper: Keeper) -> None:
    sandbox = await keeper.create()
    await sandbox.describe()
    await control.stop_owner()
    control.owner_path = control.state_dir / "owners" / "ow2" / "control.sock"
    await control.start_owner()
    assert (await sandbox.describe()).id == sandbox.id


async def test_an_owner_that_is_away_is_waited_for(
    control: FakeControl, keeper: Keeper, hasty_ports: Ports
) -> None:
    sandbox = await keeper.create()
    await control.stop_owner()
    telling = asyncio.ensure_future(sandbox.describe())
    while len(control.called("find")) < 3:
        await asyncio.sleep(0)
    await control.start_owner()
    assert (await telling).id == sandbox.id


async def test_the_retry_has_a_budget(control: FakeControl, hasty_ports: Ports) -> None:
    router = Router(Installation(control.state_dir), ports=hasty_ports, retry_for_s=0.0)
    control.failures["status"] = [Unavailable("closing", code="owner_closing")] * 5
    with pytest.raises(Unavailable):
        await router.directory_raw("status", {})
    assert len(control.called("status")) == 2


async def test_an_error_names_its_sandbox(control: FakeControl, keeper: Keeper) -> None:
    sandbox = await keeper.create()
    control.failures["pause"] = [FailedPrecondition("no")]
    with pytest.raises(FailedPrecondition) as refused:
        await sandbox.pause()
    assert refused.value.sandbox_id == sandbox.id


async def test_a_name_is_found_after_ids(control: FakeControl, keeper: Keeper) -> None:
    made = await keeper.create(name="mine")
    assert (await keeper.get("mine")).id == made.id == (await keeper.get(made.id)).id
    with pytest.raises(NotFound):
        await keeper.get("nobody")


async def test_an_answer_of_another_shape_is_a_defect(control: FakeControl, keeper: Keeper) -> None:
    sandbox = await keeper.create()
    control.is_odd = True
    with pytest.raises(Internal) as refused:
        await sandbox.describe()
    assert refused.value.code == "control_answer_invalid"


def test_only_a_living_process_with_the_same_start_is_up(state_dir: Path) -> None:
    installation = Installation(state_dir)
    assert not installation.is_up()
    FakeControl(state_dir).write_up_file()
    assert installation.is_up()
    for wrong in ('{"pid": 1, "start_ticks": 12345678901}', "{", "[]", '{"pid": "x"}', '{"pid": 4194304}'):
        (state_dir / "up.json").write_text(wrong)
        assert not installation.is_up()


async def test_an_unreachable_owner_without_a_supervisor_is_not_waited_for(
    control: FakeControl, keeper: Keeper
) -> None:
    sandbox = await keeper.create()
    await control.stop_owner()
    (control.state_dir / "up.json").unlink()
    with pytest.raises(Unavailable) as refused:
        await sandbox.describe()
    assert refused.value.code == "not_up"
