"""The doors to time and chance.

Every room takes its clock, ids, sleeping and task spawning from a `Ports` value handed to its constructor.
`real_ports()` is the real twin; `sandkeeper.virtual` gives the same doors in virtual time.
No other module of the package may call `time`, `random`, `uuid`, `secrets` or `asyncio.create_task`.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol


class Clock(Protocol):
    """Wall time for records, monotonic time for durations."""

    def now(self) -> datetime:
        """Return the present moment, aware, in UTC."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds on a clock that never steps; only differences mean anything."""
        ...


Sleep = Callable[[float], Awaitable[None]]
NewToken = Callable[[], str]


class Spawn(Protocol):
    """Starts a task that its caller holds."""

    def __call__(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]: ...


@dataclass(frozen=True, slots=True)
class Ports:
    """The four doors, given to every constructor that needs one of them.

    Attributes:
        clock: Wall and monotonic time.
        new_token: Returns 16 fresh lower-case hexadecimal characters.
        sleep: Suspends the caller for a number of seconds.
        spawn: Starts a named task; the caller keeps the returned handle.
    """

    clock: Clock
    new_token: NewToken
    sleep: Sleep
    spawn: Spawn


class RealClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        return time.monotonic()


def spawn_task(work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
    """Start `work` on the running loop under `name`; the caller must hold the task."""
    return asyncio.get_running_loop().create_task(work, name=name)


async def sleep_for(seconds: float) -> None:
    """Suspend the calling task for `seconds` on the running loop's clock."""
    await asyncio.sleep(seconds)


def real_ports() -> Ports:
    """Return the doors of the real machine."""
    return Ports(clock=RealClock(), new_token=lambda: secrets.token_hex(8), sleep=sleep_for, spawn=spawn_task)
