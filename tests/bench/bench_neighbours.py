"""What a neighbour of a sandbox feels while that one's gigabyte is committed.

Quiet and loud times alternate: a loop of `run(["true"])` in one sandbox, alone, and while a snapshot is taken of
another that has 1 GiB of random bytes in it. Both are on one owner, so that this is in the way too if it is.
"""

from __future__ import annotations

import asyncio
import time

from sandkeeper.client.sandbox import Sandbox
from tests.bench.figure import Bench, Figure, Target, median, percentile
from tests.bench.rig import Rig

ROUNDS = 2
QUIET_EXECS = 400
FILL = "head -c 1G /dev/urandom > /srv/big && sync"


async def measure() -> list[Figure]:
    async with Rig(owners=1) as rig:
        neighbour = await rig.keeper.create(image="slim")
        big = await rig.keeper.create(image="slim", size={"vcpu": 2, "memory_mib": 2048})
        filled = await big.run(FILL, user="root", timeout_s=60)
        if filled.exit_code != 0:
            raise RuntimeError(f"the file could not be made: {filled}")
        await _exec_s(neighbour)
        quiet_s: list[float] = []
        loud_s: list[float] = []
        snapshots_s: list[float] = []
        for _ in range(ROUNDS):
            quiet_s += [await _exec_s(neighbour) for _ in range(QUIET_EXECS)]
            began_s = time.perf_counter()
            taking = asyncio.create_task(big.snapshot())
            while not taking.done():
                loud_s.append(await _exec_s(neighbour))
            await taking
            snapshots_s.append(time.perf_counter() - began_s)
        size = f"{ROUNDS} snapshots of {median(snapshots_s):.1f} s"
        return [
            Figure(
                "exec in a neighbour of a 1 GiB snapshot, p95",
                f"{size}, {len(loud_s)} execs",
                "ms",
                percentile(loud_s, 95) * 1e3,
                percentile(quiet_s, 95) * 1e3,
                f"the same while it is quiet ({len(quiet_s)} execs)",
                Target(2.0, "ratio"),
            ),
            Figure("the same, p50", size, "ms", median(loud_s) * 1e3, median(quiet_s) * 1e3, "quiet"),
        ]


async def _exec_s(sandbox: Sandbox) -> float:
    began_s = time.perf_counter()
    result = await sandbox.run(["true"])
    if result.exit_code != 0:
        raise RuntimeError(f"true ended with {result}")
    return time.perf_counter() - began_s


BENCH = Bench("neighbours", 90.0, measure)
