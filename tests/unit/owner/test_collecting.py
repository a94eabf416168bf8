"""Clean-up on request: a dry run says what the real one then does."""

from __future__ import annotations

from pathlib import Path

from sandkeeper.core.ids import snapshot_image_tag
from sandkeeper.owner.collecting import UNCLAIMED, collect
from tests.unit.owner.house import INSTALLATION
from tests.unit.owner.test_archives import archives_of, export, import_
from tests.unit.owner.test_reaping import STRAY, reaping_in, stray
from tests.unit.owner.test_snapshot_catalogue import snapshot_of, unused_snapshot


async def test_a_dry_run_names_what_goes_and_why_and_changes_nothing(tmp_path: Path) -> None:
    async with reaping_in(tmp_path) as (town, reaping):
        source = await town.create("source")
        over = await snapshot_of(town, source["id"], keep_s=10)
        await snapshot_of(town, source["id"])
        stray(town)
        stranger = snapshot_image_tag(INSTALLATION, "sn404")  # type: ignore[arg-type]
        town.world.add_image("sha256:stranger", tags=[stranger])
        town.clock.ahead_s = 100
        before = set(town.world.images), set(town.world.runtimes)
        planned = await collect(town.snapshots, reaping, dry_run=True)
        assert {(item.kind, item.name) for item in planned.items} == {
            ("snapshot", over),
            ("container", STRAY),
            ("image", stranger),
        }
        assert [item.why for item in planned.items][1:] == [UNCLAIMED, UNCLAIMED]
        assert planned.items[0].why.startswith("expired at ")
        assert (set(town.world.images), set(town.world.runtimes)) == before
        done = await collect(town.snapshots, reaping, dry_run=False)
        assert {(item.kind, item.name) for item in done.items} == {
            (item.kind, item.name) for item in planned.items
        }
        assert STRAY not in town.world.runtimes
        assert (await collect(town.snapshots, reaping, dry_run=True)).items == ()


async def test_images_of_imports_in_progress_are_claimed(tmp_path: Path) -> None:
    async with reaping_in(tmp_path) as (town, reaping):
        archives = archives_of(town)
        path = tmp_path / "one"
        await archives.export(export(await unused_snapshot(town), path))
        town.engine.latency_s["sync"] = 0.3
        asking = town.ports.spawn(archives.import_(import_(path)), name="import")
        while "sync" not in [verb for verb, _ in town.engine.calls][-1:]:
            await town.ports.sleep(0.01)
        await reaping.reap()
        view = await asking
        await reaping.reap()
        assert (await town.snapshots.view(view.id)).state == "valid"
        await archives.close()
