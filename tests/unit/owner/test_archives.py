"""Exports and imports on a fake engine: what is refused, what a cut leaves, whose row it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandkeeper.containers.shelf import AnyShelf
from sandkeeper.core.admission import CatalogueImage
from sandkeeper.core.errors import DataLoss, Internal, InvalidArgument, NotFound
from sandkeeper.core.ids import MachineId, RequestId, SnapshotId
from sandkeeper.core.snapshot_verbs import ExportSnapshot, ImportSnapshot
from sandkeeper.owner.archives import Archives
from tests.unit.owner.house import INSTALLATION
from tests.unit.owner.test_snapshot_catalogue import snapshot_of, unused_snapshot
from tests.unit.owner.town import Town, open_town

MONTH_S = 30 * 86_400.0


class OtherShelf(AnyShelf):
    """A shelf whose images have been built anew."""

    async def find(self, name: str) -> CatalogueImage | None:
        return CatalogueImage(name=name, image_id="sha256:another")


def archives_of(town: Town, *, shelf: AnyShelf | None = None) -> Archives:
    return Archives(
        installation_id=INSTALLATION,
        machine_id=MachineId("m0"),
        default_keep_s=MONTH_S,
        catalogue=town.catalogue,
        snapshots=town.snapshots,
        shelf=shelf or AnyShelf(),
        engine=town.engine,
        ports=town.ports,
    )


def export(snapshot_id: SnapshotId, path: Path, *, request_id: str = "e1") -> ExportSnapshot:
    return ExportSnapshot(request_id=RequestId(request_id), snapshot_id=snapshot_id, path=str(path))


def import_(path: Path, *, request_id: str = "i1", name: str | None = None) -> ImportSnapshot:
    return ImportSnapshot(request_id=RequestId(request_id), path=str(path), name=name)


@asynccontextmanager
async def exported(folder: Path) -> AsyncIterator[tuple[Town, Archives, SnapshotId, Path]]:
    """Yield a town whose one snapshot is in an archive."""
    path = folder / "one.snapshot"
    async with open_town(folder) as town:
        snapshot_id = await unused_snapshot(town)
        archives = archives_of(town)
        await archives.export(export(snapshot_id, path))
        yield town, archives, snapshot_id, path
        await archives.close()


def names(town: Town) -> set[str]:
    return {tag for image in town.world.images.values() for tag in image.tags}


async def test_a_snapshot_comes_back_from_its_archive_alone(tmp_path: Path) -> None:
    async with exported(tmp_path) as (town, archives, snapshot_id, path):
        image_id = (await town.snapshots.find(snapshot_id)).snapshot.boot.image_id
        await town.snapshots.delete(snapshot_id)
        assert image_id not in town.world.images
        view = await archives.import_(import_(path, name="back"))
        assert view.id != snapshot_id
        assert (view.name, view.state, view.parent) == ("back", "valid", None)
        assert [one.snapshot_id for one in await town.snapshots.valid()] == [view.id]
        fork = await town.create("fork", snapshot=view.id)
        assert fork["boot_snapshot"] == view.id
        with pytest.raises(Exception, match="snapshot_in_use"):
            await town.snapshots.delete(view.id)
        await town.destroy(fork["id"])
        await town.snapshots.delete(view.id)
        assert await town.snapshots.valid() == []
        assert image_id not in town.world.images


async def test_it_may_be_imported_beside_itself(tmp_path: Path) -> None:
    async with exported(tmp_path) as (town, archives, snapshot_id, path):
        view = await archives.import_(import_(path))
        assert {one.snapshot_id for one in await town.snapshots.valid()} == {snapshot_id, view.id}
        await town.snapshots.delete(snapshot_id)
        assert (await town.snapshots.view(view.id)).state == "valid"


async def test_a_repeat_finds_the_first(tmp_path: Path) -> None:
    async with exported(tmp_path) as (town, archives, snapshot_id, path):
        first, second = await asyncio.gather(*(archives.import_(import_(path)) for _ in range(2)))
        assert first.id == second.id
        again = archives_of(town)
        assert (await again.import_(import_(path))).id == first.id
        repeated = await archives.export(export(snapshot_id, path))
        assert repeated.path == str(path)
        assert len(await town.catalogue.imports()) == 1


async def test_another_base_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    async with exported(tmp_path) as (town, _, _snapshot_id, path):
        before = dict(town.world.images)
        with pytest.raises(InvalidArgument) as refusal:
            await archives_of(town, shelf=OtherShelf()).import_(import_(path))
        assert refusal.value.code == "snapshot_image_mismatch"
        assert town.world.images == before
        assert await town.catalogue.imports() == []


async def test_a_damaged_archive_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    async with exported(tmp_path) as (town, archives, _snapshot_id, path):
        body = bytearray(path.read_bytes())
        body[700] ^= 1
        path.write_bytes(body)
        town.engine.calls.clear()
        with pytest.raises(DataLoss) as refusal:
            await archives.import_(import_(path))
        assert refusal.value.code == "archive_damaged"
        assert "load_image" not in [verb for verb, _ in town.engine.calls]
        path.unlink()
        with pytest.raises(NotFound):
            await archives.import_(import_(path, request_id="i2"))


@pytest.mark.parametrize("verb", ["load_image", "tag", "sync"])
async def test_an_import_that_fails_leaves_nothing(tmp_path: Path, verb: str) -> None:
    async with exported(tmp_path) as (town, archives, snapshot_id, path):
        await town.snapshots.delete(snapshot_id)
        before = set(town.world.images)
        town.engine.fail_next(verb, Internal("it broke", code="engine_error"), after_effect=True)
        with pytest.raises(Internal):
            await archives.import_(import_(path))
        assert set(town.world.images) == before
        assert await town.catalogue.imports() == []
        assert (await archives.import_(import_(path))).state == "valid"


@pytest.mark.parametrize("verb", ["load_image", "tag", "sync"])
async def test_an_import_cut_by_the_end_of_its_directory_did_not_happen(tmp_path: Path, verb: str) -> None:
    async with exported(tmp_path) as (town, archives, snapshot_id, path):
        await town.snapshots.delete(snapshot_id)
        before = set(town.world.images)
        town.engine.latency_s[verb] = 0.2
        asking = asyncio.ensure_future(archives.import_(import_(path)))
        while verb not in [called for called, _ in town.engine.calls]:
            await asyncio.sleep(0)
        await archives.close()
        await asyncio.gather(asking, return_exceptions=True)
        await town.engine.settle()
        (row,) = await town.catalogue.imports()
        assert await town.snapshots.valid() == []
        assert row.snapshot_id in await town.snapshots.named()
        await archives_of(town).recover()
        assert set(town.world.images) == before
        assert await town.catalogue.imports() == []


async def test_an_export_of_what_is_gone_is_told_apart(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        source = await town.create("source")
        snapshot_id = await snapshot_of(town, source["id"])
        await town.destroy(source["id"])
        archives = archives_of(town)
        with pytest.raises(NotFound):
            await archives.export(export(SnapshotId("sn404"), tmp_path / "none"))
        await town.engine.untag_or_remove_image(f"sandkeeper-{INSTALLATION}:{snapshot_id}")
        with pytest.raises(DataLoss) as missing:
            await archives.export(export(snapshot_id, tmp_path / "none", request_id="e2"))
        assert missing.value.code == "snapshot_missing"
        assert not list(tmp_path.glob("*none*"))
        await archives.close()
