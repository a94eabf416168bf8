"""Many mixed operations of the SDK leave everybody as they were: the owner, this client, boxd."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from sandkeeper import Keeper, Sandbox, SandkeeperError
from sandkeeper.boxd.events import RunOutput
from tests.support.yard import Yard

pytestmark = pytest.mark.docker

SEED = 11
BOXES = 3
KINDS = 9
AT_ONCE = 4
PORT = 8765
SETTLE_S = 15.0
GROWTH_KIB = 24 * 1024
"""Of resident memory. boxd keeps ended runs, up to 16 MiB of their output; the others keep nothing."""
ECHO = f"""
import socketserver

class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)

socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer(("127.0.0.1", {PORT}), Echo).serve_forever()
"""


class Use(NamedTuple):
    """What a process has of the host."""

    descriptors: int
    threads: int
    resident_kib: int


def use_of(pid: int) -> Use:
    folder = Path("/proc", str(pid))
    lines = [line.split() for line in (folder / "status").read_text().splitlines()]
    values = {line[0]: int(line[1]) for line in lines if line[0] in ("Threads:", "VmRSS:")}
    return Use(len(os.listdir(folder / "fd")), values["Threads:"], values["VmRSS:"])


async def mixed(sandbox: Sandbox, choice: int, *, number: int) -> None:
    match choice:
        case 0:
            result = await sandbox.run("echo out; echo err >&2; (sleep 0.05 &)")
            assert (result.exit_code, result.stdout, result.stderr) == (0, "out\n", "err\n")
        case 1:
            body = os.urandom(50_000)
            await sandbox.files.write(f"/tmp/f{number % 8}", body)
            assert len(await sandbox.files.read(f"/tmp/f{number % 8}")) == len(body)
        case 2:
            process = await sandbox.spawn(["cat"], stdin_open=True)
            await process.write("word\n")
            await process.close_stdin()
            assert (await process.wait()).stdout == "word\n"
        case 3:
            process = await sandbox.spawn("echo here; sleep 30")
            again = await sandbox.processes.attach(process.id)
            piece = await anext(again.stdout)
            assert isinstance(piece, RunOutput)
            assert piece.data == b"here\n"
            await again.stdout.aclose()
            await again.kill()  # what it could not tell from an orphan of case 0 it names
            assert (await process.wait()).signal == 9
        case 4:
            async with await sandbox.ports.dial(PORT) as stream:
                await stream.write(b"echo")
                assert await stream.read() == b"echo"
        case 5:
            with pytest.raises(SandkeeperError):
                await sandbox.ports.dial(9)
            with pytest.raises(SandkeeperError):
                await sandbox.files.read("/tmp/never-was")
        case 6:
            cut = asyncio.create_task(sandbox.run(["sleep", "30"]))
            await asyncio.sleep(0.02)
            cut.cancel()
            with suppress(asyncio.CancelledError):
                await cut
        case 7:
            await sandbox.state.put(f"key{number % 8}", number)
            assert (await sandbox.describe()).phase == "running"
        case _:
            assert (await sandbox.run("sleep 30", timeout_s=0.05)).outcome == "timeout"


async def many(sandboxes: list[Sandbox], *, choices: list[int]) -> None:
    """Do them all, some at once; each box gets its share of each kind."""
    left = iter(enumerate(choices))

    async def worker() -> None:
        for number, choice in left:
            await mixed(sandboxes[number % len(sandboxes)], choice, number=number)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(worker())


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("count", [pytest.param(1_000), pytest.param(10_000, marks=pytest.mark.soak)])
async def test_mixed_operations_leave_everybody_as_they_were(keeper: Keeper, yard: Yard, count: int) -> None:
    sandboxes = [await keeper.create(image="base", size={"vcpu": 2, "memory_mib": 512}) for _ in range(BOXES)]
    assert yard.owner is not None
    pids = {"client": os.getpid(), "owner": yard.owner.pid}
    for number, sandbox in enumerate(sandboxes):
        await sandbox.spawn(["python3", "-c", ECHO], detached=True)
        await sandbox.ports.wait(PORT)
        birth_id = str((await sandbox.describe()).birth_id)
        pids[f"boxd {number}"] = yard.docker.inspect_container(birth_id)["State"]["Pid"]
    # All kinds twelve times first: pools, caches and threads that stay are there then.
    await many(sandboxes, choices=[kind for _ in range(12) for kind in range(KINDS)])
    before = {who: use_of(pid) for who, pid in pids.items()}
    choices = random.Random(SEED)
    await many(sandboxes, choices=[choices.randrange(KINDS) for _ in range(count)])
    deadline = time.monotonic() + SETTLE_S
    while grown := _grown(pids, before=before):
        assert time.monotonic() < deadline, grown
        await asyncio.sleep(0.2)
    for sandbox in sandboxes:
        listed = await sandbox.processes.list()
        assert len(listed) == 1, listed  # the echo
        await sandbox.destroy()


def _grown(pids: dict[str, int], *, before: dict[str, Use]) -> dict[str, tuple[Use, Use]]:
    """Return who has more than before: some connections in a pool, a worker thread, pages are no growth."""
    gc.collect()
    grown = {}
    for who, pid in pids.items():
        now, then = use_of(pid), before[who]
        if (
            now.descriptors > then.descriptors + 8
            or now.threads > then.threads + 4
            or now.resident_kib > then.resident_kib + GROWTH_KIB
        ):
            grown[who] = (then, now)
    return grown
