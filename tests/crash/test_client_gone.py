"""kill -9 of a client: what was bound to it is destroyed when its heartbeat has stopped, and nothing else."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from tests.support.bare_yard import BareYard, bare_yard, end, python
from tests.support.yard import Yard

pytestmark = [pytest.mark.crash, pytest.mark.slow]
COUNT = 3

TTL_S = 2.0
PATIENCE_S = 60.0
CLIENT = """
import asyncio, sys
from sandkeeper import Keeper

async def main():
    async with Keeper.join(sys.argv[1], client_id=sys.argv[2], client_ttl_s=float(sys.argv[3])) as keeper:
        for name in sys.argv[4:]:
            await keeper.create(name=name, image="base")
        print("made", flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


async def client(yard: BareYard, client_id: str, *names: str) -> Any:
    """Start a client and return when it has made its sandboxes."""
    child = python("-c", CLIENT, str(yard.config.state_dir), client_id, str(TTL_S), *names, stderr=sys.stderr)
    assert child.stdout is not None
    line = await asyncio.wait_for(asyncio.to_thread(child.stdout.readline), PATIENCE_S)
    assert line == "made\n"
    return child


async def names(yard: BareYard) -> set[str]:
    return {view["name"] for view in await yard.ask("list")}


async def until_left(yard: BareYard, expected: set[str]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await names(yard) != expected:
            await asyncio.sleep(0.1)


async def test_a_killed_client_loses_what_was_bound_to_it() -> None:
    async with bare_yard() as yard:
        await yard.ask("create", request_id="detached", name="detached", image="base", detached=True)
        killed, alive = await asyncio.gather(
            client(yard, "killed", "one", "two"), client(yard, "alive", "three")
        )
        try:
            one = await yard.ask("find", name="one")
            await end(killed)
            await until_left(yard, {"detached", "three"})
            events = await yard.events(one["sandbox_id"])
            (asked,) = [event for event in events if event["kind"] == "destroy_requested"]
            assert asked["details"]["reason"] == "client_gone"
        finally:
            await end(alive)
        await until_left(yard, {"detached"})


async def test_a_client_outlives_a_restart_of_the_directory_and_comes_back_under_its_id() -> None:
    async with bare_yard() as yard:
        first = await client(yard, "worker", "mine")
        await yard.kill_directory()
        await yard.start_directory()
        await asyncio.sleep(TTL_S * 2)
        assert await names(yard) == {"mine"}
        await end(first)
        second = await client(yard, "worker")
        try:
            await asyncio.sleep(TTL_S * 2)
            assert await names(yard) == {"mine"}
        finally:
            await end(second)
        await until_left(yard, set())


@pytest.mark.docker
async def test_a_coordinator_killed_in_a_fan_out_leaves_nothing_but_what_was_there(yard: Yard) -> None:
    """Real containers: the attempts' go, their source and its snapshot stay."""
    source = await yard.create()
    snapshot = await yard.snapshot(source["id"])
    words = ("-m", "tests.support.client_child", str(yard.config.state_dir), snapshot["id"], str(COUNT))
    child = python(*words, str(TTL_S), stderr=sys.stderr)
    try:
        assert child.stdout is not None
        for _ in range(COUNT):
            assert await asyncio.wait_for(asyncio.to_thread(child.stdout.readline), PATIENCE_S)
        assert len(yard.containers()) == COUNT + 1
    finally:
        await end(child)
    async with asyncio.timeout(PATIENCE_S):
        while len(await yard.ask("list")) > 1:
            await asyncio.sleep(0.1)
    assert yard.containers() == [source["birth_id"]]
    fork = await yard.create(snapshot=snapshot["id"])
    assert fork["phase"] == "running"
