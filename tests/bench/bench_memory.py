"""What an idle sandbox takes of the host's memory, above a plain `docker run IMAGE sleep`.

A container's memory is the PSS (smaps_rollup) of all its processes and of its shim, and the kernel memory that its
memory cgroup is charged with (v1: memory.kmem.usage_in_bytes, v2: memory.stat kernel). PSS shares what several
processes map, so there are four of each kind, as on a machine that has some.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from tests.bench.figure import Bench, Figure, Target, median
from tests.bench.rig import Rig

EACH = 4
SETTLE_S = 5.0
MOST_MIB = 12.0


async def measure() -> list[Figure]:
    async with Rig(owners=1) as rig:
        sandboxes = [await rig.keeper.create(image="slim") for _ in range(EACH)]
        for sandbox in sandboxes:
            await sandbox.run(["true"])
        image, size = rig.image_id("slim"), sandboxes[0].size
        plain = [rig.container(image, ["sleep", "600"], size=size) for _ in range(EACH)]
        ours = await rig.containers()
        await asyncio.sleep(SETTLE_S)
        ours_mib = median([_container_mib(rig, name) for name in ours])
        plain_mib = median([_container_mib(rig, name) for name in plain])
        return [
            Figure(
                "idle sandbox above docker run sleep",
                f"{EACH} of each; ours {ours_mib:.1f} MiB in all",
                "MiB",
                ours_mib - plain_mib,
                plain_mib,
                "docker run IMAGE sleep",
                Target(MOST_MIB, "measured"),
            )
        ]


def _container_mib(rig: Rig, name: str) -> float:
    pid = int(rig.engine.inspect_container(name)["State"]["Pid"])
    memory = _memory_cgroup(pid)
    inside = [int(line) for line in (memory / "cgroup.procs").read_text().split()]
    shim = int(re.findall(r"^PPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[0])
    return (sum(_pss_kib(one) for one in (*inside, shim)) * 1024 + _kernel_bytes(memory)) / 2**20


def _memory_cgroup(pid: int) -> Path:
    unified = Path("/sys/fs/cgroup")
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory") / path.lstrip("/")
        if not controllers:
            unified = Path("/sys/fs/cgroup") / path.lstrip("/")
    return unified


def _kernel_bytes(memory: Path) -> int:
    version_1 = memory / "memory.kmem.usage_in_bytes"
    if version_1.exists():
        return int(version_1.read_text())
    found = re.findall(r"^kernel (\d+)", (memory / "memory.stat").read_text(), re.MULTILINE)
    return int(found[0]) if found else 0


def _pss_kib(pid: int) -> int:
    return int(re.findall(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)[0])


BENCH = Bench("memory", 60.0, measure)
