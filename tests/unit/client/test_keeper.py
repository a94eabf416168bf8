"""The keeper's verbs, and what leaving it means."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

import sandkeeper
from sandkeeper.client.installation import Installation
from sandkeeper.client.keeper import Keeper
from sandkeeper.client.local import server_module
from sandkeeper.core.errors import (
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from sandkeeper.core.record import Phase
from tests.fakes.control import FakeControl


def phases(control: FakeControl) -> list[str]:
    return sorted(seen.phase.value for seen in control.sandboxes.values())


async def test_leaving_destroys_what_is_not_detached(control: FakeControl, keeper: Keeper) -> None:
    async with keeper:
        await keeper.create()
        kept = await keeper.create(detached=True)
    assert control.sandboxes[kept.id].phase is Phase.RUNNING
    assert phases(control) == ["destroyed", "running"]


async def test_leaving_by_an_error_destroys_too_and_the_error_goes_on(
    control: FakeControl, keeper: Keeper
) -> None:
    async def fail_inside() -> None:
        async with keeper:
            await keeper.create()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_inside()
    assert phases(control) == ["destroyed"]


async def test_a_cancel_while_leaving_waits_for_the_end_and_goes_on(
    control: FakeControl, keeper: Keeper
) -> None:
    async def stay() -> None:
        async with keeper:
            await keeper.create()

    staying = asyncio.ensure_future(stay())
    while not control.called("destroy"):
        await asyncio.sleep(0)
    staying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await staying
    assert phases(control) == ["destroyed"]


async def test_what_could_not_be_destroyed_is_told(control: FakeControl, keeper: Keeper) -> None:
    await keeper.__aenter__()
    await keeper.create()
    await keeper.create()
    control.failures["destroy"] = [Internal("broken")]
    with pytest.raises(Internal):
        await keeper.__aexit__(None, None, None)
    assert phases(control) == ["destroyed", "running"]


async def test_what_is_gone_already_is_no_failure_of_leaving(control: FakeControl, keeper: Keeper) -> None:
    async with keeper:
        await keeper.create()
        control.failures["destroy"] = [NotFound("gone", code="sandbox_destroyed")]


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": "huge"},
        {"size": {"vcpu": -1, "memory_mib": 512}},
        {"size": {"vcpu": 1, "memory_mib": 0}},
        {"size": {"vcpu": 1, "memory_mib": 2**54}},
        {"size": {"vcpu": math.nan, "memory_mib": 512}},
        {"size": {"vcpu": 1, "memory_mib": "4g"}},
        {"name": "No Name"},
        {"env": {"A=B": "c"}},
        {"on_lost": "shrug"},
        {"lifetime_s": -1},
        {"workdir": "relative"},
    ],
)
async def test_what_is_wrong_is_refused_before_anything_is_sent(
    control: FakeControl, keeper: Keeper, wrong: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgument):
        await keeper.create(**wrong)
    assert control.calls == []


async def test_a_cancelled_create_destroys_what_it_made(control: FakeControl, keeper: Keeper) -> None:
    creating = asyncio.ensure_future(keeper.create())
    while not control.called("create"):
        await asyncio.sleep(0)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert phases(control) == ["destroyed"]


async def test_a_create_under_the_callers_own_id_outlives_its_call(
    control: FakeControl, keeper: Keeper
) -> None:
    creating = asyncio.ensure_future(keeper.create(request_id="mine"))
    while not control.called("create"):
        await asyncio.sleep(0)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    again = await keeper.create(request_id="mine")
    assert (again.phase, len(control.sandboxes)) == ("running", 1)


async def test_list_filters(control: FakeControl, keeper: Keeper) -> None:
    one = await keeper.create(labels={"set": "a"})
    await keeper.create(labels={"set": "b"})
    await one.pause()
    assert [found.id for found in await keeper.list("paused")] == [one.id]
    assert [found.id for found in await keeper.list(labels={"set": "a"})] == [one.id]
    assert len(await keeper.list()) == 2
    with pytest.raises(InvalidArgument):
        await keeper.list("flying")


async def test_fork_is_all_or_none(control: FakeControl, keeper: Keeper) -> None:
    source = await keeper.create()
    snapshot = await source.snapshot("base")
    made = await keeper.fork(snapshot, 3)
    assert {fork.phase for fork in made} == {"running"}
    control.failures["create"] = [ResourceExhausted("full", code="quota_sandboxes")]
    with pytest.raises(ResourceExhausted):
        await keeper.fork(snapshot, 3)
    assert phases(control).count("running") == 4
    for wrong in (0, 300, True):
        with pytest.raises(InvalidArgument):
            await keeper.fork(snapshot, wrong)


async def test_snapshots(control: FakeControl, keeper: Keeper) -> None:
    source = await keeper.create()
    snapshot = await source.snapshot("base")
    assert await keeper.snapshots.list() == [snapshot]
    assert await keeper.snapshots.get(snapshot.id) == snapshot
    await keeper.snapshots.delete(snapshot.id)
    with pytest.raises(NotFound):
        await keeper.snapshots.get(snapshot.id)


async def test_handles_tell_what_was_last_seen(control: FakeControl, keeper: Keeper) -> None:
    sandbox = await keeper.create(name="box", size="lite")
    assert (sandbox.name, sandbox.image, sandbox.size.name, sandbox.generation) == ("box", "base", "lite", 1)
    await sandbox.pause()
    assert sandbox.phase == "paused"
    await sandbox.resume()
    await sandbox.resize({"vcpu": 1, "memory_mib": 300})
    assert (sandbox.phase, sandbox.size.memory_mib) == ("running", 300)
    await sandbox.stop(keep="files")
    assert control.called("stop")[0].keep == "files"
    with pytest.raises(InvalidArgument):
        await sandbox.stop(keep="everything")
    with pytest.raises(FailedPrecondition):
        await sandbox.run("true")
    await sandbox.start()
    await sandbox.destroy()
    assert sandbox.phase == "destroyed"


async def test_events_come_in_order_and_end(control: FakeControl, keeper: Keeper) -> None:
    sandbox = await keeper.create()
    await sandbox.pause()
    await sandbox.resume()
    kinds = [event.kind async for event in sandbox.events()]
    assert kinds == ["runtime_started", "moved_to_paused", "moved_to_running"]
    assert [event.seq async for event in sandbox.events(after=2)] == [3]


async def test_status(control: FakeControl, keeper: Keeper) -> None:
    status = await keeper.status()
    assert (status.directory_pid, status.owners[0].epoch) == (41, 3)


def test_a_missing_server_side_names_the_extra() -> None:
    for is_loaded in (True, False):
        with pytest.raises(FailedPrecondition) as refused:
            server_module("a_module_nobody_has", is_loaded=is_loaded)
        assert refused.value.code == "server_extra_missing"
        assert "sandkeeper[server]" in refused.value.advice


def test_the_front_door_is_lazy() -> None:
    assert sandkeeper.Keeper is Keeper
    assert Keeper.local("/x")._installation == Installation(Keeper.join("/x")._installation.state_dir)
    with pytest.raises(AttributeError):
        _ = sandkeeper.Nothing  # type: ignore[attr-defined]
