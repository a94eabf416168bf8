"""A snapshot: every step failing, the thaw always, and nothing left of one that did not happen."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandkeeper.core import commands as cmd
from sandkeeper.core import events as ev
from sandkeeper.core.errors import Internal, ResourceExhausted
from sandkeeper.core.ids import SnapshotId
from sandkeeper.core.observation import RuntimeState
from sandkeeper.core.record import Phase
from sandkeeper.ports import Ports
from tests.support.virtual_time import in_virtual_time
from tests.unit.core.samples import BIRTH, record
from tests.unit.owner.house import BASE, MAX_SNAPSHOT_BYTES, House, open_house
from tests.unit.owner.test_runner import LAUNCH, STARTING, TARGET

COMMIT = cmd.CommitSnapshot(**TARGET, snapshot_id=SnapshotId("sn1"))
SNAPSHOTTING = record(Phase.SNAPSHOTTING)
BROKEN = Internal("it broke", code="engine_error")


async def at_work(ports: Ports) -> House:
    house = await open_house(ports)
    assert isinstance(await house.runner.perform(STARTING, LAUNCH), ev.RuntimeStarted)
    house.world.runtimes[BIRTH].files["/work"] = b"12345"
    house.engine.calls.clear()
    return house


def tags(house: House) -> set[str]:
    return {tag for image in house.world.images.values() for tag in image.tags}


def is_as_before(house: House) -> bool:
    box = house.yard.boxes[BIRTH]
    return house.world.runtimes[BIRTH].state is RuntimeState.RUNNING and not box.is_draining


@in_virtual_time
async def test_a_snapshot_holds_the_files_under_its_own_name(ports: Ports) -> None:
    house = await at_work(ports)
    reply = await house.runner.perform(SNAPSHOTTING, COMMIT)
    assert isinstance(reply, ev.SnapshotCommitted)
    assert reply.delta_bytes == 5
    assert tags(house) == {"sandkeeper-i0:sn1"}
    assert house.world.images[reply.image_id].files["/work"] == b"12345"
    assert is_as_before(house)


@in_virtual_time
async def test_the_freeze_is_as_long_as_the_commit(ports: Ports) -> None:
    house = await at_work(ports)
    house.engine.latency_s["commit"] = 2.0
    house.engine.latency_s["sync"] = 30.0
    reply = await house.runner.perform(SNAPSHOTTING, COMMIT)
    assert isinstance(reply, ev.SnapshotCommitted)
    assert reply.freeze_ms == pytest.approx(2000, abs=10)


@in_virtual_time
@pytest.mark.parametrize("after_effect", [False, True])
@pytest.mark.parametrize(
    "verb", ["delta_bytes", "freeze", "commit", "tag", "untag_or_remove_image", "sync", "image"]
)
async def test_a_snapshot_that_fails_at_a_step_did_not_happen(
    ports: Ports, verb: str, after_effect: bool
) -> None:
    house = await at_work(ports)
    house.engine.fail_next(verb, BROKEN, after_effect=after_effect)
    reply = await house.runner.perform(SNAPSHOTTING, COMMIT)
    assert isinstance(reply, ev.SnapshotFailed)
    assert (reply.category, reply.code) == ("Internal", "engine_error")
    assert reply.message.startswith("snapshot sn1: ")
    assert reply.advice
    assert is_as_before(house)
    assert tags(house) == set()
    assert set(house.world.images) == {BASE}


@in_virtual_time
async def test_an_image_that_is_gone_at_the_end_is_no_snapshot(ports: Ports) -> None:
    house = await at_work(ports)

    async def take_away(moment: Any) -> None:
        if (moment.stage, moment.verb) == ("after", "sync"):
            for image_id in set(house.world.images) - {BASE}:
                del house.world.images[image_id]

    house.engine.hook = take_away
    reply = await house.runner.perform(SNAPSHOTTING, COMMIT)
    assert isinstance(reply, ev.SnapshotFailed)
    assert reply.code == "image_missing"


@in_virtual_time
async def test_too_large_is_refused_before_the_freeze(ports: Ports) -> None:
    house = await at_work(ports)
    house.world.runtimes[BIRTH].hole_bytes = MAX_SNAPSHOT_BYTES
    reply = await house.runner.perform(SNAPSHOTTING, COMMIT)
    assert isinstance(reply, ev.SnapshotFailed)
    assert (reply.category, reply.code) == ("PermissionDenied", "snapshot_too_large")
    assert house.sent() == ["untag_or_remove_image", "untag_or_remove_image"]


@in_virtual_time
async def test_a_full_disk_is_said_so(ports: Ports) -> None:
    house = await at_work(ports)
    house.world.is_disk_full = True
    reply = await house.runner.perform(SNAPSHOTTING, COMMIT)
    assert isinstance(reply, ev.SnapshotFailed)
    assert (reply.category, reply.code) == (ResourceExhausted.category, "disk_full")
    assert is_as_before(house)


@in_virtual_time
async def test_a_box_that_does_not_drain_is_not_frozen(ports: Ports) -> None:
    house = await at_work(ports)
    house.yard.boxes[BIRTH].die()
    reply = await house.runner.perform(SNAPSHOTTING, COMMIT)
    assert isinstance(reply, ev.SnapshotFailed)
    assert reply.code == "runtime_unreachable"
    assert "freeze" not in house.sent()


@in_virtual_time
async def test_a_frozen_one_stays_frozen(ports: Ports) -> None:
    house = await at_work(ports)
    house.world.freeze(BIRTH)
    command = COMMIT.model_copy(update={"was_frozen": True})
    reply = await house.runner.perform(SNAPSHOTTING, command)
    assert isinstance(reply, ev.SnapshotCommitted)
    assert reply.freeze_ms == 0
    assert house.world.runtimes[BIRTH].state is RuntimeState.FROZEN
    assert not {"freeze", "thaw"} & set(house.sent())


@in_virtual_time
async def test_a_snapshot_given_up_in_the_middle_thaws(ports: Ports) -> None:
    house = await at_work(ports)
    house.engine.latency_s["commit"] = 5.0
    taking = ports.spawn(house.runner.perform(SNAPSHOTTING, COMMIT), name="snapshot")
    await ports.sleep(1)
    assert house.world.runtimes[BIRTH].state is RuntimeState.FROZEN
    taking.cancel()
    await asyncio.gather(taking, return_exceptions=True)
    assert taking.cancelled()
    assert is_as_before(house)


@in_virtual_time
async def test_an_engine_that_goes_away_in_the_middle_is_a_failure_to_be_looked_at_later(
    ports: Ports,
) -> None:
    house = await at_work(ports)
    house.engine.latency_s["commit"] = 5.0
    taking = ports.spawn(house.runner.perform(SNAPSHOTTING, COMMIT), name="snapshot")
    await ports.sleep(1)
    house.world.stop_engine()
    reply = await taking
    assert isinstance(reply, ev.SnapshotFailed)
    assert (reply.category, reply.code) == ("Unavailable", "engine_unavailable")
