"""Forking: several sandboxes from one snapshot, all or none.

Owns the clean-up of a fan-out that did not come to be. Never chooses what a fork is made of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sandkeeper.core.errors import InvalidArgument, SandkeeperError

if TYPE_CHECKING:
    from sandkeeper.client.keeper import Keeper
    from sandkeeper.client.results import Snapshot
    from sandkeeper.client.sandbox import Sandbox

MOST_FORKS = 256
AT_ONCE = 8


async def fork_all(
    keeper: Keeper,
    snapshot: str | Snapshot,
    *,
    count: int,
    overrides: dict[str, Any],
    on_made: Callable[[Sandbox], None] | None = None,
) -> tuple[Sandbox, ...]:
    """Create `count` sandboxes from `snapshot`; on the first failure, or a cancel, destroy those made."""
    check_count(count)
    if not snapshot:
        raise InvalidArgument(
            f"a fork is made from a snapshot, not from {snapshot!r}",
            code="snapshot_invalid",
            advice="take one first; nothing falls back to the bare image",
        )
    if count > 1 and overrides.get("name") is not None:
        raise InvalidArgument("a name names one sandbox; give labels to many", code="name_for_many")
    places = asyncio.Semaphore(AT_ONCE)
    made: list[Sandbox] = []

    async def one() -> Sandbox:
        async with places:
            sandbox = await keeper.create(snapshot=snapshot, **overrides)
        made.append(sandbox)
        if on_made is not None:
            on_made(sandbox)
        return sandbox

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one()) for _ in range(count)]
    except BaseExceptionGroup as failures:
        await _destroy(made)
        raise _first(failures) from failures
    except asyncio.CancelledError:
        await _destroy(made)
        raise
    return tuple(task.result() for task in tasks)


def check_count(count: int) -> None:
    """Refuse a number of forks that cannot be.

    Raises:
        InvalidArgument: `count_invalid`.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_FORKS:
        raise InvalidArgument(f"count is 1 to {MOST_FORKS}, not {count!r:.40}", code="count_invalid")


async def _destroy(made: list[Sandbox]) -> None:
    results = await asyncio.gather(*(sandbox.destroy() for sandbox in made), return_exceptions=True)
    left = [result for result in results if isinstance(result, SandkeeperError)]
    if left:
        raise left[0]


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    found: BaseException = failures
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
