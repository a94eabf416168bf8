"""One installation for all cases: small disk limit, quick looks at health; a keeper of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator

import pytest

from sandkeeper import Keeper
from sandkeeper.containers.endpoint import find_endpoint
from tests.support.yard import Yard

DISK_LIMIT_BYTES = 48 * 1024**2


@pytest.fixture(scope="session")
def standing_yard() -> Iterator[Yard]:
    yard = Yard(
        engine_url=find_endpoint(os.environ).url,
        audit_s=0.5,
        tend_s=0.5,
        policy={"disk_limit_bytes": DISK_LIMIT_BYTES},
    )
    yield yard
    asyncio.run(yard.close())


@pytest.fixture
async def yard(standing_yard: Yard) -> AsyncIterator[Yard]:
    """The installation, running and empty; what a test leaves is destroyed, and then nothing may be left."""
    await standing_yard.open()
    yield standing_yard
    await standing_yard.settle()


@pytest.fixture
async def keeper(yard: Yard) -> AsyncIterator[Keeper]:
    async with Keeper.join(yard.config.state_dir) as keeper:
        yield keeper
