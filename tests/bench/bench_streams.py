"""A gigabyte out of a box and into it, and a thousand streams on which nothing happens.

The gigabyte goes from a file to a file by `files.upload` and `files.download`; it is held against `plain_copy`, which
copies a file of the same size through a unix socket, in turn with ours. How far resident memory grows is the kernel's
peak, of this process and of boxd. An idle stream is a reader that waits for output of a process that says nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from sandkeeper.client.output import Output
from tests.bench.figure import Bench, Figure, Target, median
from tests.bench.plain_copy import plain_copy
from tests.bench.process_memory import Peak, give_back, resident_bytes
from tests.bench.rig import Rig, timed, timed_async

GIB = 2**30
PIECE_BYTES = 2**20
ROUNDS = 3
FLAT_MIB = 16.0
STREAMS = 1000
STREAM_BOXES = 5
SETTLE_S = 1.0
OPEN_IN_S = 20.0
BIG = {"vcpu": 2, "memory_mib": 3072}


async def measure() -> list[Figure]:
    async with Rig(owners=2) as rig:
        idle = await _idle(rig)
        return [*await _gigabyte(rig), idle]


async def _gigabyte(rig: Rig) -> list[Figure]:
    before = set(await rig.containers())
    sandbox = await rig.keeper.create(image="slim", size=BIG)
    (container,) = set(await rig.containers()) - before
    boxd = int(rig.engine.inspect_container(container)["State"]["Pid"])
    source, target = rig.folder / "source", rig.folder / "target"
    _fill(source)
    in_s: list[float] = []
    out_s: list[float] = []
    plain_s: list[float] = []
    client_mib: list[float] = []
    boxd_mib: list[float] = []

    async def watched(work: Callable[[], Awaitable[object]]) -> float:
        give_back()
        client, box = Peak("self"), Peak(boxd)
        taken_s = await timed_async(work)
        client_mib.append(client.growth_bytes() / 2**20)
        boxd_mib.append(box.growth_bytes() / 2**20)
        return taken_s

    for _ in range(ROUNDS):
        in_s.append(await watched(lambda: sandbox.files.upload(source, "/tmp/big")))
        out_s.append(await watched(lambda: sandbox.files.download("/tmp/big", target)))
        _remove(target)
        plain_s.append(await asyncio.to_thread(timed, lambda: plain_copy(source, target, folder=rig.folder)))
        _remove(target)
    await sandbox.destroy()
    size = f"{ROUNDS} rounds"
    against = (median(plain_s), "the same file through a plain unix socket", Target(2.0, "ratio"))
    return [
        Figure("1 GiB into a box", size, "s", median(in_s), *against),
        Figure("1 GiB out of a box", size, "s", median(out_s), *against),
        Figure(
            "growth of the client meanwhile",
            f"most of {2 * ROUNDS}",
            "MiB",
            max(client_mib),
            target=Target(FLAT_MIB, "measured"),
        ),
        Figure(
            "growth of boxd meanwhile",
            f"most of {2 * ROUNDS}",
            "MiB",
            max(boxd_mib),
            target=Target(FLAT_MIB, "measured"),
        ),
    ]


async def _idle(rig: Rig) -> Figure:
    sandboxes = [await rig.keeper.create(image="slim", size="lite") for _ in range(STREAM_BOXES)]
    silent = [await sandbox.spawn(["sleep", "600"]) for sandbox in sandboxes]
    async with _reading([process.stdout for process in silent]):
        pass
    give_back()
    before = resident_bytes("self")
    outputs = [process.output("stdout") for process in silent for _ in range(STREAMS // STREAM_BOXES)]
    async with _reading(outputs):
        grown = resident_bytes("self") - before
    for sandbox in sandboxes:
        await sandbox.destroy()
    return Figure(
        "an idle stream in the client",
        f"{STREAMS} over {STREAM_BOXES} sandboxes",
        "KiB",
        grown / STREAMS / 1024,
        target=Target(50.0, "measured"),
    )


@asynccontextmanager
async def _reading(outputs: Sequence[Output]) -> AsyncIterator[None]:
    """Have a task wait for each, within on a connection of its own."""
    unused = _descriptors()
    waiting = [asyncio.create_task(anext(output)) for output in outputs]
    try:
        async with asyncio.timeout(OPEN_IN_S):
            while _descriptors() < unused + len(outputs) * 9 // 10:
                await asyncio.sleep(0.1)
        await asyncio.sleep(SETTLE_S)
        if ended := [task for task in waiting if task.done()]:
            raise RuntimeError(f"{len(ended)} streams have ended: {ended[0]}")
        yield
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _fill(path: Path) -> None:
    piece = os.urandom(PIECE_BYTES)
    with path.open("wb") as file:
        for _ in range(GIB // PIECE_BYTES):
            file.write(piece)


def _remove(path: Path) -> None:
    """Check that all has come, and drop it: what is dirty of it need not be written to the disk."""
    if path.stat().st_size != GIB:
        raise RuntimeError(f"{path.stat().st_size} bytes came, not {GIB}")
    path.unlink()


BENCH = Bench("streams", 90.0, measure)
