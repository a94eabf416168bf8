"""What a command costs: through the client, by `docker exec`, as a local process, and from a shell.

`docker exec` is measured by the engine's API on one kept connection (create, start, read to the end, inspect for the
exit code) in the very container of the sandbox: the program `docker` would add its own start to it.
A local process is `subprocess.run(["/bin/true"], capture_output=True)`: fork (vfork here), exec, output, wait.
"""

from __future__ import annotations

import os
import sys

from sandkeeper.client.sandbox import Sandbox
from tests.bench.figure import Bench, Figure, Target, median, percentile
from tests.bench.rig import Rig, run, timed, timed_async

ROUNDS = 20
OURS_A_ROUND = 25
DOCKERS_A_ROUND = 4
SHELLS = 20


async def measure() -> list[Figure]:
    async with Rig(owners=2) as rig:
        sandbox = await rig.keeper.create(image="slim")
        (container,) = await rig.containers()
        return await _in_process(rig, sandbox, container) + await _from_shell(rig, sandbox, container)


async def _in_process(rig: Rig, sandbox: Sandbox, container: str) -> list[Figure]:
    async def ours() -> None:
        result = await sandbox.run(["true"])
        if result.exit_code != 0:
            raise RuntimeError(f"true ended with {result}")

    ours_s: list[float] = []
    local_s: list[float] = []
    docker_s: list[float] = []
    await ours()
    for _ in range(ROUNDS):
        ours_s += [await timed_async(ours) for _ in range(OURS_A_ROUND)]
        local_s += [timed(lambda: run("/bin/true")) for _ in range(OURS_A_ROUND)]
        docker_s += [timed(lambda: _docker_exec(rig, container)) for _ in range(DOCKERS_A_ROUND)]
    size = f"{len(ours_s)} runs, p50"
    ours_ms = median(ours_s) * 1e3
    return [
        Figure(
            "exec of true through the client",
            size,
            "ms",
            ours_ms,
            median(docker_s) * 1e3,
            f"docker exec by the API ({len(docker_s)} runs)",
            Target(1 / 20, "ratio"),
        ),
        Figure(
            "exec of true through the client",
            size,
            "ms",
            ours_ms,
            median(local_s) * 1e3,
            f"local subprocess ({len(local_s)} runs)",
            Target(2.0, "ratio"),
        ),
        Figure(
            "exec of true through the client", f"{len(ours_s)} runs, p99", "ms", percentile(ours_s, 99) * 1e3
        ),
    ]


async def _from_shell(rig: Rig, sandbox: Sandbox, container: str) -> list[Figure]:
    env = {**os.environ, "SANDKEEPER_STATE_DIR": str(rig.state_dir)}
    words = (sys.executable, "-m", "sandkeeper.cli.app", "exec", sandbox.id, "true")
    ours_s: list[float] = []
    docker_s: list[float] = []
    for _ in range(SHELLS):
        ours_s.append(timed(lambda: run(*words, env=env)))
        docker_s.append(timed(lambda: run("docker", "exec", container, "true")))
    return [
        Figure(
            "sandkeeper exec ID true from the shell",
            f"{SHELLS} runs, p50",
            "ms",
            median(ours_s) * 1e3,
            median(docker_s) * 1e3,
            "the program docker: docker exec ID true",
            Target(300.0, "measured"),
        )
    ]


def _docker_exec(rig: Rig, container: str) -> None:
    made = rig.engine.exec_create(container, ["true"])["Id"]
    rig.engine.exec_start(made)
    if rig.engine.exec_inspect(made)["ExitCode"] != 0:
        raise RuntimeError("true failed")


BENCH = Bench("exec", 90.0, measure)
