"""Resources: what a sandbox uses up is told as such, ends at its limits, and costs neither neighbours nor the host."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from sandkeeper import Keeper, sync
from sandkeeper.core.errors import SandkeeperError
from tests.integration.cases.conftest import DISK_LIMIT_BYTES
from tests.support.yard import Yard, eventually

pytestmark = pytest.mark.docker

SIZE = {"vcpu": 1, "memory_mib": 128, "pids": 200}
MIB = 1024**2
HOG = "import time; x = bytearray(400 << 20); time.sleep(60)"


async def test_r1_memory_over_the_limit_is_told(yard: Yard, keeper: Keeper) -> None:
    """Of a command and of a background process; boxd and the sandbox live on. Process 1 is boxd: nobody fills it."""
    sandbox = await keeper.create(image=yard.image, size=SIZE)
    result = await sandbox.run(["python3", "-c", HOG], timeout_s=20)
    assert (result.outcome, result.oom_killed, result.exit_code) == ("signaled", True, None)
    process = await sandbox.spawn(["python3", "-c", HOG])
    async with asyncio.timeout(10):
        ended = await process.wait()
    assert (ended.outcome, ended.oom_killed) == ("signaled", True)
    assert (await sandbox.run(["echo", "here"])).stdout == "here\n"
    described = await sandbox.describe()
    assert (described.phase, described.generation, described.health) == ("running", 1, "healthy")


async def test_r2_a_fork_bomb_hurts_no_neighbour_and_can_be_destroyed(yard: Yard, keeper: Keeper) -> None:
    """No figures here: the neighbours' p95 is a bench's."""
    bombed, neighbour = await asyncio.gather(*(keeper.create(image=yard.image, size=SIZE) for _ in range(2)))
    await bombed.spawn(["bash", "-c", "b() { b | b & }; b; sleep 300"])

    async def is_full() -> bool:
        return (await yard.describe(bombed.id))["health"] == "pids_exhausted"

    await eventually(is_full, "the bomb did not go off")
    for number in range(10):
        async with asyncio.timeout(10):
            assert (await neighbour.run(["echo", str(number)])).stdout == f"{number}\n"
    async with asyncio.timeout(15):
        assert (await bombed.destroy()).phase == "destroyed"


@pytest.mark.parametrize(("vcpu", "count"), [(2, "2"), (0.5, "1"), (1.5, "2")])
async def test_r5_tools_are_told_how_much_processor_there_is(
    yard: Yard, keeper: Keeper, vcpu: float, count: str
) -> None:
    size = {"vcpu": vcpu, "memory_mib": 128}
    sandbox = await keeper.create(image=yard.image, size=size)
    result = await sandbox.run("nproc; echo $OMP_NUM_THREADS $SANDKEEPER_VCPU")
    assert result.stdout == f"{_at_most(count)}\n{count} {vcpu:g}\n"


def _at_most(count: str) -> str:
    """`nproc` never says more than the machine has."""
    return str(min(int(count), os.cpu_count() or 1))


async def test_r5_what_the_sandbox_or_the_command_says_counts_more(yard: Yard, keeper: Keeper) -> None:
    sandbox = await keeper.create(image=yard.image, size=SIZE, env={"OMP_NUM_THREADS": "7"})
    line = ["sh", "-c", "echo $OMP_NUM_THREADS"]
    assert (await sandbox.run(line)).stdout == "7\n"
    assert (await sandbox.run(line, env={"OMP_NUM_THREADS": "9"})).stdout == "9\n"


async def test_r6_the_disk_limit_is_told_and_holds(yard: Yard, keeper: Keeper) -> None:
    """At create it is said which limit holds; beyond it the writer stands still, and what it wrote is bounded."""
    sandbox = await keeper.create(image=yard.image, size=SIZE)
    view = await yard.describe(sandbox.id)
    assert view["disk_limit_bytes"] == DISK_LIMIT_BYTES
    await sandbox.spawn("while :; do head -c 4M /dev/zero >> /tmp/full; sleep 0.05; done")

    async def is_over() -> bool:
        return (await yard.describe(sandbox.id))["health"] == "disk_exceeded"

    await eventually(is_over, "the limit was not noticed")
    first = await asyncio.to_thread(_written, yard, view["birth_id"])
    assert DISK_LIMIT_BYTES <= first < 8 * DISK_LIMIT_BYTES
    for work in (sandbox.run(["true"]), sandbox.files.write("/tmp/more", "x")):
        with pytest.raises(SandkeeperError) as refused:
            await work
        assert refused.value.code == "disk_exceeded"
    assert await asyncio.to_thread(_written, yard, view["birth_id"]) == first, "nobody writes any more"


def _written(yard: Yard, birth_id: str) -> int:
    found: Any = yard.docker.containers(all=True, size=True, filters={"name": birth_id})
    return int(found[0]["SizeRw"])


async def test_r7_nothing_inside_reaches_the_engines_log(yard: Yard, keeper: Keeper) -> None:
    """Scaled down: 64 MiB. Process 1's output cannot be opened by root inside; that of commands goes to boxd."""
    sandbox = await keeper.create(image=yard.image, size=SIZE, user="root")
    opened = await sandbox.run("echo x > /proc/1/fd/1")
    assert (opened.exit_code, "Permission denied" in opened.stderr) == (2, True), opened
    assert (await sandbox.run("yes | head -c 64M")).stdout_size_bytes == 64 * MIB
    birth_id = (await yard.describe(sandbox.id))["birth_id"]
    log = Path(yard.docker.inspect_container(birth_id)["LogPath"])
    assert sum(file.stat().st_size for file in log.parent.glob(f"{log.name}*")) <= 2 * MIB


