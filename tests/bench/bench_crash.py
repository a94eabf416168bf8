"""kill -9 of an owner with 20 live sandboxes, each running a command.

The new process counts as up when it has enlisted at the directory, the first thing it does. A sandbox has answered
when a client that knows nothing of before (a new keeper, new leases) has an exec's result from it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time

from sandkeeper import Keeper
from sandkeeper.client.results import RunResult
from sandkeeper.client.sandbox import Sandbox
from tests.bench.figure import Bench, Figure, Target
from tests.bench.rig import Rig

SANDBOXES = 20
AT_ONCE = 4
POLL_S = 0.02
RUN_FOR_S = 20
ANSWER_IN_S = 2.0


async def measure() -> list[Figure]:
    async with Rig(owners=1) as rig:
        turns = asyncio.Semaphore(AT_ONCE)

        async def create() -> Sandbox:
            async with turns:
                return await rig.keeper.create(image="slim", size="lite")

        sandboxes = await asyncio.gather(*(create() for _ in range(SANDBOXES)))
        commands = [asyncio.create_task(_long(sandbox)) for sandbox in sandboxes]
        await asyncio.gather(*(_has_begun(sandbox) for sandbox in sandboxes))
        pid = (await rig.keeper.status()).owners[0].pid
        if pid is None:
            raise RuntimeError("the owner has no pid")
        os.kill(pid, signal.SIGKILL)
        killed_s = time.perf_counter()
        up_s = await _is_up_again(rig, old_pid=pid)
        async with Keeper.join(rig.state_dir) as stranger:
            answers_s = await asyncio.gather(*(_answers(stranger, sandbox.id) for sandbox in sandboxes))
        results = await asyncio.gather(*commands)
        lost = sum(not _is_whole(result) for result in results)
        size = f"{SANDBOXES} sandboxes of one owner"
        return [
            Figure(
                "kill -9 of the owner: new process up to all answering",
                size,
                "s",
                max(answers_s) - up_s,
                target=Target(ANSWER_IN_S, "measured"),
            ),
            Figure("of which kill to new process up", size, "s", up_s - killed_s),
            Figure(
                "running commands lost or changed", size, "of 20", float(lost), target=Target(0.0, "measured")
            ),
        ]


async def _long(sandbox: Sandbox) -> RunResult:
    return await sandbox.run(f"touch /tmp/begun; for i in $(seq {RUN_FOR_S}); do echo $i; sleep 1; done")


async def _has_begun(sandbox: Sandbox) -> None:
    while (await sandbox.run(["test", "-e", "/tmp/begun"])).exit_code != 0:
        await asyncio.sleep(POLL_S)


async def _is_up_again(rig: Rig, *, old_pid: int) -> float:
    while True:
        pid = (await rig.keeper.status()).owners[0].pid
        if pid not in (None, old_pid):
            return time.perf_counter()
        await asyncio.sleep(POLL_S)


async def _answers(stranger: Keeper, sandbox_id: str) -> float:
    sandbox = await stranger.get(sandbox_id)
    result = await sandbox.run(["true"])
    if result.exit_code != 0 or result.generation != 1:
        raise RuntimeError(f"{sandbox_id} is not as it was: {result}")
    return time.perf_counter()


def _is_whole(result: RunResult) -> bool:
    lines = b"".join(b"%d\n" % number for number in range(1, RUN_FOR_S + 1))
    return result.outcome == "exited" and result.exit_code == 0 and result.stdout_bytes == lines


BENCH = Bench("crash", 120.0, measure)
