"""The fixtures of tests that stand on a yard. Import them into a conftest."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator

import pytest

from sandkeeper.containers.endpoint import find_endpoint
from tests.support.yard import Yard

AUDIT_S = 0.5


@pytest.fixture(scope="session")
def standing_yard() -> Iterator[Yard]:
    """The yard all tests share; its processes are started when a test needs them."""
    yard = Yard(engine_url=find_endpoint(os.environ).url, audit_s=AUDIT_S)
    yield yard
    asyncio.run(yard.close())


@pytest.fixture
async def yard(standing_yard: Yard) -> AsyncIterator[Yard]:
    """The shared yard, running and empty; what the test leaves in it is destroyed, and then nothing may be left."""
    await standing_yard.open()
    standing_yard.engine.seen.clear()
    yield standing_yard
    await standing_yard.settle()