async def test_r6_memory_file_systems_are_bounded_too(yard: Yard, keeper: Keeper) -> None:
    sandbox = await keeper.create(image=yard.image, size=SIZE, user="root")
    result = await sandbox.run("head -c 400M /dev/zero > /dev/shm/full")
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr


# ---------------------------------------------------------------- one-shots: nothing of them stays


async def test_once_runs_with_its_files_and_leaves_nothing(yard: Yard, keeper: Keeper) -> None:
    result = await keeper.once(
        ["sh", "-c", "cat in/put; echo $GREETING >&2; exit 3"],
        image=yard.image,
        size=SIZE,
        files={"in/put": "given\n"},
        env={"GREETING": "hello"},
        timeout_s=30,
    )
    assert (result.exit_code, result.stdout, result.stderr) == (3, "given\n", "hello\n")
    assert (yard.containers(), await yard.ask("list")) == ([], [])


async def test_once_cancelled_leaves_nothing(yard: Yard, keeper: Keeper) -> None:
    running = asyncio.create_task(keeper.once("sleep 60", image=yard.image, size=SIZE))
    await eventually(lambda: _listed(yard), "it never ran")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (yard.containers(), await yard.ask("list")) == ([], [])


async def test_once_with_its_runtime_lost_is_an_error(yard: Yard, keeper: Keeper) -> None:
    begun = asyncio.Event()
    running = asyncio.create_task(
        keeper.once("echo begun; sleep 60", image=yard.image, size=SIZE, on_output=lambda *_: begun.set())
    )
    await begun.wait()
    yard.kill_container((await yard.ask("list"))[0]["birth_id"])
    with pytest.raises(SandkeeperError) as lost:
        await running
    assert (lost.value.code, lost.value.admitted) == ("run_interrupted", "yes")
    assert (yard.containers(), await yard.ask("list")) == ([], [])


async def test_once_without_await(yard: Yard) -> None:
    def plain() -> Any:
        with sync.Keeper.join(yard.config.state_dir) as keeper:
            return keeper.once(["echo", "plain"], image=yard.image, size=SIZE)

    assert (await asyncio.to_thread(plain)).stdout == "plain\n"


async def _listed(yard: Yard) -> bool:
    return any(view["phase"] == "running" for view in await yard.ask("list"))
