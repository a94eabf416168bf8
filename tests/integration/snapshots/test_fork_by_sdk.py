"""`sandbox.fork` on a real engine: the files are there, the processes are not, and nobody is somebody else."""

from __future__ import annotations

import pytest

from sandkeeper import Keeper
from tests.support.yard import Yard

pytestmark = pytest.mark.docker

SIZE = {"vcpu": 1, "memory_mib": 256}


async def test_a_running_sandbox_is_forked(yard: Yard) -> None:
    async with Keeper.join(yard.config.state_dir) as keeper:
        source = await keeper.create(image="slim", size=SIZE)
        await source.run("echo one > ~/work; sleep 1000 >/dev/null 2>&1 & echo $!")
        forks = await source.fork(2, size=SIZE, labels={"of": "one"})
        everyone = (source, *forks)
        assert len({sandbox.id for sandbox in everyone}) == 3
        names = {(await sandbox.run("hostname")).stdout for sandbox in everyone}
        assert len(names) == 3
        for fork in forks:
            seen = await fork.run("cat ~/work; grep -l sleep /proc/[0-9]*/comm | wc -l")
            assert seen.stdout == "one\n0\n"
        await forks[0].run("echo two > ~/work")
        assert (await source.run("cat ~/work")).stdout == "one\n"
        (snapshot,) = await keeper.snapshots.list()
        assert snapshot.expires_at is not None
        await source.destroy()
        assert (await forks[1].run("cat ~/work")).stdout == "one\n"
