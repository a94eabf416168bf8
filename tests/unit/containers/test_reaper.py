"""What is garbage, what is not, and in which order it is found out."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from sandkeeper.containers.engine import EngineImage, ListedRuntime
from sandkeeper.containers.reaper import Doomed, KnownNames, doomed, reap_once
from sandkeeper.core.errors import Internal, Unavailable
from sandkeeper.core.ids import BirthId, CommandId, InstallationId, SnapshotId
from sandkeeper.core.observation import RuntimeState
from tests.support.engine_rig import FakeRig

OURS = InstallationId("inst")
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOBODY = KnownNames(frozenset(), frozenset(), frozenset(), frozenset())


def runtime(birth_id: str, *, age_s: float = 0) -> ListedRuntime:
    return ListedRuntime(
        birth_id=BirthId(birth_id), state=RuntimeState.RUNNING, created_at=NOW - timedelta(seconds=age_s)
    )


def image(
    *names: str, image_id: str = "sha256:1", age_s: float = 0, repository: str = "sandkeeper-inst"
) -> EngineImage:
    tags = tuple(f"{repository}:{name}" for name in names)
    return EngineImage(image_id, 1, tags, NOW - timedelta(seconds=age_s))


def verdict(
    *,
    runtimes: list[ListedRuntime] | None = None,
    images: list[EngineImage] | None = None,
    known: KnownNames = NOBODY,
) -> Doomed:
    return doomed(runtimes or [], images or [], known, installation_id=OURS, now=NOW, reap_after_s=60)


class TestRuntimes:
    def test_a_claimed_one_stays_however_old(self) -> None:
        known = replace(NOBODY, births=frozenset({BirthId("sk-1")}))
        assert verdict(runtimes=[runtime("sk-1", age_s=1e6)], known=known).births == ()

    def test_an_unclaimed_one_goes_when_it_is_old_enough(self) -> None:
        found = verdict(runtimes=[runtime("sk-young", age_s=59), runtime("sk-old", age_s=60)])
        assert found.births == ("sk-old",)

    def test_a_given_up_one_goes_at_once(self) -> None:
        known = replace(NOBODY, given_up=frozenset({"sk-1"}))
        assert verdict(runtimes=[runtime("sk-1")], known=known).births == ("sk-1",)

    def test_a_claim_outweighs_a_name_given_up(self) -> None:
        known = replace(NOBODY, births=frozenset({BirthId("sk-1")}), given_up=frozenset({"sk-1"}))
        assert verdict(runtimes=[runtime("sk-1", age_s=1e6)], known=known).births == ()


class TestImages:
    def test_a_pending_image_lives_as_long_as_its_command(self) -> None:
        known = replace(NOBODY, pending=frozenset({CommandId("sb1-4")}))
        images = [image("pending-sb1-4"), image("pending-sb1-3", image_id="sha256:2")]
        assert verdict(images=images, known=known).images == ("sandkeeper-inst:pending-sb1-3",)

    def test_a_pending_name_given_up_goes_though_the_command_is_still_read_as_pending(self) -> None:
        known = replace(
            NOBODY, pending=frozenset({CommandId("sb1-4")}), given_up=frozenset({"pending-sb1-4"})
        )
        assert verdict(images=[image("pending-sb1-4")], known=known).images == (
            "sandkeeper-inst:pending-sb1-4",
        )

    def test_a_snapshot_lives_by_its_row_and_each_reference_is_judged_alone(self) -> None:
        known = replace(NOBODY, snapshots=frozenset({SnapshotId("sn1")}))
        found = verdict(
            images=[image("sn1", "pending-sb1-4"), image("sn2", image_id="sha256:2")], known=known
        )
        assert found.images == ("sandkeeper-inst:pending-sb1-4", "sandkeeper-inst:sn2")

    def test_references_outside_our_repository_are_never_touched(self) -> None:
        foreign = image("sn1", repository="sandkeeper-other")
        both = EngineImage("sha256:2", 1, ("mine:latest", "sandkeeper-inst:sn9"), NOW)
        assert verdict(images=[foreign, both]).images == ("sandkeeper-inst:sn9",)

    def test_one_that_lost_its_tags_goes_when_it_is_old_enough(self) -> None:
        images = [image(image_id="sha256:young", age_s=59), image(image_id="sha256:old", age_s=60)]
        assert verdict(images=images).images == ("sha256:old",)


class TestRound:
    @pytest.fixture
    def rig(self) -> FakeRig:
        return FakeRig()

    async def reap(self, rig: FakeRig, known: KnownNames = NOBODY, *, age_s: float = 0) -> Doomed:
        async def read_known() -> KnownNames:
            return known

        return await reap_once(
            rig.engine,
            installation_id=rig.installation_id,
            read_known=read_known,
            now=rig.ports.clock.now,
            reap_after_s=age_s,
        )

    async def test_the_engine_is_listed_before_the_records_are_read(self, rig: FakeRig) -> None:
        """A claim made after the listing cannot be missed: its container is not in the list."""
        settings = rig.settings()

        async def claim_and_create() -> KnownNames:
            await rig.engine.create(settings)
            return NOBODY

        found = await reap_once(
            rig.engine,
            installation_id=rig.installation_id,
            read_known=claim_and_create,
            now=rig.ports.clock.now,
            reap_after_s=0,
        )
        assert found == Doomed((), ())
        assert rig.has_container(settings.birth_id)

    async def test_garbage_goes_and_a_second_round_finds_nothing(self, rig: FakeRig) -> None:
        kept, lost = rig.settings(), rig.settings()
        for settings in (kept, lost):
            await rig.engine.create(settings)
            await rig.engine.start(settings.birth_id)
        await rig.engine.commit(lost.birth_id, tag=f"{rig.repository}:pending-sb1-1")
        known = replace(NOBODY, births=frozenset({kept.birth_id}))
        assert await self.reap(rig, known) == Doomed((lost.birth_id,), (f"{rig.repository}:pending-sb1-1",))
        assert set(rig.world.runtimes) == {kept.birth_id}
        assert set(rig.world.images) == {rig.image_id}
        assert await self.reap(rig, known) == Doomed((), ())

    async def test_an_image_under_a_runtime_waits_for_it(self, rig: FakeRig) -> None:
        source = rig.settings()
        await rig.engine.create(source)
        image_id = await rig.engine.commit(source.birth_id, tag=f"{rig.repository}:sn1")
        standing = replace(rig.settings(), image_id=image_id)
        await rig.engine.create(standing)
        known = replace(NOBODY, births=frozenset({source.birth_id, standing.birth_id}))
        assert await self.reap(rig, known) == Doomed((), ())
        assert image_id in rig.world.images
        await rig.engine.remove(standing.birth_id)
        assert (await self.reap(rig, known)).images == (f"{rig.repository}:sn1",)

    async def test_what_cannot_be_removed_does_not_keep_the_rest(self, rig: FakeRig) -> None:
        first, second = rig.settings(), rig.settings()
        for settings in (first, second):
            await rig.engine.create(settings)
        rig.engine.fail_next("remove", Internal("busy", code="engine_error"))
        assert (await self.reap(rig)).births == (second.birth_id,)
        assert (await self.reap(rig)).births == (first.birth_id,)

    async def test_an_engine_that_is_away_ends_the_round(self, rig: FakeRig) -> None:
        rig.world.stop_engine()
        with pytest.raises(Unavailable):
            await self.reap(rig)


def test_what_a_pending_command_flattens_through_stays_and_goes_with_it() -> None:
    known = replace(NOBODY, pending=frozenset({CommandId("sb1-4")}))
    left = {"runtimes": [runtime("flat-sb1-4", age_s=600)], "images": [image("flat-sb1-4")]}
    assert verdict(**left, known=known) == Doomed((), ())  # type: ignore[arg-type]
    assert verdict(**left) == Doomed((BirthId("flat-sb1-4"),), ("sandkeeper-inst:flat-sb1-4",))  # type: ignore[arg-type]
