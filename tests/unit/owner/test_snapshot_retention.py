"""Pins, renewals and states, on a real catalogue."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from sandkeeper.core.errors import DataLoss, NotFound, Unavailable
from sandkeeper.core.ids import SnapshotId, snapshot_image_tag
from tests.unit.owner.house import INSTALLATION
from tests.unit.owner.test_snapshot_catalogue import snapshot_of, unused_snapshot
from tests.unit.owner.town import Town, open_town


async def state(town: Town, snapshot_id: SnapshotId) -> str:
    (listed,) = [view for view in await town.snapshots.views() if view.id == snapshot_id]
    assert listed == await town.snapshots.view(snapshot_id)
    return listed.state


async def left_s(town: Town, snapshot_id: SnapshotId) -> float | None:
    expires_at = (await town.snapshots.view(snapshot_id)).expires_at
    return None if expires_at is None else (expires_at - town.clock.now()) / timedelta(seconds=1)


async def test_a_restore_renews_and_the_row_stays_as_it_was(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        snapshot_id = await unused_snapshot(town, keep_s=1000)
        before = (await town.snapshots.find(snapshot_id)).snapshot
        town.clock.ahead_s = 900
        assert await left_s(town, snapshot_id) == pytest.approx(100, abs=10)
        fork = await town.create("fork", snapshot=snapshot_id)
        assert await left_s(town, snapshot_id) == pytest.approx(1000, abs=10)
        assert (await town.snapshots.find(snapshot_id)).snapshot == before
        await town.destroy(fork["id"])
        town.clock.ahead_s = 1500
        assert await town.snapshots.prune() == []
        town.clock.ahead_s = 2000
        assert await town.snapshots.prune() == [snapshot_id]


async def test_what_is_stood_on_is_renewed_by_every_round(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        source = await town.create("source")
        snapshot_id = await snapshot_of(town, source["id"], keep_s=1000)
        town.clock.ahead_s = 5000
        assert await town.snapshots.prune() == []
        assert await left_s(town, snapshot_id) == pytest.approx(1000, abs=10)


async def test_a_pin_keeps_for_ever_and_an_unpin_for_the_default_time(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        snapshot_id = await unused_snapshot(town, keep_s=10)
        await town.snapshots.retentions.pin(snapshot_id, keep_s=None)
        town.clock.ahead_s = 1e9
        assert await town.snapshots.prune() == []
        assert await left_s(town, snapshot_id) is None
        await town.snapshots.retentions.unpin(snapshot_id)
        assert await left_s(town, snapshot_id) == pytest.approx(30 * 86_400, abs=10)
        town.clock.ahead_s = 2e9
        assert await town.snapshots.prune() == [snapshot_id]


async def test_an_expired_one_is_said_to_be_and_can_still_be_restored(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        snapshot_id = await unused_snapshot(town, keep_s=10)
        assert await state(town, snapshot_id) == "valid"
        town.clock.ahead_s = 11
        assert await state(town, snapshot_id) == "expired"
        await town.create("fork", snapshot=snapshot_id)
        assert await state(town, snapshot_id) == "valid"


async def test_one_whose_image_is_gone_is_missing_and_restores_nothing_else(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        older = await unused_snapshot(town)
        source = await town.create("again")
        snapshot_id = await snapshot_of(town, source["id"])
        await town.destroy(source["id"])
        await town.engine.untag_or_remove_image(snapshot_image_tag(INSTALLATION, snapshot_id))
        assert await state(town, snapshot_id) == "missing"
        assert await state(town, older) == "valid"
        taken = await town.taken()
        with pytest.raises(DataLoss) as refusal:
            await town.create("fork", snapshot=snapshot_id)
        assert refusal.value.code == "snapshot_missing"
        assert await town.taken() == taken
        await town.snapshots.delete(snapshot_id)
        with pytest.raises(NotFound):
            await town.snapshots.view(snapshot_id)


async def test_without_an_engine_the_state_is_unknown(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        snapshot_id = await unused_snapshot(town)
        town.engine.fail_next("list_images", Unavailable("away", code="engine_unavailable"), times=2)
        assert await state(town, snapshot_id) == "unknown"


async def test_stops_keep_their_three_newest_snapshots(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        source = await town.create("source")
        (house,) = town.houses.values()
        for turn in range(5):
            await house.call("stop", sandbox_id=source["id"], request_id=f"stop {turn}", keep="snapshot")
            await house.call("start", sandbox_id=source["id"], request_id=f"start {turn}")
        made = [one.snapshot_id for one in await town.snapshots.valid()]
        assert len(made) == 5
        await town.snapshots.prune()
        assert [one.snapshot_id for one in await town.snapshots.valid()] == made[2:]
        await town.destroy(source["id"])
        town.clock.ahead_s = 31 * 86_400
        await town.snapshots.prune()
        assert await town.snapshots.valid() == []
