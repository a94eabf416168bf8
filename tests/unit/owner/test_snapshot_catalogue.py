"""Snapshots across owners: who uses them, how they go, what a create in progress holds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sandkeeper.core.errors import FailedPrecondition, NotFound, Unavailable
from sandkeeper.core.ids import SnapshotId
from sandkeeper.store.catalogue_entries import TombstoneState
from tests.unit.owner.town import Town, open_town

SN404 = SnapshotId("sn404")


async def snapshot_of(town: Town, sandbox_id: str, **wishes: Any) -> SnapshotId:
    house = next(iter(town.houses.values()))
    view = await house.call(
        "take_snapshot",
        sandbox_id=sandbox_id,
        request_id=f"sn {sandbox_id} {len(town.world.images)}",
        **wishes,
    )
    return SnapshotId(view["id"])


async def unused_snapshot(town: Town, **wishes: Any) -> SnapshotId:
    source = await town.create("source")
    snapshot_id = await snapshot_of(town, source["id"], **wishes)
    await town.destroy(source["id"])
    return snapshot_id


async def test_a_snapshot_outlives_its_sandbox_and_can_be_forked(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        snapshot_id = await unused_snapshot(town)
        found = await town.snapshots.find(snapshot_id)
        assert (found.image, found.snapshot.snapshot_id) == ("base", snapshot_id)
        view = await town.create("fork", snapshot=snapshot_id)
        assert (view["boot_snapshot"], view["image"]) == (snapshot_id, "base")


async def test_a_snapshot_in_use_is_not_deleted_and_its_users_are_named(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        snapshot_id = await unused_snapshot(town)
        fork = await town.create("fork", snapshot=snapshot_id)
        with pytest.raises(FailedPrecondition) as refusal:
            await town.snapshots.delete(snapshot_id)
        assert refusal.value.code == "snapshot_in_use"
        assert refusal.value.details["sandboxes"] == [fork["id"]]
        assert [valid.snapshot_id for valid in await town.snapshots.valid()] == [snapshot_id]
        await town.destroy(fork["id"])
        await town.snapshots.delete(snapshot_id)


async def test_the_source_stands_on_its_last_snapshot(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        source = await town.create("source")
        first = await snapshot_of(town, source["id"])
        second = await snapshot_of(town, source["id"])
        with pytest.raises(FailedPrecondition):
            await town.snapshots.delete(second)
        await town.snapshots.delete(first)


async def test_a_deleted_snapshot_is_gone_for_everyone_and_can_be_deleted_again(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        snapshot_id = await unused_snapshot(town)
        for _ in range(2):
            await town.snapshots.delete(snapshot_id)
        assert await town.snapshots.valid() == []
        assert await town.snapshots.gone() == {snapshot_id}
        with pytest.raises(NotFound):
            await town.snapshots.find(snapshot_id)
        with pytest.raises(NotFound):
            await town.create("fork", snapshot=snapshot_id)
        assert not any(snapshot_id in tag for image in town.world.images.values() for tag in image.tags)


async def test_a_snapshot_that_never_was(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        for verb in (town.snapshots.find, town.snapshots.delete):
            with pytest.raises(NotFound) as refusal:
                await verb(SN404)
            assert refusal.value.code == "snapshot_not_found"
        assert await town.catalogue.tombstones() == []


async def test_an_engine_that_is_away_leaves_the_deletion_to_be_repeated(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        snapshot_id = await unused_snapshot(town)
        town.world.stop_engine()
        with pytest.raises(Unavailable):
            await town.snapshots.delete(snapshot_id)
        assert await town.snapshots.valid() == [], "it counts as deleted"
        town.world.start_engine()
        await town.snapshots.delete(snapshot_id)
        tombstone = await town.catalogue.tombstone(snapshot_id)
        assert tombstone is not None
        assert tombstone.state is TombstoneState.DELETED


async def test_a_create_in_progress_holds_its_snapshot(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        snapshot_id = await unused_snapshot(town)
        with town.snapshots.lease(snapshot_id):
            with pytest.raises(FailedPrecondition) as refusal:
                await town.snapshots.delete(snapshot_id)
            assert refusal.value.code == "snapshot_in_use"
        await town.snapshots.delete(snapshot_id)


async def test_a_create_that_ends_while_the_records_are_read_still_counts(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        snapshot_id = await unused_snapshot(town)
        reading, go_on = asyncio.Event(), asyncio.Event()
        users = town.survey.users

        async def slow_users(*args: Any) -> Any:
            found = await users(*args)
            reading.set()
            await go_on.wait()
            return found

        town.survey.users = slow_users  # type: ignore[method-assign, assignment]
        with town.snapshots.lease(snapshot_id):
            deleting = town.ports.spawn(town.snapshots.delete(snapshot_id), name="delete")
            await reading.wait()
        go_on.set()
        with pytest.raises(FailedPrecondition):
            await deleting


async def test_no_create_begins_on_a_snapshot_that_is_being_deleted(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        snapshot_id = await unused_snapshot(town)
        reading, go_on = asyncio.Event(), asyncio.Event()
        users = town.survey.users

        async def slow_users(*args: Any) -> Any:
            reading.set()
            await go_on.wait()
            return await users(*args)

        town.survey.users = slow_users  # type: ignore[method-assign, assignment]
        deleting = town.ports.spawn(town.snapshots.delete(snapshot_id), name="delete")
        await reading.wait()
        with pytest.raises(NotFound):
            await town.create("fork", snapshot=snapshot_id)
        go_on.set()
        await deleting


async def test_a_lease_of_nothing_holds_nothing(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        with town.snapshots.lease(None):
            pass


async def test_expired_snapshots_are_pruned_unless_used(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        source = await town.create("source")
        used = await snapshot_of(town, source["id"], keep_s=100)
        fork = await town.create("fork", snapshot=used)
        free = await snapshot_of(town, source["id"], keep_s=100)
        fresh = await snapshot_of(town, source["id"], keep_s=1000)
        await town.destroy(source["id"])
        await town.snapshots.prune()
        assert len(await town.snapshots.valid()) == 3
        town.clock.ahead_s = 101
        await town.snapshots.prune()
        assert [left.snapshot_id for left in await town.snapshots.valid()] == [used, fresh]
        assert free in await town.snapshots.gone()
        await town.destroy(fork["id"])
        await town.snapshots.prune()
        assert [left.snapshot_id for left in await town.snapshots.valid()] == [used, fresh]
        town.clock.ahead_s = 202
        await town.snapshots.prune()
        assert [left.snapshot_id for left in await town.snapshots.valid()] == [fresh]
