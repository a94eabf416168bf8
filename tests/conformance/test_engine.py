"""What every engine promises: the same suite for the fake one and the real one."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from sandkeeper.containers.engine import RuntimeSettings
from sandkeeper.core.errors import AlreadyExists, DataLoss, FailedPrecondition, NotFound, Unavailable
from sandkeeper.core.ids import BirthId, new_birth_id
from sandkeeper.core.observation import RuntimeObservation, RuntimeState
from sandkeeper.core.sizes import Size
from tests.support.engine_rig import EngineRig, FakeRig

NOBODY = BirthId("sk-nobody-is-called-so")


@pytest.fixture(params=["fake", pytest.param("docker", marks=pytest.mark.docker)])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[EngineRig]:
    made: EngineRig = FakeRig() if request.param == "fake" else request.getfixturevalue("make_docker_rig")()
    yield made
    await made.close()


async def started(rig: EngineRig, *, play: str = "pause") -> RuntimeSettings:
    settings = rig.settings(play=play)
    await rig.engine.create(settings)
    await rig.engine.start(settings.birth_id)
    return settings


async def seen(rig: EngineRig, settings: RuntimeSettings) -> RuntimeObservation:
    observation = await rig.engine.inspect(settings.birth_id)
    assert observation is not None
    return observation


async def prints(rig: EngineRig, settings: RuntimeSettings, text: str) -> str:
    """Wait until process 1 has printed `text`; return the end of its output."""
    while True:
        tail = await rig.engine.output_tail(settings.birth_id, max_bytes=65536)
        if text in tail:
            return tail
        await asyncio.sleep(0.01)


class TestCreate:
    async def test_a_created_container_is_seen_and_listed_and_not_running(self, rig: EngineRig) -> None:
        settings = rig.settings()
        before = datetime.now(UTC) - timedelta(seconds=2)
        await rig.engine.create(settings)
        assert await seen(rig, settings) == RuntimeObservation(
            birth_id=settings.birth_id, state=RuntimeState.CREATED
        )
        (listed,) = await rig.engine.list_runtimes()
        assert (listed.birth_id, listed.state) == (settings.birth_id, RuntimeState.CREATED)
        assert before <= listed.created_at <= datetime.now(UTC) + timedelta(seconds=1)

    async def test_a_repeat_is_success_and_changes_nothing(self, rig: EngineRig) -> None:
        settings = await started(rig)
        first = await seen(rig, settings)
        await rig.engine.create(settings)
        assert await seen(rig, settings) == first

    async def test_many_at_once_make_one(self, rig: EngineRig) -> None:
        settings = rig.settings()
        await asyncio.gather(*(rig.engine.create(settings) for _ in range(5)))
        assert len(await rig.engine.list_runtimes()) == 1

    async def test_a_cancelled_caller_waits_until_the_call_has_ended(self, rig: EngineRig) -> None:
        settings = rig.settings()
        creating = asyncio.create_task(rig.engine.create(settings))
        await asyncio.sleep(0.005)
        creating.cancel()
        await asyncio.wait({creating})
        was_there = rig.has_container(settings.birth_id)
        await asyncio.sleep(0.05)
        assert rig.has_container(settings.birth_id) == was_there
        await rig.engine.create(settings)
        assert (await seen(rig, settings)).state is RuntimeState.CREATED

    async def test_a_missing_image_is_data_loss_and_makes_nothing(self, rig: EngineRig) -> None:
        settings = rig.settings()
        wrong = RuntimeSettings(
            settings.birth_id,
            settings.installation_id,
            f"sha256:{'1' * 64}",
            settings.size,
            settings.boxd_dir,
            settings.run_dir,
        )
        with pytest.raises(DataLoss) as caught:
            await rig.engine.create(wrong)
        assert caught.value.code == "image_missing"
        assert await rig.engine.list_runtimes() == []

    async def test_a_name_taken_by_somebody_else_is_left_alone(self, rig: EngineRig) -> None:
        settings = rig.settings()
        rig.make_foreign(settings.birth_id)
        with pytest.raises(AlreadyExists) as caught:
            await rig.engine.create(settings)
        assert caught.value.code == "name_conflict"
        assert await rig.engine.inspect(settings.birth_id) is None
        await rig.engine.remove(settings.birth_id)
        assert rig.has_container(settings.birth_id)

    async def test_one_installation_does_not_see_the_other(self, rig: EngineRig) -> None:
        settings = rig.settings()
        await rig.engine.create(settings)
        neighbour = rig.neighbour()
        assert await neighbour.list_runtimes() == []
        assert await neighbour.inspect(settings.birth_id) is None
        await neighbour.remove(settings.birth_id)
        assert (await seen(rig, settings)).state is RuntimeState.CREATED


class TestStartAndExit:
    async def test_start_gives_a_pid_and_a_repeat_keeps_it(self, rig: EngineRig) -> None:
        settings = await started(rig)
        first = await seen(rig, settings)
        assert first.state is RuntimeState.RUNNING
        assert first.pid is not None
        await rig.engine.start(settings.birth_id)
        assert await seen(rig, settings) == first

    async def test_a_killed_one_has_exited_and_starts_again_with_its_files(self, rig: EngineRig) -> None:
        settings = await started(rig)
        pid = (await seen(rig, settings)).pid
        assert pid is not None
        rig.write(settings.birth_id, "/mine.txt", b"mine")
        await rig.kill(settings.birth_id)
        await rig.engine.wait_exit(settings.birth_id, pid)
        while (dead := await seen(rig, settings)).state is not RuntimeState.EXITED:
            await asyncio.sleep(0.01)
        assert (dead.exit_code, dead.pid, dead.oom_killed) == (137, None, False)
        (listed,) = await rig.engine.list_runtimes()
        assert (listed.state, listed.exit_code) == (RuntimeState.EXITED, 137)
        await rig.engine.start(settings.birth_id)
        again = await seen(rig, settings)
        assert again.state is RuntimeState.RUNNING
        assert again.pid not in (None, pid)
        assert rig.read(settings.birth_id, "/mine.txt") == b"mine"

    async def test_wait_exit_ends_with_the_process_and_not_before(self, rig: EngineRig) -> None:
        settings = await started(rig)
        pid = (await seen(rig, settings)).pid
        assert pid is not None
        waiting = asyncio.create_task(rig.engine.wait_exit(settings.birth_id, pid))
        await rig.engine.freeze(settings.birth_id)
        assert not waiting.done()
        await rig.engine.thaw(settings.birth_id)
        assert not waiting.done()
        await rig.kill(settings.birth_id)
        await asyncio.wait_for(waiting, 5)
        await asyncio.wait_for(rig.engine.wait_exit(settings.birth_id, pid), 5)

    async def test_wait_exit_of_a_process_that_is_another_returns_at_once(self, rig: EngineRig) -> None:
        one, other = await started(rig), await started(rig)
        pid = (await seen(rig, other)).pid
        assert pid is not None
        await asyncio.wait_for(rig.engine.wait_exit(one.birth_id, pid), 5)
        await asyncio.wait_for(rig.engine.wait_exit(one.birth_id, 1), 5)

    async def test_a_cancelled_wait_ends(self, rig: EngineRig) -> None:
        settings = await started(rig)
        pid = (await seen(rig, settings)).pid
        assert pid is not None
        waiting = asyncio.create_task(rig.engine.wait_exit(settings.birth_id, pid))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting}, timeout=5)
        assert waiting.cancelled()
        assert (await seen(rig, settings)).state is RuntimeState.RUNNING

    async def test_a_frozen_one_cannot_be_started(self, rig: EngineRig) -> None:
        settings = await started(rig)
        await rig.engine.freeze(settings.birth_id)
        with pytest.raises(FailedPrecondition) as caught:
            await rig.engine.start(settings.birth_id)
        assert caught.value.code == "runtime_frozen"

    async def test_stop_ends_and_keeps_it_and_a_repeat_is_success(self, rig: EngineRig) -> None:
        settings = await started(rig)
        await prints(rig, settings, "ready")
        for _ in range(2):
            await rig.engine.stop(settings.birth_id, grace_s=5)
            observation = await seen(rig, settings)
            assert (observation.state, observation.exit_code) == (RuntimeState.EXITED, 0)

    async def test_stop_of_a_frozen_one(self, rig: EngineRig) -> None:
        settings = await started(rig)
        await rig.engine.freeze(settings.birth_id)
        await rig.engine.stop(settings.birth_id, grace_s=0)
        assert (await seen(rig, settings)).state is RuntimeState.EXITED

    async def test_stop_of_one_never_started(self, rig: EngineRig) -> None:
        settings = rig.settings()
        await rig.engine.create(settings)
        await rig.engine.stop(settings.birth_id, grace_s=0)
        assert (await seen(rig, settings)).state is RuntimeState.CREATED


class TestFreeze:
    async def test_freeze_and_thaw_may_be_repeated(self, rig: EngineRig) -> None:
        settings = await started(rig)
        pid = (await seen(rig, settings)).pid
        for _ in range(2):
            await rig.engine.freeze(settings.birth_id)
            assert (await seen(rig, settings)).state is RuntimeState.FROZEN
        for _ in range(2):
            await rig.engine.thaw(settings.birth_id)
            assert (await seen(rig, settings)).state is RuntimeState.RUNNING
        assert (await seen(rig, settings)).pid == pid

    async def test_only_what_lives_can_be_frozen_or_thawed(self, rig: EngineRig) -> None:
        settings = rig.settings()
        await rig.engine.create(settings)
        for verb in (rig.engine.freeze, rig.engine.thaw):
            with pytest.raises(FailedPrecondition) as caught:
                await verb(settings.birth_id)
            assert caught.value.code == "runtime_not_running"

    @pytest.mark.parametrize("way_out", ["thaw", "stop", "remove"])
    async def test_one_killed_while_frozen_is_gone_after_its_thaw_at_the_latest(
        self, rig: EngineRig, way_out: str
    ) -> None:
        """With cgroup v1 a frozen process keeps even SIGKILL waiting; with v2 it dies at once."""
        settings = await started(rig)
        pid = (await seen(rig, settings)).pid
        assert pid is not None
        await rig.engine.freeze(settings.birth_id)
        await rig.kill(settings.birth_id)
        if way_out == "thaw":
            with contextlib.suppress(FailedPrecondition):
                await rig.engine.thaw(settings.birth_id)
        elif way_out == "stop":
            await rig.engine.stop(settings.birth_id, grace_s=5)
        else:
            await rig.engine.remove(settings.birth_id)
        await asyncio.wait_for(rig.engine.wait_exit(settings.birth_id, pid), 5)


class TestRemove:
    @pytest.mark.parametrize("state", ["created", "running", "frozen", "exited"])
    async def test_nothing_is_left_from_any_state(self, rig: EngineRig, state: str) -> None:
        settings = rig.settings()
        await rig.engine.create(settings)
        if state != "created":
            await rig.engine.start(settings.birth_id)
        if state == "frozen":
            await rig.engine.freeze(settings.birth_id)
        if state == "exited":
            await rig.engine.stop(settings.birth_id, grace_s=0)
        assert (await seen(rig, settings)).state.value == state
        await rig.engine.remove(settings.birth_id)
        assert await rig.engine.inspect(settings.birth_id) is None
        assert await rig.engine.list_runtimes() == []
        assert await rig.engine.output_tail(settings.birth_id, max_bytes=100) == ""
        await rig.engine.remove(settings.birth_id)

    async def test_several_at_once(self, rig: EngineRig) -> None:
        settings = await started(rig)
        await asyncio.gather(*(rig.engine.remove(settings.birth_id) for _ in range(4)))
        assert not rig.has_container(settings.birth_id)


async def test_what_is_not_there_is_not_found(rig: EngineRig) -> None:
    calls = [
        rig.engine.start(NOBODY),
        rig.engine.freeze(NOBODY),
        rig.engine.thaw(NOBODY),
        rig.engine.stop(NOBODY, grace_s=0),
        rig.engine.update(NOBODY, rig.settings().size),
        rig.engine.delta_bytes(NOBODY),
        rig.engine.commit(NOBODY, tag=f"{rig.repository}:pending-x-1"),
    ]
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(answer, NotFound)
        assert answer.code == "runtime_missing"
    assert await rig.engine.inspect(NOBODY) is None
    assert await rig.engine.list_images() == []


@pytest.mark.parametrize("state", ["created", "running", "frozen", "exited"])
async def test_limits_go_up_and_down_in_any_state(rig: EngineRig, state: str) -> None:
    settings = rig.settings()
    await rig.engine.create(settings)
    if state != "created":
        await rig.engine.start(settings.birth_id)
    if state == "frozen":
        await rig.engine.freeze(settings.birth_id)
    if state == "exited":
        await rig.engine.stop(settings.birth_id, grace_s=0)
    for memory_mib, vcpu in ((512, 2.0), (48, 0.25), (2048, 1.5)):
        await rig.engine.update(
            settings.birth_id, Size(name="custom", vcpu=vcpu, memory_mib=memory_mib, pids=160 + memory_mib)
        )
    assert (await seen(rig, settings)).state.value == state


class TestImages:
    async def test_delta_counts_what_was_written(self, rig: EngineRig) -> None:
        settings = await started(rig)
        empty = await rig.engine.delta_bytes(settings.birth_id)
        assert empty < 1000
        rig.write(settings.birth_id, "/big", b"x" * 300_000)
        assert 300_000 <= await rig.engine.delta_bytes(settings.birth_id) - empty < 310_000

    async def test_a_commit_holds_the_files_and_the_source_goes_on(self, rig: EngineRig) -> None:
        source = await started(rig)
        rig.write(source.birth_id, "/mine.txt", b"mine")
        before = await seen(rig, source)
        tag = f"{rig.repository}:pending-sb1-1"
        image_id = await rig.engine.commit(source.birth_id, tag=tag)
        assert await seen(rig, source) == before
        rig.write(source.birth_id, "/mine.txt", b"later")
        image = await rig.engine.image(tag)
        assert image is not None
        assert (image.image_id, image.tags) == (image_id, (tag,))
        assert image.size_bytes > 0
        assert await rig.engine.image(image_id) == image
        assert [found.image_id for found in await rig.engine.list_images()] == [image_id]
        await rig.engine.sync()
        copy = rig.settings()
        await rig.engine.create(
            RuntimeSettings(
                copy.birth_id, copy.installation_id, image_id, copy.size, copy.boxd_dir, copy.run_dir
            )
        )
        assert rig.read(copy.birth_id, "/mine.txt") == b"mine"
        assert rig.read(copy.birth_id, "/base.txt") == b"from the image\n"

    @pytest.mark.parametrize("state", ["frozen", "exited", "created"])
    async def test_a_commit_of_one_that_stands_still(self, rig: EngineRig, state: str) -> None:
        settings = rig.settings()
        await rig.engine.create(settings)
        rig.write(settings.birth_id, "/mine.txt", b"mine")
        if state != "created":
            await rig.engine.start(settings.birth_id)
        if state == "frozen":
            await rig.engine.freeze(settings.birth_id)
        if state == "exited":
            await rig.engine.stop(settings.birth_id, grace_s=0)
        await rig.engine.commit(settings.birth_id, tag=f"{rig.repository}:sn1")
        assert (await seen(rig, settings)).state.value == state

    async def test_a_repeated_commit_takes_the_tag_and_leaves_the_old_image_listed(
        self, rig: EngineRig
    ) -> None:
        settings = await started(rig)
        tag = f"{rig.repository}:pending-sb1-1"
        first = await rig.engine.commit(settings.birth_id, tag=tag)
        rig.write(settings.birth_id, "/mine.txt", b"mine")
        second = await rig.engine.commit(settings.birth_id, tag=tag)
        assert first != second
        tags = {image.image_id: image.tags for image in await rig.engine.list_images()}
        assert tags == {first: (), second: (tag,)}
        await rig.engine.untag_or_remove_image(first)
        assert await rig.engine.image(first) is None

    async def test_an_image_lives_as_long_as_it_has_a_tag(self, rig: EngineRig) -> None:
        settings = await started(rig)
        pending, kept = f"{rig.repository}:pending-sb1-1", f"{rig.repository}:sn1"
        image_id = await rig.engine.commit(settings.birth_id, tag=pending)
        for _ in range(2):
            await rig.engine.tag(image_id, kept)
        for _ in range(2):
            await rig.engine.untag_or_remove_image(pending)
        image = await rig.engine.image(kept)
        assert image is not None
        assert (image.image_id, image.tags) == (image_id, (kept,))
        for _ in range(2):
            await rig.engine.untag_or_remove_image(kept)
        assert await rig.engine.image(image_id) is None
        assert await rig.engine.list_images() == []

    async def test_an_image_in_use_stays(self, rig: EngineRig) -> None:
        source, copy = await started(rig), rig.settings()
        tag = f"{rig.repository}:sn1"
        image_id = await rig.engine.commit(source.birth_id, tag=tag)
        await rig.engine.create(
            RuntimeSettings(
                copy.birth_id, copy.installation_id, image_id, copy.size, copy.boxd_dir, copy.run_dir
            )
        )
        with pytest.raises(FailedPrecondition) as caught:
            await rig.engine.untag_or_remove_image(tag)
        assert caught.value.code == "image_in_use"
        assert await rig.engine.image(tag) is not None
        await rig.engine.remove(copy.birth_id)
        await rig.engine.untag_or_remove_image(tag)
        assert await rig.engine.image(image_id) is None

    async def test_a_parent_outlives_its_tag_for_its_children(self, rig: EngineRig) -> None:
        first, second = await started(rig), rig.settings()
        parent = await rig.engine.commit(first.birth_id, tag=f"{rig.repository}:sn1")
        await rig.engine.create(
            RuntimeSettings(
                second.birth_id, second.installation_id, parent, second.size, second.boxd_dir, second.run_dir
            )
        )
        rig.write(second.birth_id, "/more.txt", b"more")
        child = await rig.engine.commit(second.birth_id, tag=f"{rig.repository}:sn2")
        await rig.engine.remove(second.birth_id)
        await rig.engine.untag_or_remove_image(f"{rig.repository}:sn1")
        assert [image.image_id for image in await rig.engine.list_images()] == [child]
        await rig.engine.untag_or_remove_image(f"{rig.repository}:sn2")
        assert await rig.engine.image(child) is None
        assert await rig.engine.image(parent) is None

    async def test_an_image_that_is_not_there(self, rig: EngineRig) -> None:
        assert await rig.engine.image(f"{rig.repository}:none") is None
        await rig.engine.untag_or_remove_image(f"{rig.repository}:none")
        with pytest.raises(DataLoss) as caught:
            await rig.engine.tag(f"sha256:{'1' * 64}", f"{rig.repository}:sn1")
        assert caught.value.code == "image_missing"


async def test_the_output_tail_is_bounded_and_is_the_end(rig: EngineRig) -> None:
    settings = await started(rig, play="flood 1000")
    tail = await prints(rig, settings, "flooded")
    assert tail.endswith("000999\nflooded\n")
    short = await rig.engine.output_tail(settings.birth_id, max_bytes=100)
    assert len(short) == 100
    assert tail.endswith(short)
    assert await rig.engine.output_tail(new_birth_id(secrets.token_hex(8)), max_bytes=100) == ""


async def test_facts(rig: EngineRig) -> None:
    facts = await rig.engine.facts()
    assert facts.cgroup_version in (1, 2)
    assert facts.ncpu > 0
    assert facts.memory_bytes > 0


async def test_a_closed_engine_takes_no_call(rig: EngineRig) -> None:
    neighbour = rig.neighbour()
    await neighbour.close()
    with pytest.raises(Unavailable) as caught:
        await neighbour.list_runtimes()
    assert (caught.value.code, caught.value.admitted) == ("engine_closed", "no")
