"""What a box and small work in it cost: eight exec loops at once, a megabyte both ways, boxd's memory and start.

The exec of one loop against a local process is `bench_exec`. A loop is `run(["true"])` again and again in one
sandbox of two vCPUs; eight of them are tasks of one client. `docker cp` is the program, from and to a file, as anybody
would use it; ours is `files.write` and `files.read` of the same bytes in the very container. boxd's start is what it
says itself in hello: from its process' start, the second exec included, to having its listener.
"""

from __future__ import annotations

import asyncio
import os

from sandkeeper.boxd import BoxdLink
from sandkeeper.boxd.answers import Hello
from sandkeeper.client.sandbox import Sandbox
from tests.bench.figure import Bench, Figure, Target, median
from tests.bench.process_memory import resident_bytes
from tests.bench.rig import Rig, run, timed, timed_async

LOOPS = 8
LOOP_ROUNDS = 7
EXECS_A_ROUND = 160
FILE_BYTES = 1024 * 1024
FILE_ROUNDS = 12
OURS_A_ROUND = 5
BOXES = 6
SETTLE_S = 3.0


async def measure() -> list[Figure]:
    async with Rig(owners=2) as rig:
        sandbox = await rig.keeper.create(image="slim", size={"vcpu": 2, "memory_mib": 512})
        (container,) = await rig.containers()
        loops = await _loops(sandbox)
        megabyte = await _megabyte(rig, sandbox, container)
        return [loops, megabyte, *await _boxes(rig)]


async def _loops(sandbox: Sandbox) -> Figure:
    async def loop(count: int) -> None:
        for _ in range(count):
            result = await sandbox.run(["true"])
            if result.exit_code != 0:
                raise RuntimeError(f"true ended with {result}")

    async def many() -> None:
        await asyncio.gather(*(loop(EXECS_A_ROUND // LOOPS) for _ in range(LOOPS)))

    await many()
    one_s: list[float] = []
    many_s: list[float] = []
    for _ in range(LOOP_ROUNDS):
        one_s.append(await timed_async(lambda: loop(EXECS_A_ROUND)))
        many_s.append(await timed_async(many))
    return Figure(
        f"an exec of {LOOPS} loops in one sandbox",
        f"{LOOP_ROUNDS} rounds of {EXECS_A_ROUND}",
        "ms",
        median(many_s) / EXECS_A_ROUND * 1e3,
        median(one_s) / EXECS_A_ROUND * 1e3,
        "an exec of one loop",
        Target(1 / 1.6, "ratio"),
    )


async def _megabyte(rig: Rig, sandbox: Sandbox, container: str) -> Figure:
    data = os.urandom(FILE_BYTES)
    there, back = rig.folder / "there", rig.folder / "back"
    there.write_bytes(data)

    async def ours() -> None:
        await sandbox.files.write("/tmp/ours", data)
        if await sandbox.files.read("/tmp/ours") != data:
            raise RuntimeError("other bytes came back")

    def dockers() -> None:
        run("docker", "cp", str(there), f"{container}:/tmp/dockers")
        run("docker", "cp", f"{container}:/tmp/dockers", str(back))

    await ours()
    ours_s: list[float] = []
    docker_s: list[float] = []
    for _ in range(FILE_ROUNDS):
        ours_s += [await timed_async(ours) for _ in range(OURS_A_ROUND)]
        docker_s.append(await asyncio.to_thread(timed, dockers))
    return Figure(
        "1 MiB written and read",
        f"{len(ours_s)} times",
        "ms",
        median(ours_s) * 1e3,
        median(docker_s) * 1e3,
        f"docker cp both ways ({FILE_ROUNDS} times)",
        Target(1 / 10, "ratio"),
    )


async def _boxes(rig: Rig) -> list[Figure]:
    before = set(await rig.containers())
    sandboxes = [await rig.keeper.create(image="slim") for _ in range(BOXES)]
    boot_ms = [float((await _hello(rig, sandbox)).boot_ms) for sandbox in sandboxes]
    await asyncio.sleep(SETTLE_S)
    fresh = set(await rig.containers()) - before
    pids = [int(rig.engine.inspect_container(name)["State"]["Pid"]) for name in fresh]
    idle_mib = median([resident_bytes(pid) for pid in pids]) / 2**20
    return [
        Figure("boxd idle, resident", f"{BOXES} boxes", "MiB", idle_mib, target=Target(10.0, "measured")),
        Figure(
            "boxd ready after the container's start",
            f"{BOXES} boxes, in their own words",
            "ms",
            median(boot_ms),
            target=Target(15.0, "measured"),
        ),
    ]


async def _hello(rig: Rig, sandbox: Sandbox) -> Hello:
    lease = (await sandbox._boxes.take(sandbox.id)).lease
    link = BoxdLink(
        rig.state_dir / lease.control_path,
        generation=lease.generation,
        epoch=lease.epoch,
        ports=rig.ports,
    )
    try:
        return await link.hello()
    finally:
        await link.aclose()


BENCH = Bench("data_plane", 60.0, measure)
