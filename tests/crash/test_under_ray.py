"""The whole of it under a real Ray: an owner killed, an owner stopped, everything killed and started again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import docker
import pytest

from sandkeeper import Keeper
from sandkeeper.client.sandbox import Sandbox
from sandkeeper.containers.endpoint import find_endpoint
from sandkeeper.control.caller import ControlCaller
from sandkeeper.owner.config import load_config
from sandkeeper.owner.daemon import find_up
from sandkeeper.store.processes import ProcessMark, boot_id, is_alive, signal_process, start_ticks
from tests.support.up import Installed, new_installation
from tests.support.yard import eventually

pytestmark = [
    pytest.mark.crash,
    pytest.mark.docker,
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

SIZE = {"vcpu": 1, "memory_mib": 256}
LONG = "echo begun; touch /tmp/begun; until [ -e /tmp/go ]; do sleep 0.05; done; echo done; exit 3"


@pytest.fixture(scope="module")
def installed() -> Any:
    with new_installation() as installed:
        yield installed


@pytest.fixture
async def keeper(installed: Installed) -> AsyncIterator[Keeper]:
    async with installed.keeper() as keeper:
        yield keeper
    async with installed.keeper() as last:
        for sandbox in await last.list():
            await sandbox.destroy()
        for snapshot in await last.snapshots.list():
            await last.snapshots.delete(snapshot.id)


async def busy_owner(keeper: Keeper) -> dict[str, Any]:
    (found,) = [row for row in (await keeper.status()).owners if row.sandbox_count]
    return found.model_dump()


async def ends_well(run: asyncio.Task[Any], sandbox: Sandbox) -> None:
    """The long command was never cut: it gets its word and ends with its own exit code."""
    await sandbox.files.write("/tmp/go", b"")
    result = await run
    assert (result.outcome, result.exit_code, result.stdout) == ("exited", 3, "begun\ndone\n")
    assert result.generation == 1


async def begin(sandbox: Sandbox) -> asyncio.Task[Any]:
    run = asyncio.create_task(sandbox.run(LONG, timeout_s=110))
    await eventually(lambda: sandbox.files.exists("/tmp/begun"), "the command did not begin")
    return run


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_an_owner_is_replaced(keeper: Keeper, how: signal.Signals) -> None:
    """Ray makes the next one, or the supervisor has it made; commands go on, and its sandboxes stay its."""
    sandbox = await keeper.create(image="slim", size=SIZE)
    run = await begin(sandbox)
    before = await busy_owner(keeper)
    os.kill(before["pid"], how)

    async def replaced() -> bool:
        return bool((await busy_owner(keeper))["epoch"] > before["epoch"])

    await eventually(replaced, "no new incarnation")
    assert not Path(f"/proc/{before['pid']}").exists() or is_zombie(before["pid"])
    await ends_well(run, sandbox)
    seen = await sandbox.describe()
    assert (seen.phase, seen.generation) == ("running", 1)
    snapshot = await sandbox.snapshot()
    (fork,) = await keeper.fork(snapshot, 1, size=SIZE)
    assert await fork.files.read("/tmp/go") == b""


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def test_everything_killed_and_up_again(keeper: Keeper, installed: Installed) -> None:
    """All that was answered is there: live boxes are adopted with their commands, lost ones come back or say so."""
    lives, dies, asks, paused = [
        await keeper.create(image="slim", size=SIZE, detached=True, name=name, on_lost=on_lost)
        for name, on_lost in (
            ("lives", "rebuild"),
            ("dies", "rebuild"),
            ("asks", "ask"),
            ("paused", "rebuild"),
        )
    ]
    await dies.files.write("/tmp/kept", b"kept")
    snapshot = await dies.snapshot()
    await paused.pause()
    run = await begin(lives)
    births = [await birth_of(installed, sandbox) for sandbox in (dies, asks)]
    engine = docker.APIClient(base_url=find_endpoint(os.environ).url, version="auto")
    try:
        ray_folder = await kill_everything(installed, keeper)
        for birth_id in births:
            engine.remove_container(birth_id, force=True)
        await asyncio.to_thread(installed.sk, "up")
        await ends_well(run, lives)
        now = {sandbox.name: sandbox for sandbox in await keeper.list()}
        assert set(now) == {"lives", "dies", "asks", "paused"}
        await eventually(lambda: is_phase(now["dies"], "running", 2), "it did not come back")
        assert await now["dies"].files.read("/tmp/kept") == b"kept"
        await eventually(lambda: is_phase(now["asks"], "failed", 1), "its loss was not told")
        assert (await now["paused"].describe()).phase == "paused"
        await now["paused"].resume()
        assert (await now["paused"].run("echo awake")).stdout == "awake\n"
        assert [one.id for one in await keeper.snapshots.list()] == [snapshot.id]
        label = f"sandkeeper={installed.installation_id}"
        assert len(engine.containers(all=True, filters={"label": label})) == 3
    finally:
        engine.close()
    assert not ray_folder.exists(), "what the killed Ray left is removed by the next `up`"


async def birth_of(installed: Installed, sandbox: Sandbox) -> str:
    paths = load_config(installed.state_dir).paths
    place = await ControlCaller(paths.directory_socket).call("find", {"sandbox_id": sandbox.id})
    owner = ControlCaller(Path(place["control_path"]))
    return str((await owner.call("describe", {"sandbox_id": sandbox.id}))["birth_id"])


async def is_phase(sandbox: Sandbox, phase: str, generation: int) -> bool:
    seen = await sandbox.describe()
    return bool(seen.phase == phase and seen.generation == generation)


async def kill_everything(installed: Installed, keeper: Keeper) -> Path:
    """SIGKILL the supervisor and all it started, Ray's own processes too; return the folder Ray had."""
    up = find_up(load_config(installed.state_dir).paths)
    assert up is not None
    status = await keeper.status()
    ours = {up.pid, status.directory_pid, *(row.pid for row in status.owners if row.pid is not None)}
    marks = [mark for pid in [*family(up.pid), *ours] if (mark := mark_of(pid)) is not None]
    assert len(marks) > 5, "a supervisor, Ray's processes, the directory, two owners"
    for mark in sorted(marks, key=lambda mark: mark.pid != up.pid):
        signal_process(mark, signal.SIGKILL)
    await eventually(lambda: all_gone(marks), "something lives on")
    return Path(up.ray_folder)


