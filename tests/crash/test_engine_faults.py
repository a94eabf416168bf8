"""The engine is absent, goes away in the middle, comes back, or has no room left: a private one, never the user's."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from sandkeeper.core.admission import Policy
from sandkeeper.core.errors import NotFound, ResourceExhausted, SandkeeperError, Unavailable
from tests.support.private_engine import PrivateEngine
from tests.support.small_image import SMALL_IMAGE, import_small_image
from tests.support.yard import Yard, eventually, token

pytestmark = [pytest.mark.crash, pytest.mark.docker]

MIB = 1 << 20


def new_yard(engine: PrivateEngine) -> Yard:
    yard = Yard(
        engine_url=engine.url,
        image="small",
        images={"small": SMALL_IMAGE},
        policy=Policy(images=("small",), default_image="small"),
        audit_s=0.5,
    )
    import_small_image(yard.docker)
    return yard


@asynccontextmanager
async def brief_yard(engine: PrivateEngine) -> AsyncIterator[Yard]:
    """A yard for one test, ended before its engine is."""
    yard = new_yard(engine)
    try:
        await yard.open()
        yield yard
        await yard.settle()
    finally:
        if not engine.is_running:
            await asyncio.to_thread(engine.start)
        await yard.close()


@pytest.fixture(scope="module")
def engine() -> Iterator[PrivateEngine]:
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("a private engine needs root and dockerd")
    with PrivateEngine(live_restore=True) as engine:
        yield engine


@pytest.fixture(scope="module")
def yard_of_engine(engine: PrivateEngine) -> Iterator[Yard]:
    yard = new_yard(engine)
    yield yard
    if not engine.is_running:
        engine.start()
    asyncio.run(yard.close())


@pytest.fixture
async def yard(yard_of_engine: Yard, engine: PrivateEngine) -> AsyncIterator[Yard]:
    if not engine.is_running:
        await asyncio.to_thread(engine.start)
    await yard_of_engine.open()
    yield yard_of_engine
    if not engine.is_running:
        await asyncio.to_thread(engine.start)
    await yard_of_engine.settle()


async def test_absent(yard: Yard, engine: PrivateEngine) -> None:
    """A create is refused and remembered nowhere; everything that needs no engine goes on, restarts included."""
    await asyncio.to_thread(engine.stop)
    name = f"none-{token()}"
    with pytest.raises(Unavailable) as absent:
        await yard.create(name=name)
    assert (absent.value.code, absent.value.admitted) == ("engine_unavailable", "no")
    with pytest.raises(NotFound):
        await yard.ask("find", name=name)
    await yard.kill_directory()
    await yard.start_directory()
    await yard.restart_owner()
    assert (await yard.ask("status"))["engine"].startswith("unavailable")
    assert await yard.ask("list") == []
    await asyncio.to_thread(engine.start)
    assert (await yard.create(name=name))["phase"] == "running"


async def test_stopped_in_the_middle_of_a_create(yard: Yard, engine: PrivateEngine) -> None:
    """The create fails with the step's name; what it may have made is removed when the engine is back."""
    name = f"cut-{token()}"
    with yard.engine.hold("start") as held:
        creating = asyncio.create_task(yard.create(name=name))
        await held.reached()
        assert len(yard.containers()) == 1
        await asyncio.to_thread(engine.stop)
        await held.release()
        sandbox_id = (await yard.ask("find", name=name))["sandbox_id"]
        with pytest.raises(SandkeeperError) as cut:
            await creating
    assert (cut.value.code, cut.value.admitted) == ("engine_unavailable", "yes")
    assert cut.value.message.startswith("launch_runtime: ")
    await asyncio.to_thread(engine.start)
    await yard.until(sandbox_id, "destroyed")
    assert yard.containers() == []
    assert (await yard.create(name=name))["phase"] == "running"


async def test_stopped_and_started_under_live_boxes(yard: Yard, engine: PrivateEngine) -> None:
    """With live-restore they live on and answer; what needs the engine says so and works again afterwards."""
    view = await yard.create()
    await yard.write(view["id"], "/kept", b"kept")
    first = await yard.snapshot(view["id"])
    await asyncio.to_thread(engine.stop)
    assert await yard.read(view["id"], "/kept") == b"kept"
    with pytest.raises(Unavailable) as away:
        await yard.snapshot(view["id"])
    assert (away.value.code, away.value.admitted) == ("engine_unavailable", "yes")
    await yard.restart_owner()
    assert await yard.read(view["id"], "/kept") == b"kept", "also for a new owner that cannot ask the engine"
    await asyncio.to_thread(engine.start)
    now = await yard.until(view["id"], "running")
    assert (now["generation"], now["birth_id"]) == (1, view["birth_id"])
    second = await yard.snapshot(view["id"])
    for snapshot in (first, second):
        assert await yard.restores(snapshot["id"], "/kept") == b"kept"


