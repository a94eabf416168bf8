"""The SDK on a real installation: whole lives of sandboxes, and honest answers when things are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandkeeper import Attempt, Keeper
from sandkeeper import sync as sync_sdk
from sandkeeper.cli.demo.kills import kill_container, kill_owner
from sandkeeper.cli.demo.witness import Witness
from sandkeeper.client.sandbox import Sandbox
from sandkeeper.core.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from sandkeeper.core.ids import InstallationId
from sandkeeper.ports import real_ports
from tests.support.up import Installed, containers_of, sk_environment

pytestmark = [pytest.mark.docker, pytest.mark.ray, pytest.mark.slow]

SMALL = {"vcpu": 0.5, "memory_mib": 128}


@pytest.fixture
async def keeper(installation: Installed) -> AsyncIterator[Keeper]:
    async with installation.keeper() as joined:
        yield joined


@pytest.fixture
async def witness(installation: Installed) -> AsyncIterator[Witness]:
    looking = Witness(
        installation_id=InstallationId(installation.installation_id),
        state_dir=installation.state_dir,
        ports=real_ports(),
    )
    async with looking:
        yield looking


async def until_running(sandbox: Sandbox, marker: str) -> None:
    """Wait until a command in the sandbox has written `marker`."""
    while not await sandbox.files.exists(marker):
        await asyncio.sleep(0.02)


async def kill_runtime(sandbox: Sandbox, witness: Witness) -> None:
    seen = await sandbox.describe()
    assert seen.birth_id is not None
    kill_container(await witness.process_one(seen.birth_id), birth_id=seen.birth_id)


async def test_a_whole_life(keeper: Keeper) -> None:
    sandbox = await keeper.create(size=SMALL, name="life", env={"GREETING": "hello"}, labels={"test": "life"})
    result = await sandbox.run("echo $GREETING from $(id -un) in $(pwd)")
    assert (result.stdout, result.exit_code) == ("hello from user in /home/user\n", 0)
    assert (await sandbox.run(["sh", "-c", "exit 7"])).exit_code == 7
    assert (await sandbox.run(["cat"], stdin="fed")).stdout == "fed"
    assert (await sandbox.run(["pwd"], cwd="/tmp")).stdout == "/tmp\n"
    assert (await sandbox.run(["id", "-un"], user="root")).stdout == "root\n"
    assert [found.id for found in await keeper.list(labels={"test": "life"})] == [sandbox.id]
    await sandbox.pause()
    with pytest.raises(FailedPrecondition):
        await sandbox.run(["true"])
    await sandbox.resume()
    await sandbox.files.write("kept", "files")
    await sandbox.stop(keep="files")
    with pytest.raises(FailedPrecondition):
        await sandbox.run(["true"])
    await sandbox.start()
    assert (await sandbox.files.read_text("kept"), sandbox.generation) == ("files", 2)
    await sandbox.resize({"vcpu": 0.25, "memory_mib": 200})
    assert (await sandbox.describe()).size.memory_mib == 200
    await sandbox.stop(keep="snapshot")
    await sandbox.start()
    assert await sandbox.files.read_text("kept") == "files"
    kinds = [event.kind async for event in sandbox.events()]
    assert kinds.count("runtime_started") == 3
    await sandbox.destroy()
    await sandbox.destroy()
    with pytest.raises(NotFound):
        await sandbox.run(["true"])
    for snapshot in await keeper.snapshots.list():
        if snapshot.sandbox_id == sandbox.id:
            await keeper.snapshots.delete(snapshot.id)


async def test_files_and_trees(keeper: Keeper, tmp_path: Path) -> None:
    sandbox = await keeper.create(size=SMALL)
    files = sandbox.files
    await files.write("/home/user/deep/er/text", "häää")
    assert await files.read_text("deep/er/text") == "häää"
    assert await files.read("deep/er/text", offset=1, length=2) == "ä".encode()
    entry = await files.stat("deep/er/text")
    assert (entry.size_bytes, entry.owner, entry.path) == (7, "user", "/home/user/deep/er/text")
    await files.rename("deep/er/text", "deep/moved")
    assert {found.name for found in await files.list("deep")} == {"er", "moved"}
    await files.mkdir("deep/new")
    with pytest.raises(AlreadyExists):
        await files.mkdir("deep/new", exist_ok=False)
    await files.remove("deep")
    assert not await files.exists("deep")
    with pytest.raises(NotFound):
        await files.read("deep/moved")
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "big").write_bytes(os.urandom(3_000_000))
    (source / "run").write_text("#!/bin/sh\necho ran\n")
    (source / "run").chmod(0o755)
    (source / "link").symlink_to("sub/big")
    loaded = await files.upload(source, "tree")
    assert loaded.size_bytes == 3_000_000 + 19
    assert (await sandbox.run(["./tree/run"])).stdout == "ran\n"
    await files.download("tree", tmp_path / "back")
    assert (tmp_path / "back" / "sub" / "big").read_bytes() == (source / "sub" / "big").read_bytes()
    assert (tmp_path / "back" / "link").readlink() == Path("sub/big")
    await files.download("tree/run", tmp_path / "one")
    assert (tmp_path / "one").read_text() == "#!/bin/sh\necho ran\n"


async def test_links_that_lead_outside_do_not_come_along(keeper: Keeper, tmp_path: Path) -> None:
    sandbox = await keeper.create(size=SMALL)
    await sandbox.run("mkdir -p evil && ln -s /etc evil/out && ln -s ../../.. evil/up && echo x > evil/kept")
    left_out: list[str] = []
    await sandbox.files.download("evil", tmp_path / "in", on_left_out=left_out.append)
    assert sorted(name.removeprefix("./") for name in left_out) == ["out", "up"]
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["kept"]


async def test_limits_are_results(keeper: Keeper) -> None:
    sandbox = await keeper.create(size=SMALL)
    slow = await sandbox.run("sleep 100 & sleep 100", timeout_s=0.5)
    assert (slow.outcome, slow.exit_code, slow.not_stopped) == ("timeout", None, ())
    assert (await sandbox.run(["pgrep", "sleep"])).exit_code == 1
    eaten = await sandbox.run(["python3", "-c", "x = bytearray(1 << 30); x[::4096] = b'1' * (1 << 18)"])
    assert (eaten.outcome, eaten.oom_killed, eaten.exit_code) == ("signaled", True, None)
    loud = await sandbox.run("yes | head -c 3000000", max_output_bytes=1000)
    assert (len(loud.stdout_bytes), loud.stdout_size_bytes, loud.truncated) == (1000, 3_000_000, True)
    with pytest.raises(InvalidArgument):
        await sandbox.run(["no-such-program"])


async def test_one_request_id_has_one_answer(keeper: Keeper) -> None:
    one = await keeper.create(size=SMALL, request_id="twice-the-same")
    two = await keeper.create(size=SMALL, request_id="twice-the-same")
    assert one.id == two.id
    with pytest.raises(AlreadyExists):
        await keeper.create(size="lite", request_id="twice-the-same")


async def test_a_command_runs_on_while_its_owner_is_killed(keeper: Keeper, installation: Installed) -> None:
    sandbox = await keeper.create(size=SMALL)
    seen = await sandbox.describe()
    running = asyncio.ensure_future(sandbox.run("touch going; sleep 4; echo done"))
    await until_running(sandbox, "going")
    owner = next(one for one in (await keeper.status()).owners if one.owner_id == seen.owner_id)
    assert owner.pid is not None
    kill_owner(owner.pid, lock_file=installation.state_dir / "owners" / owner.owner_id / "owner.lock")
    after = await sandbox.describe()
    result = await running
    assert (result.outcome, result.stdout, result.generation, after.generation) == ("exited", "done\n", 1, 1)
    back = next(one for one in (await keeper.status()).owners if one.owner_id == seen.owner_id)
    assert back.epoch > owner.epoch


async def test_a_killed_container_interrupts_and_is_rebuilt(keeper: Keeper, witness: Witness) -> None:
    sandbox = await keeper.create(size=SMALL)
    await sandbox.files.write("before", "kept")
    await sandbox.snapshot("safe")
    await sandbox.files.write("after", "lost")
    running = asyncio.ensure_future(sandbox.run("touch going; sleep 100"))
    await until_running(sandbox, "going")
    await kill_runtime(sandbox, witness)
    result = await running
    assert (result.outcome, result.exit_code, result.admitted) == ("interrupted", None, "yes")
    assert (await sandbox.run(["ls"])).stdout == "before\n"
    seen = await sandbox.describe()
    assert (seen.generation, seen.phase) == (2, "running")
    await sandbox.destroy()
    await keeper.snapshots.delete(str(seen.boot_snapshot))


async def test_attempts_come_back_compared(keeper: Keeper, installation: Installed) -> None:
    source = await keeper.create(size=SMALL)
    await source.files.write("number", "41")
    snapshot = await source.snapshot("start")
    steps = ("expr $(cat number) + $PARAM_ADD > number", "grep -x 42 number")
    wanted = [Attempt(str(add), steps, params={"add": add}) for add in (0, 1, 2)]
    report = await keeper.attempts(snapshot, wanted, size=SMALL)
    assert [result.state for result in report.attempts] == ["failed", "succeeded", "failed"]
    winner = report["1"].sandbox
    assert report.winner == "1"
    assert winner is not None
    assert await winner.files.read_text("number") == "42\n"
    await winner.destroy()
    await source.destroy()
    assert containers_of(installation.installation_id) == []
    await keeper.snapshots.delete(snapshot.id)


FAN_OUT = """
import asyncio, sys
from sandkeeper import Attempt, Keeper

