"""The seams of the fake engine, which simulations lean on: crashes, failures, a machine that goes away."""

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from sandkeeper.containers.engine import RuntimeSettings
from sandkeeper.core.errors import Internal, ResourceExhausted, Unavailable
from sandkeeper.core.observation import RuntimeState
from tests.fakes.engine import EngineMoment, FakeRuntime
from tests.support.engine_rig import FakeRig


@pytest.fixture
def rig() -> FakeRig:
    return FakeRig()


async def running(rig: FakeRig) -> RuntimeSettings:
    settings = rig.settings()
    await rig.engine.create(settings)
    await rig.engine.start(settings.birth_id)
    return settings


class Crash(BaseException):
    pass


@dataclass
class Box:
    heard: list[str] = field(default_factory=list)

    def freeze(self) -> None:
        self.heard.append("freeze")

    def thaw(self) -> None:
        self.heard.append("thaw")

    def die(self) -> None:
        self.heard.append("die")


class TestCrashes:
    @pytest.mark.parametrize(("stage", "is_done"), [("call", False), ("return", True)])
    async def test_a_hook_can_crash_the_caller_on_either_side_of_the_effect(
        self, rig: FakeRig, stage: str, is_done: bool
    ) -> None:
        async def hook(moment: EngineMoment) -> None:
            if (moment.stage, moment.verb) == (stage, "create"):
                raise Crash

        rig.engine.hook = hook
        settings = rig.settings()
        with pytest.raises(Crash):
            await rig.engine.create(settings)
        await rig.engine.settle()
        assert rig.has_container(settings.birth_id) is is_done

    async def test_a_call_that_was_sent_ends_in_the_world_though_its_caller_never_hears(
        self, rig: FakeRig
    ) -> None:
        settings = await running(rig)
        rig.engine.latency_s["commit"] = 0.01
        tag = f"{rig.repository}:pending-sb1-1"
        calling = asyncio.create_task(rig.engine.commit(settings.birth_id, tag=tag))
        await asyncio.sleep(0)
        rig.engine.crash()
        calling.cancel()
        await asyncio.wait({calling})
        twin = rig.engine.twin()
        assert await twin.list_images() == []
        await rig.engine.settle()
        assert [image.tags for image in await twin.list_images()] == [(tag,)]

    async def test_callers_of_a_crashed_process_are_suspended_for_ever(self, rig: FakeRig) -> None:
        settings = await running(rig)
        calling = asyncio.create_task(rig.engine.freeze(settings.birth_id))
        await asyncio.sleep(0)
        rig.engine.crash()
        late = asyncio.create_task(rig.engine.list_runtimes())
        await rig.engine.settle()
        await asyncio.sleep(0)
        assert not calling.done()
        assert not late.done()
        assert rig.world.runtimes[settings.birth_id].state is RuntimeState.FROZEN
        for task in (calling, late):
            task.cancel()
        await asyncio.wait({calling, late})


class TestFailures:
    async def test_before_or_after_the_effect(self, rig: FakeRig) -> None:
        first, second = rig.settings(), rig.settings()
        lost = Unavailable("lost", code="engine_unavailable", admitted="unknown")
        rig.engine.fail_next("create", Internal("no", code="engine_error"))
        rig.engine.fail_next("create", lost, after_effect=True)
        with pytest.raises(Internal):
            await rig.engine.create(first)
        with pytest.raises(Unavailable):
            await rig.engine.create(second)
        assert set(rig.world.runtimes) == {second.birth_id}
        await rig.engine.create(first)

    async def test_a_full_disk_fails_what_writes_and_leaves_nothing(self, rig: FakeRig) -> None:
        settings = await running(rig)
        rig.world.is_disk_full = True
        with pytest.raises(ResourceExhausted):
            await rig.engine.commit(settings.birth_id, tag=f"{rig.repository}:sn1")
        with pytest.raises(ResourceExhausted):
            await rig.engine.create(rig.settings())
        assert await rig.engine.list_images() == []
        assert set(rig.world.runtimes) == {settings.birth_id}

    async def test_any_image_is_there_when_the_world_says_so(self, rig: FakeRig) -> None:
        rig.world.any_image = True
        await rig.engine.create(replace(rig.settings(), image_id="sha256:unheard"))


class TestEngineAway:
    async def test_calls_fail_and_say_whether_they_were_sent(self, rig: FakeRig) -> None:
        settings = await running(rig)
        rig.engine.latency_s["freeze"] = 0.01
        sent = asyncio.create_task(rig.engine.freeze(settings.birth_id))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        rig.world.stop_engine()
        with pytest.raises(Unavailable) as caught:
            await rig.engine.inspect(settings.birth_id)
        assert caught.value.admitted == "no"
        rig.world.start_engine()
        with pytest.raises(Unavailable) as caught:
            await sent
        assert caught.value.admitted == "unknown"

    @pytest.mark.parametrize("live_restore", [True, False])
    async def test_containers_outlive_it_with_live_restore_only(
        self, rig: FakeRig, live_restore: bool
    ) -> None:
        settings = await running(rig)
        seen = await rig.engine.inspect(settings.birth_id)
        assert seen is not None
        assert seen.pid is not None
        waiting = asyncio.create_task(rig.engine.wait_exit(settings.birth_id, seen.pid))
        await asyncio.sleep(0)
        rig.world.stop_engine(live_restore=live_restore)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert waiting.done() is not live_restore
        rig.world.start_engine()
        assert (await rig.engine.list_runtimes())[0].state is (
            RuntimeState.RUNNING if live_restore else RuntimeState.EXITED
        )
        waiting.cancel()
        await asyncio.wait({waiting})

    async def test_a_machine_restart_ends_every_container_and_keeps_files_and_images(
        self, rig: FakeRig
    ) -> None:
        settings = await running(rig)
        rig.write(settings.birth_id, "/mine", b"x")
        await rig.engine.commit(settings.birth_id, tag=f"{rig.repository}:sn1")
        rig.world.restart_machine()
        assert (await rig.engine.list_runtimes())[0].state is RuntimeState.EXITED
        assert rig.read(settings.birth_id, "/mine") == b"x"
        assert len(await rig.engine.list_images()) == 1


async def test_a_box_boots_at_each_start_and_hears_of_its_container(rig: FakeRig) -> None:
    boxes: list[Box] = []

    def boot(_runtime: FakeRuntime) -> Box:
        boxes.append(Box())
        return boxes[-1]

    rig.world.boot = boot
    settings = await running(rig)
    await rig.engine.freeze(settings.birth_id)
    await rig.engine.freeze(settings.birth_id)
    await rig.engine.thaw(settings.birth_id)
    rig.world.kill_container(settings.birth_id, 9, oom=True)
    rig.world.kill_container(settings.birth_id, 1)
    seen = await rig.engine.inspect(settings.birth_id)
    assert seen is not None
    assert (seen.exit_code, seen.oom_killed) == (9, True)
    await rig.engine.start(settings.birth_id)
    await rig.engine.remove(settings.birth_id)
    assert [box.heard for box in boxes] == [["freeze", "thaw", "die"], ["die"]]
