"""The way back from the committer's thread to the tasks that wait on the event loop.

Owns settling their futures. Never decides an outcome.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from structlog.typing import FilteringBoundLogger

from sandkeeper.core.errors import SandkeeperError, error_from_wire

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
"""Statements of one entry; runs on the committer's thread, inside the transaction, and must not wait."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """An entry that is to be made durable, and who waits for it."""

    work: Work[Any]
    future: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one waiting task gets: a value, or an error."""

    future: asyncio.Future[Any]
    value: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Replies:
    """Carries outcomes to the event loop: one wake-up for a whole group."""

    loop: asyncio.AbstractEventLoop
    log: FilteringBoundLogger

    def send(self, outcomes: list[Outcome]) -> None:
        """Settle the futures on their loop; a cancelled one is left alone."""
        try:
            self.loop.call_soon_threadsafe(_settle, outcomes)
        except RuntimeError:
            # The loop is closed: nobody waits any more, and what was committed is in the file.
            self.log.warning("journal_reply_without_loop", outcome_count=len(outcomes))


def refused(group: list[Waiting], *, error: SandkeeperError) -> list[Outcome]:
    """Return an outcome for each, with an error object of its own."""
    return [Outcome(waiting.future, error=error_from_wire(error.to_wire())) for waiting in group]


def _settle(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        if outcome.future.done():
            continue
        if outcome.error is None:
            outcome.future.set_result(outcome.value)
        else:
            outcome.future.set_exception(outcome.error)
