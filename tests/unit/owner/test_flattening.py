"""Snapshots of too many layers: made into one before the record hears of them, or left as they are."""

from __future__ import annotations

from dataclasses import replace

from sandkeeper.core import commands as cmd
from sandkeeper.core import events as ev
from sandkeeper.core.errors import DataLoss, Internal
from sandkeeper.core.ids import SnapshotId
from sandkeeper.core.lifecycle import Move, step
from sandkeeper.core.observation import RuntimeState
from sandkeeper.core.record import Phase, SandboxRecord
from sandkeeper.ports import Ports
from tests.support.virtual_time import in_virtual_time
from tests.unit.core.samples import BIRTH, SNAPSHOT, STAMP, record
from tests.unit.owner.house import House, open_house
from tests.unit.owner.test_runner import LAUNCH, STARTING, TARGET

COMMIT = cmd.CommitSnapshot(**TARGET, snapshot_id=SnapshotId("sn1"))
DEEP = SNAPSHOT.model_copy(update={"depth": 9})


def at_depth(depth: int) -> SandboxRecord:
    boot = SNAPSHOT.model_copy(update={"depth": depth})
    return record(Phase.SNAPSHOTTING, runtime_boot=boot, pending=COMMIT)


async def at_work(ports: Ports, *, flatten_at_depth: int = 10) -> House:
    house = await open_house(ports)
    snapshotter = replace(house.runner.snapshotter, flatten_at_depth=flatten_at_depth)
    house.runner = replace(house.runner, snapshotter=snapshotter)
    assert isinstance(await house.runner.perform(STARTING, LAUNCH), ev.RuntimeStarted)
    house.world.runtimes[BIRTH].files["/work"] = b"12345"
    house.engine.calls.clear()
    return house


def tags(house: House) -> set[str]:
    return {tag for image in house.world.images.values() for tag in image.tags}


@in_virtual_time
async def test_the_layer_that_reaches_the_limit_makes_one_of_all(ports: Ports) -> None:
    house = await at_work(ports)
    reply = await house.runner.perform(at_depth(9), COMMIT)
    assert isinstance(reply, ev.SnapshotCommitted)
    assert reply.is_flattened
    assert house.world.images[reply.image_id].files["/work"] == b"12345"
    assert house.world.images[reply.image_id].parent_id is None
    assert tags(house) == {"sandkeeper-i0:sn1"}
    move = step(at_depth(9), reply, STAMP)
    assert isinstance(move, Move)
    assert (move.record.boot.depth, move.record.boot.image_id) == (1, reply.image_id)
    assert move.snapshot is not None
    assert move.snapshot.is_flattened


@in_virtual_time
async def test_fewer_layers_stay_as_they_are(ports: Ports) -> None:
    house = await at_work(ports)
    reply = await house.runner.perform(at_depth(8), COMMIT)
    assert isinstance(reply, ev.SnapshotCommitted)
    assert not reply.is_flattened
    assert "flatten" not in house.sent()
    move = step(at_depth(8), reply, STAMP)
    assert isinstance(move, Move)
    assert move.record.boot.depth == 9


@in_virtual_time
async def test_the_runtime_goes_on_while_layers_are_made_one(ports: Ports) -> None:
    house = await at_work(ports)
    house.engine.latency_s["flatten"] = 60.0
    taking = ports.spawn(house.runner.perform(at_depth(9), COMMIT), name="take")
    await ports.sleep(30.0)
    assert house.world.runtimes[BIRTH].state is RuntimeState.RUNNING
    assert not house.yard.boxes[BIRTH].is_draining
    reply = await taking
    assert reply.freeze_ms < 1000.0


@in_virtual_time
async def test_one_that_is_not_the_same_tree_is_not_taken(ports: Ports) -> None:
    house = await at_work(ports)
    house.engine.fail_next("flatten", DataLoss("another tree", code="flatten_mismatch"))
    reply = await house.runner.perform(at_depth(9), COMMIT)
    assert isinstance(reply, ev.SnapshotCommitted)
    assert not reply.is_flattened
    assert tags(house) == {"sandkeeper-i0:sn1"}


@in_virtual_time
async def test_what_fails_after_it_leaves_nothing(ports: Ports) -> None:
    house = await at_work(ports)
    house.engine.fail_next("sync", Internal("it broke", code="engine_error"))
    assert isinstance(await house.runner.perform(at_depth(9), COMMIT), ev.SnapshotFailed)
    assert tags(house) == set()
