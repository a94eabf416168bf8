"""A simulated owner process: it can be killed or stopped at every await that leaves it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from sandkeeper.core.errors import Unavailable


@dataclass(slots=True)
class Process:
    """One incarnation. A killed one never goes on; a stopped one goes on when it is woken.

    Attributes:
        name: Its name at the lock.
        crash_at: Number of the await at which it dies by itself; None for never.
        trace: Every await it made, for the report of a failure.
    """

    name: str
    crash_at: int | None = None
    awaits: int = 0
    is_dead: bool = False
    trace: list[str] = field(default_factory=list)
    _death: asyncio.Event = field(default_factory=asyncio.Event)
    _running: asyncio.Event = field(default_factory=asyncio.Event)
    on_death: list[Any] = field(default_factory=list)
    _nevers: list[asyncio.Future[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._running.set()

    async def point(self, what: str) -> None:
        """Pass one await; the process may die or be standing still here."""
        self.awaits += 1
        self.trace.append(what)
        if self.awaits == self.crash_at:
            self.kill()
        await self._running.wait()
        if self.is_dead:
            never = asyncio.get_running_loop().create_future()
            self._nevers.append(never)
            await never

    def kill(self) -> None:
        """End it as SIGKILL does: no task of it ever goes on."""
        if not self.is_dead:
            self.is_dead = True
            self._running.set()
            self._death.set()
            for act in self.on_death:
                act()

    def stop(self) -> None:
        """Let it stand still as SIGSTOP does."""
        self._running.clear()

    def wake(self) -> None:
        """Let it go on as SIGCONT does."""
        self._running.set()

    async def answer(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Return what a call into this process answers.

        Raises:
            Unavailable: It died first; whether the call was admitted is not known.
        """
        call = asyncio.ensure_future(work)
        death = asyncio.ensure_future(self._death.wait())
        await asyncio.wait((call, death), return_when=asyncio.FIRST_COMPLETED)
        if self.is_dead or not call.done():
            call.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise Unavailable(f"{self.name} died", code="owner_unreachable", admitted="unknown")
        death.cancel()
        return call.result()
