"""From nothing to a first result: a cold create, and a restore from a snapshot.

Held against the program `docker run --rm IMAGE true` with the same limits, the very same image (for a restore the
snapshot's), and `--network=none`: a sandbox has no network either, and a bridge would make docker's figure larger.
The runs are interleaved; what is destroyed or removed by us afterwards is outside the time, docker's own `--rm` inside.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tests.bench.figure import Bench, Figure, Target, median
from tests.bench.rig import Rig, limit_words, run, timed, timed_async

ROUNDS = 12
MOST = 1.25


async def measure() -> list[Figure]:
    async with Rig(owners=2) as rig:
        first = await rig.keeper.create()
        await first.run("echo kept > /home/user/kept")
        snapshot = await first.snapshot()
        limits = limit_words(first.size)
        image = rig.image_id("base")
        snapshot_image = f"sandkeeper-{(await rig.keeper.status()).installation_id}:{snapshot.id}"
        created_s: list[float] = []
        restored_s: list[float] = []
        docker_s: list[float] = []
        docker_restored_s: list[float] = []
        for _ in range(ROUNDS):
            created_s.append(await _ours(rig))
            docker_s.append(await _docker(limits, image=image))
            restored_s.append(await _ours(rig, snapshot=snapshot))
            docker_restored_s.append(await _docker(limits, image=snapshot_image))
        size = f"base, {first.size.vcpu:g} vCPU, {first.size.memory_mib} MiB; {ROUNDS} rounds"
        return [
            _figure("cold create to the first result", size, created_s, docker_s, image="IMAGE"),
            _figure(
                "restore from a snapshot to the first result",
                size,
                restored_s,
                docker_restored_s,
                image="SNAPSHOT",
            ),
        ]


async def _ours(rig: Rig, **words: Any) -> float:
    async def first_result() -> None:
        made.append(await rig.keeper.create(**words))
        result = await made[0].run(["true"])
        if result.exit_code != 0:
            raise RuntimeError(f"true ended with {result}")

    made: list[Any] = []
    took_s = await timed_async(first_result)
    await made[0].destroy()
    return took_s


async def _docker(limits: list[str], *, image: str) -> float:
    words = ("docker", "run", "--rm", "--network=none", *limits, image, "true")
    return await asyncio.to_thread(timed, lambda: run(*words))


def _figure(what: str, size: str, ours_s: list[float], docker_s: list[float], *, image: str) -> Figure:
    against = f"docker run --rm --network=none LIMITS {image} true"
    return Figure(
        what, size, "ms", median(ours_s) * 1e3, median(docker_s) * 1e3, against, Target(MOST, "ratio")
    )


BENCH = Bench("launch", 120.0, measure)
