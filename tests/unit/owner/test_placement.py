"""Creates: refused before anything exists, or one sandbox however often they are asked for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sandkeeper.core.admission import Policy
from sandkeeper.core.errors import (
    Aborted,
    AlreadyExists,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    SandkeeperError,
    Unavailable,
)
from sandkeeper.core.ids import SandboxId, SnapshotId
from sandkeeper.core.record import Phase
from sandkeeper.core.sizes import NAMED_SIZES, Size
from tests.unit.owner.town import open_town


async def test_a_create_is_reserved_adopted_and_answered(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        view = await town.create(name="first")
        reservation = await town.catalogue.by_name("first")
        assert reservation is not None
        assert (view["id"], view["phase"], view["name"]) == (reservation.sandbox_id, "running", "first")
        assert reservation.memory_mib == 512


@pytest.mark.parametrize(
    ("wishes", "kind"),
    [
        ({"image": "unheard-of"}, PermissionDenied),
        ({"size": Size(name="custom", vcpu=100, memory_mib=512)}, SandkeeperError),
        ({"snapshot": SnapshotId("sn404")}, NotFound),
        ({"lifetime_s": 1e6}, PermissionDenied),
    ],
)
async def test_a_refusal_creates_nothing(
    tmp_path: Path, wishes: dict[str, Any], kind: type[SandkeeperError]
) -> None:
    async with open_town(tmp_path, policy=Policy(max_lifetime_s=60)) as town:
        fine: dict[str, Any] = {"lifetime_s": 10.0}
        with pytest.raises(kind) as refusal:
            await town.create(**(fine | wishes))
        assert refusal.value.admitted == "no"
        assert await town.taken() == []
        assert (town.calls, town.records(), town.world.runtimes) == ([], [], {})


async def test_a_repeat_gets_the_same_answer_and_makes_nothing(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        first = await town.create()
        assert await town.create() == first
        assert town.calls == ["adopt"]
        await town.destroy(first["id"])
        await town.placement.sweep()
        assert await town.create() == first, "also when the sandbox is gone"


async def test_repeats_at_the_same_time_are_one_sandbox(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        views = await asyncio.gather(*(town.create() for _ in range(4)))
        assert len({view["id"] for view in views}) == 1
        assert len(town.records()) == len(town.world.runtimes) == 1


async def test_a_request_id_with_other_wishes_is_a_conflict(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        await town.create()
        with pytest.raises(AlreadyExists) as conflict:
            await town.create(name="other")
        assert conflict.value.code == "request_id_conflict"
        assert len(town.records()) == 1


async def test_a_repeat_of_a_create_in_progress_makes_no_owner(tmp_path: Path) -> None:
    async with open_town(tmp_path, capacity=1) as town:
        town.failures["adopt"] = [Unavailable("away", code="owner_unreachable", admitted="unknown")]
        with pytest.raises(Unavailable):
            await town.create()
        assert (await town.create())["phase"] == "running"
        assert len(town.houses) == 1


async def test_a_create_whose_owner_is_away_is_left_for_its_repeat(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        town.failures["adopt"] = [Unavailable("away", code="owner_unreachable", admitted="unknown")]
        with pytest.raises(Unavailable) as failure:
            await town.create()
        assert [failure.value.sandbox_id] == await town.taken()
        assert town.calls == ["adopt"]


async def test_a_create_that_fails_is_undone_and_says_so_again(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        town.world.images.clear()
        codes = []
        for _ in range(2):
            with pytest.raises(SandkeeperError) as failure:
                await town.create(name="first")
            codes.append(failure.value.code)
        assert codes == ["image_missing"] * 2
        assert town.calls == ["adopt", "destroy"]
        assert town.world.runtimes == {}
        await town.placement.sweep()
        assert await town.taken() == []


async def test_a_create_the_journal_refused_begins_anew_when_repeated(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        (house,) = town.houses.values()
        house.disk.is_full = True
        with pytest.raises(ResourceExhausted):
            await town.create(name="first")
        assert await town.taken() == []
        house.disk.is_full = False
        view = await town.create(name="first")
        assert view["phase"] == "running"
        assert await town.taken() == [view["id"]], "it is counted"
        assert await town.catalogue.by_name("first") is not None


async def test_a_create_destroyed_before_its_answer_begins_anew(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        first = await town.create()
        (house,) = town.houses.values()
        house.disk.journal("owner.db").answers.clear()
        await town.destroy(first["id"])
        second = await town.create()
        assert second["id"] != first["id"]
        assert await town.taken() == [second["id"]]
        gone, alive = town.records()
        assert (gone.phase, alive.phase) == (Phase.DESTROYED, Phase.RUNNING)


async def test_every_failed_try_is_undone_under_its_own_name(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        for number in range(2):
            town.failures["adopt"] = [Aborted("broke", code="broke", admitted="yes")]
            with pytest.raises(Aborted):
                await town.create(f"r{number}")
        assert await town.taken() == []


async def test_a_name_is_taken_until_its_sandbox_is_gone(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        view = await town.create(name="first")
        with pytest.raises(AlreadyExists) as refusal:
            await town.create("r2", name="first")
        assert refusal.value.code == "name_taken"
        await town.destroy(view["id"])
        assert (await town.create("r2", name="first"))["name"] == "first"


async def test_the_quota_counts_what_lives(tmp_path: Path) -> None:
    async with open_town(tmp_path, policy=Policy(max_sandboxes=1)) as town:
        view = await town.create()
        with pytest.raises(ResourceExhausted) as refusal:
            await town.create("r2")
        assert refusal.value.code == "quota_sandboxes"
        await town.destroy(view["id"])
        assert (await town.create("r2"))["phase"] == "running"


async def test_creates_at_the_same_time_do_not_share_one_place_of_the_quota(tmp_path: Path) -> None:
    async with open_town(tmp_path, policy=Policy(max_sandboxes=2)) as town:
        answers = await asyncio.gather(
            *(town.create(f"r{number}") for number in range(5)), return_exceptions=True
        )
        codes = sorted(getattr(answer, "code", "fine") for answer in answers)
        assert codes == ["fine", "fine"] + ["quota_sandboxes"] * 3
        assert len(town.records()) == 2


async def test_memory_is_swept_before_it_is_refused(tmp_path: Path) -> None:
    policy = Policy(memory_overcommit=600 / 2**16)
    async with open_town(tmp_path, policy=policy) as town:
        view = await town.create()
        with pytest.raises(ResourceExhausted) as refusal:
            await town.create("r2")
        assert refusal.value.code == "machine_memory_full"
        await town.destroy(view["id"])
        assert (await town.create("r2"))["phase"] == "running"


async def test_a_sweep_counts_a_resized_sandbox_as_it_is(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        view = await town.create()
        (house,) = town.houses.values()
        size = NAMED_SIZES["lite"].model_dump()
        await house.call("resize", sandbox_id=view["id"], request_id="resize", size=size)
        await town.placement.sweep()
        assert await town.catalogue.memory_reserved_mib() == 256


async def test_a_sweep_frees_what_no_owner_ever_stored_but_not_at_once(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        town.failures["adopt"] = [Unavailable("away", code="owner_unreachable")]
        with pytest.raises(Unavailable):
            await town.create()
        await town.placement.sweep()
        assert len(await town.taken()) == 1
        town.clock.ahead_s = 61
        await town.placement.sweep()
        assert await town.taken() == []
        assert (await town.create())["phase"] == "running"
        assert len(await town.taken()) == 1


async def test_dedicated_mode_gives_each_sandbox_an_owner(tmp_path: Path) -> None:
    async with open_town(tmp_path, owners=2, capacity=1) as town:
        views = await asyncio.gather(*(town.create(f"r{number}") for number in range(5)))
        rows = [await town.catalogue.by_sandbox(SandboxId(view["id"])) for view in views]
        assert len({row.owner_id for row in rows if row}) == 5
        assert all(view["phase"] == "running" for view in views)


async def test_a_full_owner_is_swept_before_another_is_made(tmp_path: Path) -> None:
    async with open_town(tmp_path, capacity=1) as town:
        view = await town.create()
        await town.destroy(view["id"])
        await town.create("r2")
        assert len(town.houses) == 1


async def test_the_least_loaded_owner_is_chosen(tmp_path: Path) -> None:
    async with open_town(tmp_path, owners=3) as town:
        await asyncio.gather(*(town.create(f"r{number}") for number in range(6)))
        loads = [len(house.disk.journal("owner.db").records) for house in town.houses.values()]
        assert loads == [2, 2, 2]


async def test_an_undo_that_fails_is_left_to_the_sweep(tmp_path: Path) -> None:
    async with open_town(tmp_path) as town:
        town.failures["adopt"] = [Aborted("broke", code="broke", admitted="yes")]
        town.failures["destroy"] = [Unavailable("away", code="owner_unreachable")]
        with pytest.raises(Aborted) as failure:
            await town.create()
        assert failure.value.code == "broke"
        assert len(await town.taken()) == 1
