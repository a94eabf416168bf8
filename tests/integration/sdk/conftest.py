"""A sandbox behind an owner without Ray, seen through the SDK: one for all tests that do it no harm."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator

import pytest

from sandkeeper import Keeper, Sandbox
from sandkeeper.containers.endpoint import find_endpoint
from tests.support.yard import Yard

SIZE = {"vcpu": 2, "memory_mib": 512}


@pytest.fixture(scope="session")
def yard() -> Iterator[Yard]:
    """A directory and an owner; what is left in it at the end is destroyed, and then nothing may be left."""
    yard = Yard(engine_url=find_endpoint(os.environ).url)
    asyncio.run(yard.open())
    yield yard

    async def end() -> None:
        await yard.settle()
        await yard.close()

    asyncio.run(end())


@pytest.fixture
async def keeper(yard: Yard) -> AsyncIterator[Keeper]:
    await yard.open()
    async with Keeper.join(yard.config.state_dir) as keeper:
        yield keeper


@pytest.fixture
async def sandbox(keeper: Keeper, yard: Yard) -> Sandbox:
    """The shared sandbox."""
    return await keeper.get_or_create("shared", image=yard.image, size=SIZE, user="root")


@pytest.fixture
async def own_sandbox(keeper: Keeper, yard: Yard) -> Sandbox:
    """One of its own for a test that does it harm; it goes with the keeper."""
    return await keeper.create(image=yard.image, size=SIZE)