@pytest.mark.parametrize("call", ["pause", "commit", "unpause"])
async def test_killed_in_the_middle_of_a_snapshot(yard: Yard, engine: PrivateEngine, call: str) -> None:
    """The snapshot did not happen, the box does not stay frozen, the last valid one restores."""
    view = await yard.create()
    await yard.write(view["id"], "/kept", b"kept")
    first = await yard.snapshot(view["id"])
    with yard.engine.hold(call) as held:
        taking = asyncio.create_task(yard.snapshot(view["id"]))
        await held.reached()
        await asyncio.to_thread(engine.kill)
        await held.release()
        with pytest.raises(SandkeeperError) as cut:
            await taking
    assert cut.value.code == "engine_unavailable"
    assert cut.value.message.startswith("snapshot ")
    await asyncio.to_thread(engine.start)
    await yard.until(view["id"], "running", generation=1)
    await eventually(lambda: is_running(yard, view["birth_id"]), "it stayed frozen")
    assert await yard.read(view["id"], "/kept") == b"kept"
    await yard.ask("sweep")
    assert yard.images() == [first["id"]]
    assert await yard.restores(first["id"], "/kept") == b"kept"


async def is_running(yard: Yard, birth_id: str) -> bool:
    return yard.state_of(birth_id) == "running"


async def test_without_live_restore_all_are_lost_and_come_back() -> None:
    """A running one is rebuilt from its snapshot, a paused one has lost its memory, a stopped one its nothing."""
    with PrivateEngine(live_restore=False) as engine:
        async with brief_yard(engine) as yard:
            running, paused, stopped = [await yard.create() for _ in range(3)]
            for view in (running, paused, stopped):
                await yard.write(view["id"], "/kept", b"kept")
            snapshot = await yard.snapshot(running["id"])
            await yard.snapshot(paused["id"])
            await yard.change("pause", paused["id"])
            await yard.change("stop", stopped["id"], keep="files")
            await asyncio.to_thread(engine.stop)
            await asyncio.to_thread(engine.start)
            for view in (running, paused):
                now = await yard.until(view["id"], "running", generation=2)
                assert now["evidence"]["generation"] == 1
                assert await yard.read(view["id"], "/kept") == b"kept"
            await yard.change("start", stopped["id"])
            assert await yard.read(stopped["id"], "/kept") == b"kept"
            assert await yard.restores(snapshot["id"], "/kept") == b"kept"


async def test_a_full_disk_while_a_snapshot_is_taken() -> None:
    """A typed refusal that names the step, the box works on, nothing half-made is left, and later it succeeds."""
    with PrivateEngine(disk_mib=160) as engine:
        async with brief_yard(engine) as yard:
            view = await yard.create()
            await yard.write(view["id"], "/kept", b"kept")
            first = await yard.snapshot(view["id"])
            free = shutil.disk_usage(engine.data_root).free
            await yard.write(view["id"], "/large", os.urandom(free * 6 // 10))
            with pytest.raises(ResourceExhausted) as full:
                await yard.snapshot(view["id"])
            assert full.value.code == "disk_full"
            assert full.value.message.startswith("snapshot ")
            assert await yard.read(view["id"], "/kept") == b"kept"
            assert (await yard.describe(view["id"]))["generation"] == 1
            await yard.ask("sweep")
            assert yard.images() == [first["id"]]
            assert await yard.restores(first["id"], "/kept") == b"kept"
            with pytest.raises(ResourceExhausted):
                await yard.change("stop", view["id"], keep="snapshot")
            assert (await yard.until(view["id"], "running"))["generation"] == 1, (
                "not stopped without its snapshot"
            )
            async with yard.link(view["id"]) as link:
                await link.files.remove("/large")
            second = await yard.snapshot(view["id"])
            assert await yard.restores(second["id"], "/kept") == b"kept"
