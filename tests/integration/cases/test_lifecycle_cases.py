"""Lifecycle: a broken sandbox is told apart from a command that failed, and each of them can be got rid of."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sandkeeper import Keeper, Sandbox
from sandkeeper.core.admission import Policy
from sandkeeper.core.errors import NotFound, SandkeeperError
from tests.support.private_engine import PrivateEngine
from tests.support.small_image import SMALL_IMAGE, import_small_image
from tests.support.yard import Yard, eventually, token

pytestmark = pytest.mark.docker

SIZE = {"vcpu": 1, "memory_mib": 256, "pids": 200}
SOON_S = 10.0
Break = Callable[[Yard, Sandbox], Awaitable[None]]


# ---------------------------------------------------------------- L1


async def kill_process_1(yard: Yard, sandbox: Sandbox) -> None:
    yard.kill_container((await yard.describe(sandbox.id))["birth_id"])


async def delete_programs(_yard: Yard, sandbox: Sandbox) -> None:
    for folder in ("/usr/bin", "/bin"):
        await sandbox.files.remove(folder, user="root")


async def fill_disk(_yard: Yard, sandbox: Sandbox) -> None:
    await sandbox.spawn("head -c 400M /dev/zero > /tmp/full; sleep 300")


async def fill_process_table(_yard: Yard, sandbox: Sandbox) -> None:
    # bash tries again when it cannot fork, so the table stays full.
    await sandbox.spawn(["bash", "-c", "while :; do sleep 300 & done 2>/dev/null"])


@pytest.mark.parametrize(
    ("harm", "codes"),
    [
        (kill_process_1, {"sandbox_not_running"}),
        (delete_programs, {"sandbox_unhealthy"}),
        (fill_disk, {"disk_exceeded"}),
        (fill_process_table, {"pids_exhausted"}),
    ],
)
async def test_l1_a_broken_sandbox_is_no_failed_command(
    yard: Yard, keeper: Keeper, harm: Break, codes: set[str]
) -> None:
    """The error is typed and the description says so too; no command ends with 126, 127 or 137 meanwhile."""
    sandbox = await keeper.create(image=yard.image, size=SIZE, on_lost="stop", user="root")
    await harm(yard, sandbox)
    errors: set[str] = set()

    async def is_told() -> bool:
        try:
            result = await sandbox.run(["echo", "nonce"], timeout_s=5)
        except SandkeeperError as error:
            errors.add(error.code)
        else:
            # Not broken yet, or lost under it: never a code that looks like the command's own.
            seen = (result.outcome, result.exit_code, result.stdout)
            assert seen == ("exited", 0, "nonce\n") or result.outcome in ("interrupted", "timeout"), result
        view = await yard.describe(sandbox.id)
        return bool(errors & codes) and (view["health"] in codes or view["phase"] == "stopped")

    async with asyncio.timeout(SOON_S):
        await eventually(is_told, "nothing was told")
    assert errors <= codes | {"runtime_unreachable", "runtime_lost"}, errors


# ---------------------------------------------------------------- L2, L3


async def test_l2_one_that_is_never_ready_can_be_destroyed_at_once(yard: Yard) -> None:
    name = f"never-{token()}"
    creating = asyncio.create_task(
        yard.create(name=name, start=["sleep", "1000"], ready={"kind": "tcp", "port": 9})
    )

    async def found() -> Any:
        try:
            return (await yard.ask("find", name=name))["sandbox_id"]
        except NotFound:
            return None

    sandbox_id = await eventually(found, "it has no id")
    await eventually(lambda: _is(bool(yard.containers())), "no container came")
    async with asyncio.timeout(SOON_S):
        assert (await yard.change("destroy", sandbox_id))["phase"] == "destroyed"
        with pytest.raises(SandkeeperError):
            await creating
        assert yard.containers() == []
    assert await yard.ask("list") == []


async def _is(claim: bool) -> bool:
    return claim


async def test_l3_three_deletes_while_the_engine_hangs_are_one() -> None:
    """Scaled down: the engine hangs for three seconds, not sixty."""
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("a private engine needs root and dockerd")
    with PrivateEngine() as engine:
        yard = Yard(
            engine_url=engine.url,
            image="small",
            images={"small": SMALL_IMAGE},
            policy=Policy(images=("small",), default_image="small"),
        )
        try:
            import_small_image(yard.docker)
            await yard.open()
            view = await yard.create()
            engine.freeze()
            deletes = [asyncio.create_task(yard.change("destroy", view["id"])) for _ in range(3)]
            done, _ = await asyncio.wait(deletes, timeout=3)
            during = await yard.describe(view["id"])
            engine.thaw()
            assert not done or all(task.exception() is None for task in done)
            assert during["phase"] in ("destroying", "destroyed")
            assert [one["phase"] for one in await asyncio.gather(*deletes)] == ["destroyed"] * 3
            assert yard.containers() == []
            await yard.settle()
        finally:
            await yard.close()


# ---------------------------------------------------------------- L4, L6, L11, L13


async def test_l4_a_handle_asks_each_time(yard: Yard, keeper: Keeper) -> None:
    async with Keeper.join(yard.config.state_dir) as other:
        mine = await keeper.create(image=yard.image, size=SIZE)
        theirs = await other.get(mine.id)
        await theirs.stop(keep="files")
        assert (await mine.describe()).phase == "stopped"
        assert mine.phase == "stopped"
        with pytest.raises(SandkeeperError) as stopped:
            await mine.run(["true"])
        assert stopped.value.code == "sandbox_not_running"
        await theirs.destroy()
        assert (await mine.describe()).phase == "destroyed"
        with pytest.raises(NotFound) as destroyed:
            await mine.run(["true"])
        assert destroyed.value.code == "sandbox_destroyed"


async def test_l6_a_name_is_used_again_and_again(yard: Yard, keeper: Keeper) -> None:
    """Scaled down: ten times."""
    ids = set()
    for number in range(10):
        sandbox = await keeper.create(image=yard.image, size=SIZE, name="again")
        assert not await sandbox.files.exists("/tmp/mark"), number
        await sandbox.files.write("/tmp/mark", "x")
        ids.add(sandbox.id)
        await sandbox.destroy()
    assert len(ids) == 10


async def test_l11_what_is_created_takes_commands_at_once(yard: Yard, keeper: Keeper) -> None:
    """Scaled down: ten, five at once."""

    async def one() -> int | None:
        sandbox = await keeper.create(image=yard.image, size=SIZE)
        result = await sandbox.run(["true"])
        await sandbox.destroy()
        return result.exit_code

    for _ in range(2):
        assert await asyncio.gather(*(one() for _ in range(5))) == [0] * 5


async def test_l13_a_pause_keeps_memory_and_a_stop_says_what_it_keeps(yard: Yard, keeper: Keeper) -> None:
    """`paused` in the same generation is frozen; a stop keeping files ends the processes in the next one."""
    sandbox = await keeper.create(image=yard.image, size=SIZE, user="root")
    counter = await sandbox.spawn("n=0; while :; do n=$((n+1)); echo $n > /tmp/n; sleep 0.02; done")
    await asyncio.sleep(0.3)
    paused = await sandbox.pause()
    assert (paused.phase, paused.generation) == ("paused", 1)
    resumed = await sandbox.resume()
    assert (resumed.phase, resumed.generation) == ("running", 1)
    first = int(await sandbox.files.read_text("/tmp/n") or 0)
    await asyncio.sleep(0.3)
    assert int(await sandbox.files.read_text("/tmp/n") or 0) > first > 1, "it counts on from where it was"
    assert counter.generation == 1

    stopped = await sandbox.stop(keep="files")
    assert (stopped.phase, stopped.keeps_files) == ("stopped", True)
    started = await sandbox.start()
    assert started.generation == 2
    before = await sandbox.files.read_text("/tmp/n")
    await asyncio.sleep(0.2)
    assert await sandbox.files.read_text("/tmp/n") == before, "files only"