async def all_gone(marks: list[ProcessMark]) -> bool:
    return not any(is_alive(mark) for mark in marks)


def mark_of(pid: int) -> ProcessMark | None:
    ticks = start_ticks(pid)
    return None if ticks is None else ProcessMark(pid=pid, start_ticks=ticks, boot_id=boot_id())


def family(pid: int) -> list[int]:
    """All processes below one, children first seen."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


@pytest.mark.parametrize("part", ["raylet", pytest.param("gcs_server", marks=pytest.mark.soak)])
async def test_up_ends_when_ray_has_lost_a_part_and_the_next_goes_on(
    keeper: Keeper, installed: Installed, part: str
) -> None:
    """Without it a dead owner would never come back: `up` says so by ending, and commands in the boxes go on."""
    sandbox = await keeper.create(image="slim", size=SIZE, detached=True)
    run = await begin(sandbox)
    paths = load_config(installed.state_dir).paths
    mark = find_up(paths)
    assert mark is not None
    before = await busy_owner(keeper)
    os.kill(child_of(mark.pid, part), signal.SIGKILL)

    async def has_ended() -> bool:
        return find_up(paths) is None

    await eventually(has_ended, "the supervisor did not notice", patience_s=120)
    await asyncio.to_thread(installed.sk, "up")
    await ends_well(run, sandbox)
    assert (await busy_owner(keeper))["epoch"] > before["epoch"]


def child_of(pid: int, name: str) -> int:
    """Return the child process of that name."""
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            if Path(f"/proc/{child}/comm").read_text().strip() == name:
                return child
    raise LookupError(f"{pid} has no child {name}")


async def test_up_while_another_is_on_its_way_out(keeper: Keeper, installed: Installed) -> None:
    mark = find_up(load_config(installed.state_dir).paths)
    assert mark is not None
    signal_process(ProcessMark(**mark.model_dump(exclude={"ray_folder"})), signal.SIGTERM)
    await asyncio.sleep(0.3)
    await asyncio.to_thread(installed.sk, "up")
    now = find_up(load_config(installed.state_dir).paths)
    assert now is not None
    assert now.pid != mark.pid
    assert (await keeper.status()).directory_pid
