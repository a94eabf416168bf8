"""An engine that is absent, goes away in the middle, hangs, comes back, or has no room left: a private one."""

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from sandkeeper.containers.docker_engine import DockerEngine
from sandkeeper.core.errors import ResourceExhausted, SandkeeperError, Unavailable
from sandkeeper.core.ids import BirthId, InstallationId
from sandkeeper.core.observation import RuntimeState
from sandkeeper.ports import real_ports
from tests.support.engine_rig import DockerRig
from tests.support.private_engine import PrivateEngine, StartPrivateEngine
from tests.support.stand_in.build import import_empty_image

pytestmark = pytest.mark.docker


@pytest.fixture
def make_rig(tmp_path: Path, stand_in_dir: Path) -> Callable[[PrivateEngine], DockerRig]:
    def make(engine: PrivateEngine) -> DockerRig:
        api = engine.client()
        image_id = import_empty_image(api, tag="sandkeeper-test:empty")
        api.close()
        return DockerRig(url=engine.url, folder=tmp_path, boxd_dir=stand_in_dir, image_id=image_id)

    return make


async def running(rig: DockerRig) -> tuple[BirthId, int]:
    settings = rig.settings()
    await rig.engine.create(settings)
    await rig.engine.start(settings.birth_id)
    seen = await rig.engine.inspect(settings.birth_id)
    assert seen is not None
    assert seen.pid is not None
    return settings.birth_id, seen.pid


@pytest.fixture
async def nowhere(tmp_path: Path) -> AsyncIterator[DockerEngine]:
    engine = DockerEngine(
        f"unix://{tmp_path}/none.sock", installation_id=InstallationId("test"), ports=real_ports()
    )
    yield engine
    await engine.close()


async def test_an_absent_engine_is_unavailable_and_nothing_was_sent(nowhere: DockerEngine) -> None:
    birth_id = BirthId(f"sk-{secrets.token_hex(8)}")
    calls = [
        nowhere.facts(),
        nowhere.start(birth_id),
        nowhere.freeze(birth_id),
        nowhere.remove(birth_id),
        nowhere.commit(birth_id, tag="sandkeeper-test:sn1"),
        nowhere.list_runtimes(),
        nowhere.sync(),
    ]
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(answer, Unavailable)
        assert (answer.code, answer.admitted) == ("engine_unavailable", "no")


@pytest.mark.slow
async def test_an_engine_that_stops_and_comes_back(
    private_engines: StartPrivateEngine, make_rig: Callable[[PrivateEngine], DockerRig]
) -> None:
    """With live-restore the container lives on, its exit is noticed meanwhile, and the engine learns of it."""
    private = private_engines()
    rig = make_rig(private)
    survivor, pid = await running(rig)
    victim, victim_pid = await running(rig)
    leaving = asyncio.create_task(rig.engine.wait_exit(victim, victim_pid))
    staying = asyncio.create_task(rig.engine.wait_exit(survivor, pid))
    private.stop()
    with pytest.raises(Unavailable) as caught:
        await rig.engine.inspect(survivor)
    assert caught.value.admitted == "no"
    assert not leaving.done()
    os.kill(victim_pid, signal.SIGKILL)
    await asyncio.wait_for(leaving, 5)
    await asyncio.wait_for(rig.engine.wait_exit(victim, victim_pid), 5)
    assert not staying.done()
    private.start()
    seen = await rig.engine.inspect(survivor)
    assert seen is not None
    assert (seen.state, seen.pid) == (RuntimeState.RUNNING, pid)
    lost = await rig.engine.inspect(victim)
    assert lost is not None
    assert lost.state is RuntimeState.EXITED
    staying.cancel()
    await rig.close()


@pytest.mark.slow
async def test_an_engine_without_live_restore_takes_its_containers_along(
    private_engines: StartPrivateEngine, make_rig: Callable[[PrivateEngine], DockerRig]
) -> None:
    private = private_engines(live_restore=False)
    rig = make_rig(private)
    birth_id, pid = await running(rig)
    leaving = asyncio.create_task(rig.engine.wait_exit(birth_id, pid))
    private.stop()
    await asyncio.wait_for(leaving, 5)
    private.start()
    seen = await rig.engine.inspect(birth_id)
    assert seen is not None
    assert seen.state is RuntimeState.EXITED
    await rig.close()


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("verb", ["create", "commit", "remove"])
async def test_an_engine_killed_in_the_middle_leaves_the_caller_with_unknown(
    private_engines: StartPrivateEngine, make_rig: Callable[[PrivateEngine], DockerRig], verb: str
) -> None:
    """The call is sent to an engine that hangs and is then killed: it may have been done. A repeat settles it."""
    private = private_engines()
    rig = make_rig(private)
    birth_id, _ = await running(rig)
    fresh = rig.settings()
    tag = f"{rig.repository}:pending-sb1-1"

    async def act() -> None:
        if verb == "create":
            await rig.engine.create(fresh)
        elif verb == "commit":
            await rig.engine.commit(birth_id, tag=tag)
        else:
            await rig.engine.remove(birth_id)

    private.freeze()
    acting = asyncio.create_task(act())
    await asyncio.sleep(0.3)
    assert not acting.done()
    private.kill()
    await asyncio.wait({acting}, timeout=10)
    error = acting.exception()
    assert isinstance(error, Unavailable), error
    assert (error.code, error.admitted) == ("engine_unavailable", "unknown")
    private.start()
    await act()
    births = {runtime.birth_id for runtime in await rig.engine.list_runtimes()}
    assert (
        births
        == {
            "create": {birth_id, fresh.birth_id},
            "commit": {birth_id},
            "remove": set(),
        }[verb]
    )
    assert [image.tags for image in await rig.engine.list_images() if image.tags] == (
        [(tag,)] if verb == "commit" else []
    )
    await rig.close()


@pytest.mark.slow
async def test_a_commit_with_a_full_disk_is_told_and_leaves_nothing(
    private_engines: StartPrivateEngine, make_rig: Callable[[PrivateEngine], DockerRig]
) -> None:
    private = private_engines(disk_mib=96)
    rig = make_rig(private)
    birth_id, _ = await running(rig)
    rig.write(birth_id, "/big", os.urandom(50 << 20))
    tag = f"{rig.repository}:pending-sb1-1"
    room = os.statvfs(private.data_root)
    with pytest.raises(ResourceExhausted) as caught:
        await rig.engine.commit(birth_id, tag=tag)
    assert caught.value.code == "disk_full"
    assert await rig.engine.image(tag) is None
    assert await rig.engine.list_images() == []
    left = os.statvfs(private.data_root)
    assert (room.f_bavail - left.f_bavail) * room.f_frsize < 1 << 20
    seen = await rig.engine.inspect(birth_id)
    assert seen is not None
    assert seen.state is RuntimeState.RUNNING
    assert rig.read(birth_id, "/big") is not None
    await rig.close()


@pytest.mark.slow
async def test_a_create_with_a_full_disk_is_told_and_leaves_nothing(
    private_engines: StartPrivateEngine, make_rig: Callable[[PrivateEngine], DockerRig]
) -> None:
    private = private_engines(disk_mib=32)
    rig = make_rig(private)
    filler = private.data_root / "filler"
    try:
        with filler.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * (1 << 16))
    except OSError:
        pass
    with pytest.raises(SandkeeperError) as caught:
        await rig.engine.create(rig.settings())
    assert (type(caught.value), caught.value.code) == (ResourceExhausted, "disk_full")
    filler.unlink()
    assert await rig.engine.list_runtimes() == []
    await rig.close()