async def main():
    async with Keeper.join() as keeper:
        tell = lambda event: event.kind == "step_started" and print("running", flush=True)
        wanted = [Attempt(str(number), ["sleep 1000"]) for number in range(3)]
        await keeper.attempts(sys.argv[1], wanted, size={"vcpu": 0.25, "memory_mib": 64}, on_progress=tell)

asyncio.run(main())
"""


@pytest.mark.parametrize("after", [0, 1, 3])
async def test_ctrl_c_during_a_fan_out_leaves_nothing(
    keeper: Keeper, installation: Installed, after: int
) -> None:
    source = await keeper.create(size=SMALL)
    snapshot = await source.snapshot("start")
    await source.destroy()
    process = subprocess.Popen(
        [sys.executable, "-c", FAN_OUT, snapshot.id],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=sk_environment(installation.state_dir),
    )
    assert process.stdout is not None
    for _ in range(after):
        await asyncio.to_thread(process.stdout.readline)
    if after == 0:
        while not await keeper.list():
            await asyncio.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = await asyncio.to_thread(process.communicate)
    assert b"KeyboardInterrupt" in errors
    assert await keeper.list() == []
    assert containers_of(installation.installation_id) == []
    await keeper.snapshots.delete(snapshot.id)


def test_the_twin_without_await(installation: Installed) -> None:
    with sync_sdk.Keeper.join(installation.state_dir) as keeper:
        sandbox = keeper.create(size=SMALL)
        sandbox.files.write("text", "hello")
        assert sandbox.run(["cat", "text"]).stdout == "hello"
    with sync_sdk.Keeper.join(installation.state_dir) as keeper:
        assert keeper.list() == []
