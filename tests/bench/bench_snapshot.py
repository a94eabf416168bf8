"""A snapshot of 100 MiB in 1,000 files, held against the program `docker commit` of a container with the same tree.

Ours measures the layer, quiesces and freezes the box, commits, tags, syncs the engine's disk and journals the record;
docker's pauses and commits. Both copy the whole difference each time.
"""

from __future__ import annotations

import asyncio
import subprocess

from tests.bench.figure import Bench, Figure, Target, median
from tests.bench.rig import Rig, timed, timed_async

ROUNDS = 8
FILES = 1000
FILE_BYTES = 104_858
MOST = 1.15
FILL = (
    "mkdir -p /srv/tree && cd /srv/tree && "
    f'for i in $(seq {FILES}); do head -c {FILE_BYTES} /dev/urandom > "f$i"; done'
)


async def measure() -> list[Figure]:
    async with Rig(owners=2) as rig:
        sandbox = await rig.keeper.create(image="slim")
        plain = rig.container(rig.image_id("slim"), ["sleep", "600"], size=sandbox.size)
        filled = await sandbox.run(FILL, user="root")
        if filled.exit_code != 0:
            raise RuntimeError(f"the files could not be made: {filled.stderr_bytes!r}")
        rig.engine.exec_start(rig.engine.exec_create(plain, ["sh", "-c", FILL], user="root")["Id"])
        ours_s: list[float] = []
        docker_s: list[float] = []
        freezes_ms: list[float] = []

        async def ours() -> None:
            freezes_ms.append((await sandbox.snapshot()).freeze_ms)

        def dockers() -> None:
            done = subprocess.run(["docker", "commit", plain], check=True, capture_output=True, text=True)
            rig.will_remove_image(done.stdout.strip())

        for _ in range(ROUNDS):
            ours_s.append(await timed_async(ours))
            docker_s.append(await asyncio.to_thread(timed, dockers))
        size = f"100 MiB in {FILES} files; {ROUNDS} rounds"
        return [
            Figure(
                "snapshot",
                size,
                "ms",
                median(ours_s) * 1e3,
                median(docker_s) * 1e3,
                "docker commit of the same tree",
                Target(MOST, "ratio"),
            ),
            Figure("of which the box stands still", size, "ms", median(freezes_ms)),
        ]


BENCH = Bench("snapshot", 120.0, measure)
