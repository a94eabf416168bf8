"""Fifty sandboxes are destroyed at random moments of their creation."""

from __future__ import annotations

import asyncio
import random

import pytest

from sandkeeper.core.errors import NotFound, SandkeeperError
from tests.support.yard import Yard, eventually, token

pytestmark = [pytest.mark.crash, pytest.mark.docker]

COUNT = 50
AT_ONCE = 10
LATEST_S = 3.0
SEED = 2


async def test_delete_during_create(yard: Yard) -> None:
    """Each create ends with a running sandbox or a typed error, each id reads destroyed, and nothing is left."""
    chance = random.Random(SEED)
    offsets = [chance.uniform(0, LATEST_S) for _ in range(COUNT)]
    places = asyncio.Semaphore(AT_ONCE)

    async def one(offset_s: float) -> tuple[str, str]:
        async with places:
            name = f"brief-{token()}"
            creating = asyncio.create_task(yard.create(name=name))
            await asyncio.sleep(offset_s)
            sandbox_id = await eventually(lambda: find(yard, name), "it never had an id")
            destroyed = await eventually(lambda: destroy(yard, sandbox_id), "it could not be destroyed")
            assert destroyed["phase"] == "destroyed"
            return sandbox_id, await outcome(creating)

    done = await asyncio.gather(*(one(offset_s) for offset_s in offsets))
    assert yard.containers() == []
    for sandbox_id, how in done:
        assert how in ("running", "superseded", "sandbox_destroyed"), how
        assert (await yard.describe(sandbox_id))["phase"] == "destroyed"
        with pytest.raises(NotFound) as gone:
            await yard.own("lease", sandbox_id=sandbox_id)
        assert gone.value.code == "sandbox_destroyed"
    assert len({sandbox_id for sandbox_id, _ in done}) == COUNT
    assert {"running", "superseded"} <= {how for _, how in done}, (
        "offsets before and after the end of creates"
    )


async def find(yard: Yard, name: str) -> str | None:
    try:
        return str((await yard.ask("find", name=name))["sandbox_id"])
    except NotFound:
        return None


async def destroy(yard: Yard, sandbox_id: str) -> dict[str, str] | None:
    """Destroy it; None while its owner has not heard of it yet."""
    try:
        return await yard.change("destroy", sandbox_id)
    except NotFound as error:
        if error.code == "sandbox_not_found":
            return None
        return await yard.describe(sandbox_id)


async def outcome(creating: asyncio.Task[dict[str, str]]) -> str:
    try:
        return (await creating)["phase"]
    except SandkeeperError as error:
        return error.code if error.admitted == "yes" or error.category == "NotFound" else repr(error)
