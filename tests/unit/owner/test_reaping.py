"""What no record claims goes, and nothing else: the order of reads, and a journal that is missing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sandkeeper.boxd import boot_folder, control_folder
from sandkeeper.containers.engine import RuntimeSettings
from sandkeeper.core.errors import DataLoss, Unavailable
from sandkeeper.core.ids import BirthId, OwnerId
from sandkeeper.core.sizes import NAMED_SIZES
from sandkeeper.owner.config import Config
from sandkeeper.owner.reaping import Reaping
from tests.unit.owner.house import BASE, INSTALLATION
from tests.unit.owner.town import Town, open_town

STRAY = BirthId("sk-stray")
GONE = BirthId("sk-gone")


@asynccontextmanager
async def reaping_in(folder: Path, **options: Any) -> AsyncIterator[tuple[Town, Reaping]]:
    async with open_town(folder, **options) as town:
        yield (
            town,
            Reaping(
                Config(state_dir=folder),
                installation_id=INSTALLATION,
                catalogue=town.catalogue,
                survey=town.survey,
                snapshots=town.snapshots,
                engine=town.engine,
                ports=town.ports,
            ),
        )


def stray(town: Town, birth_id: BirthId = STRAY) -> None:
    settings = RuntimeSettings(
        birth_id=birth_id,
        installation_id=INSTALLATION,
        image_id=BASE,
        size=NAMED_SIZES["lite"],
        boxd_dir="/boxd",
        run_dir=f"/r/{birth_id}",
    )
    town.world.create(settings)


def make_folders(state_dir: Path, birth_id: BirthId) -> None:
    for folder in (boot_folder(state_dir, birth_id=birth_id), control_folder(state_dir, birth_id=birth_id)):
        folder.mkdir(parents=True)


def has_folders(state_dir: Path, birth_id: BirthId) -> bool:
    return boot_folder(state_dir, birth_id=birth_id).exists()


async def test_an_unclaimed_container_goes_when_it_is_old_enough(tmp_path: Path) -> None:
    async with reaping_in(tmp_path) as (town, reaping):
        await town.create()
        stray(town)
        assert (await reaping.reap()).births == ()
        town.clock.ahead_s = 61
        assert (await reaping.reap()).births == (STRAY,)
        assert len(town.world.runtimes) == 1


async def test_a_name_given_up_goes_at_once(tmp_path: Path) -> None:
    async with reaping_in(tmp_path) as (town, reaping):
        view = await town.create()
        await town.destroy(view["id"])
        stray(town, view["birth_id"])
        assert (await reaping.reap()).births == (view["birth_id"],)


async def test_images_of_deleted_snapshots_go_and_valid_ones_stay(tmp_path: Path) -> None:
    async with reaping_in(tmp_path) as (town, reaping):
        view = await town.create()
        (house,) = town.houses.values()
        kept = await house.call("take_snapshot", sandbox_id=view["id"], request_id="sn")
        repository = f"sandkeeper-{INSTALLATION}"
        town.world.add_image("sha256:late", tags=[f"{repository}:pending-sb9-1"])
        town.world.add_image("sha256:lost", tags=[f"{repository}:sn9"])
        town.world.add_image("sha256:other", tags=["sandkeeper-someone:sn9"])
        found = await reaping.reap()
        assert set(found.images) == {f"{repository}:pending-sb9-1", f"{repository}:sn9"}
        tags = {tag for image in town.world.images.values() for tag in image.tags}
        assert tags == {f"{repository}:{kept['id']}", "sandkeeper-someone:sn9"}


async def test_the_image_of_a_snapshot_being_committed_stays(tmp_path: Path) -> None:
    async with reaping_in(tmp_path) as (town, reaping):
        view = await town.create()
        (house,) = town.houses.values()
        house.engine.latency_s["sync"] = 0.05
        taking = house.later("take_snapshot", sandbox_id=view["id"], request_id="sn")
        while not any(verb == "sync" for verb, _ in house.engine.calls):
            await town.ports.sleep(0)
        assert (await reaping.reap()).images == ()
        await taking


async def test_an_owner_that_has_acted_and_has_no_journal_stops_the_round(tmp_path: Path) -> None:
    async with reaping_in(tmp_path, owners=2) as (town, reaping):
        await town.create()
        stray(town)
        make_folders(tmp_path, GONE)
        town.clock.ahead_s = 1000
        owner_id = OwnerId("ow1")
        town.without_file.add(owner_id)
        await town.catalogue.raise_epoch(owner_id, pid=1, start_ticks=1)
        with pytest.raises(DataLoss) as refusal:
            await reaping.reap()
        assert refusal.value.code == "journal_missing"
        assert STRAY in town.world.runtimes
        assert has_folders(tmp_path, GONE)


async def test_an_owner_that_never_acted_needs_no_journal(tmp_path: Path) -> None:
    async with reaping_in(tmp_path, owners=2) as (town, reaping):
        town.without_file.add(OwnerId("ow1"))
        assert (await reaping.reap()).births == ()


async def test_records_are_read_after_the_engine_was_listed(tmp_path: Path) -> None:
    async with reaping_in(tmp_path) as (town, reaping):
        order: list[str] = []
        known_names, listed = town.survey.known_names, town.engine.list_runtimes

        async def read_names(*args: Any) -> Any:
            order.append("records")
            return await known_names(*args)

        async def list_runtimes() -> Any:
            order.append("engine")
            return await listed()

        town.survey.known_names = read_names  # type: ignore[method-assign, assignment]
        town.engine.list_runtimes = list_runtimes  # type: ignore[method-assign]
        await reaping.reap()
        assert order[:2] == ["engine", "records"]


async def test_a_snapshot_committed_between_two_reads_is_in_one_of_them(tmp_path: Path) -> None:
    async with reaping_in(tmp_path) as (town, _):
        view = await town.create()
        (house,) = town.houses.values()
        house.engine.latency_s["commit"] = 0.02
        taking = house.later("take_snapshot", sandbox_id=view["id"], request_id="sn")
        await town.ports.sleep(0.005)
        snapshots = house.journal.snapshots

        async def after_the_commit(*args: Any, **params: Any) -> Any:
            await taking
            return await snapshots(*args, **params)

        object.__setattr__(house, "journal", _With(house.journal, snapshots=after_the_commit))
        known = await town.survey.known_names(await town.catalogue.owners(), frozenset())
        assert (await taking)["id"] in known.snapshots


class _With:
    def __init__(self, base: Any, **changes: Any) -> None:
        self._base = base
        self.__dict__ |= changes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name)


async def test_folders_go_only_when_unclaimed_and_their_container_is_gone(tmp_path: Path) -> None:
    async with reaping_in(tmp_path) as (town, reaping):
        claimed = (await town.create())["birth_id"]
        stray(town)
        for birth_id in (claimed, STRAY, GONE):
            make_folders(tmp_path, birth_id)
        await reaping.reap()
        assert [has_folders(tmp_path, birth_id) for birth_id in (claimed, STRAY, GONE)] == [True, True, False]
        town.clock.ahead_s = 61
        await reaping.reap()
        assert not has_folders(tmp_path, STRAY)
        assert has_folders(tmp_path, claimed)


async def test_a_folder_that_holds_something_else_is_left_and_hinders_nothing(tmp_path: Path) -> None:
    async with reaping_in(tmp_path) as (_, reaping):
        for birth_id in (BirthId("sk-odd"), GONE):
            make_folders(tmp_path, birth_id)
        (boot_folder(tmp_path, birth_id=BirthId("sk-odd")) / "notes").write_text("mine")
        await reaping.reap()
        assert (boot_folder(tmp_path, birth_id=BirthId("sk-odd")) / "notes").read_text() == "mine"
        assert not has_folders(tmp_path, GONE)


async def test_an_engine_that_is_away_ends_the_round_without_a_change(tmp_path: Path) -> None:
    async with reaping_in(tmp_path) as (town, reaping):
        make_folders(tmp_path, GONE)
        town.world.stop_engine()
        with pytest.raises(Unavailable):
            await reaping.reap()
        assert has_folders(tmp_path, GONE)
