from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.engine_fixtures import engine_url
from tests.support.yard import Yard
from tests.support.yard_fixtures import standing_yard, yard

__all__ = ["engine_url", "standing_yard", "yard"]

FLATTEN_AT_DEPTH = 3


@pytest.fixture(scope="module")
def strict_yard_of_module(engine_url: str) -> Iterator[Yard]:
    import asyncio

    made = Yard(
        engine_url=engine_url,
        image="slim",
        reap_after_s=0.0,
        policy={"flatten_at_depth": FLATTEN_AT_DEPTH, "snapshot_secrets": "scrub"},
    )
    yield made
    asyncio.run(made.close())


@pytest.fixture
async def strict_yard(strict_yard_of_module: Yard) -> AsyncIterator[Yard]:
    """A yard that flattens early and scrubs."""
    await strict_yard_of_module.open()
    yield strict_yard_of_module
    await strict_yard_of_module.settle()
