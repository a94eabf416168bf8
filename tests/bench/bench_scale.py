"""500 sandboxes over 8 owners on the fake engine: how long verbs take, and what a sandbox costs its owner.

Everything but the containers is real: Ray, sockets, journals with their fsyncs, boot hand-over. The fake boxds live in
the owners' processes, so that the bytes of a sandbox include its fake (some 16 KiB). One caller asks for one verb after
the other, over the control sockets; the memory is PSS.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from sandkeeper.client.sandbox import Sandbox
from sandkeeper.core.admission import Policy
from tests.bench.figure import Bench, Figure, Target, median, percentile
from tests.bench.rig import Rig, timed, timed_async

OWNERS = 8
SANDBOXES = 500
AT_ONCE = 4
P99_MS = 10.0
MOST_KIB = 300.0
SETTLE_S = 1.0
SYNCS = 300
SYNC_BYTES = 8192


async def measure() -> list[Figure]:
    policy = Policy(memory_overcommit=1000.0).model_dump(mode="json")
    async with Rig(owners=OWNERS, engine="tests.fakes.engine:engine_for_bench", policy=policy) as rig:
        pids = [owner.pid for owner in (await rig.keeper.status()).owners]
        await _warmed(rig)
        await asyncio.sleep(SETTLE_S)
        empty_kib = sum(_pss_kib(pid) for pid in pids if pid)
        sandboxes, creates_s = await _created(rig)
        await asyncio.sleep(SETTLE_S)
        full_kib = sum(_pss_kib(pid) for pid in pids if pid)
        verbs, syncs_s = await _verbs(sandboxes), _syncs(rig.state_dir)
        all_s = [took_s for took in verbs.values() for took_s in took]
        slowest = max(verbs, key=lambda verb: percentile(verbs[verb], 99))
        size = f"{SANDBOXES} sandboxes over {OWNERS} owners, fake engine"
        return [
            Figure(
                "control verbs p99",
                f"{size}; {len(all_s)} calls of {', '.join(verbs)}",
                "ms",
                percentile(all_s, 99) * 1e3,
                percentile(syncs_s, 99) * 1e3,
                f"write and fdatasync of {SYNC_BYTES // 1024} KiB there, p99 of {SYNCS}",
                Target(P99_MS, "measured"),
            ),
            Figure(
                f"the slowest of them ({slowest}) p99",
                f"{SANDBOXES} calls",
                "ms",
                percentile(verbs[slowest], 99) * 1e3,
                median(verbs[slowest]) * 1e3,
                "its p50",
                Target(P99_MS, "measured"),
            ),
            Figure(f"create, {AT_ONCE} at once, p50", size, "ms", median(creates_s) * 1e3),
            Figure(
                "a sandbox above the empty owners",
                size,
                "KiB",
                (full_kib - empty_kib) / SANDBOXES,
                empty_kib / OWNERS,
                "an empty owner",
                Target(MOST_KIB, "measured"),
            ),
        ]


async def _warmed(rig: Rig) -> None:
    """Have every owner run every path once, so that what is loaded then is not counted as sandboxes."""
    some = [await rig.keeper.create(size="lite") for _ in range(OWNERS)]
    await _verbs(some)
    for sandbox in some:
        await sandbox.destroy()


async def _created(rig: Rig) -> tuple[list[Sandbox], list[float]]:
    turns = asyncio.Semaphore(AT_ONCE)
    made: list[Sandbox] = []

    async def create() -> None:
        made.append(await rig.keeper.create(size="lite"))

    async def in_turn() -> float:
        async with turns:
            return await timed_async(create)

    took_s = await asyncio.gather(*(in_turn() for _ in range(SANDBOXES)))
    return made, list(took_s)


async def _verbs(sandboxes: list[Sandbox]) -> dict[str, list[float]]:
    async def first_events(sandbox: Sandbox) -> None:
        async for _ in sandbox.events():
            break

    verbs: dict[str, Callable[[Sandbox], Awaitable[object]]] = {
        "describe": lambda sandbox: sandbox.describe(),
        "events": first_events,
        "pause": lambda sandbox: sandbox.pause(),
        "resume": lambda sandbox: sandbox.resume(),
        "stop": lambda sandbox: sandbox.stop(keep="files"),
        "start": lambda sandbox: sandbox.start(),
    }
    return {
        name: [await timed_async(partial(verb, one)) for one in sandboxes] for name, verb in verbs.items()
    }


def _syncs(folder: Path) -> list[float]:
    """Return what the disk takes for the least durable write; a verb that changes something makes two."""
    with (folder / "sync.probe").open("ab", buffering=0) as file:

        def sync() -> None:
            file.write(b"." * SYNC_BYTES)
            os.fdatasync(file.fileno())

        return [timed(sync) for _ in range(SYNCS)]


def _pss_kib(pid: int) -> int:
    return int(re.findall(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)[0])


BENCH = Bench("scale", 120.0, measure)
