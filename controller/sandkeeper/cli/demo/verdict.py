"""How the demonstration says that a step did not happen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class StepFailed(Exception):
    """A step of the demonstration did not happen as it must.

    Attributes:
        step: Which.
        detail: What was seen instead.
    """

    def __init__(self, step: str, detail: str) -> None:
        super().__init__(f"{step}: {detail}")
        self.step = step
        self.detail = detail


def demand(is_so: bool, step: str, detail: str) -> None:
    """Go on only if `is_so`.

    Raises:
        StepFailed: It is not.
    """
    if not is_so:
        raise StepFailed(step, detail)


@asynccontextmanager
async def within(seconds: float, step: str) -> AsyncIterator[None]:
    """Bound what happens inside.

    Raises:
        StepFailed: It took longer.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise StepFailed(step, f"not within {seconds:g} s") from error


def first_of(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first failure of those that ended a group of tasks."""
    found: BaseException = failures
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
