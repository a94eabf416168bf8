"""The virtual twin of `ports`: time that jumps, chance from a seed.

Owns an event loop on which nothing ever waits for real: when all tasks sleep, the clock moves to the next
one that wakes. The same seed gives the same run. For simulation and tests; never used by a running owner.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from sandkeeper.ports import Ports, spawn_task

T = TypeVar("T")

CANCEL_ROUNDS = 10
"""A simulated dead process may await for ever in its `finally` blocks: each await is cancelled in its turn."""
EPOCH = datetime(2030, 1, 1, tzinfo=UTC)


class StandstillError(Exception):
    """Every task waits for something that no task and no timer will bring about."""


class _JumpingSelector(selectors.BaseSelector):
    """Polls the real selector without waiting, and moves the clock instead."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.now_s = 0.0

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._real.select(0)
        if ready:
            return ready
        if timeout is None:
            raise StandstillError("all tasks wait and no timer is set")
        self.now_s += max(0.0, timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return virtual seconds since the loop was made."""
        return self._jumping.now_s


class VirtualClock:
    """The loop's virtual time as wall and monotonic clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._loop.time())

    def monotonic_s(self) -> float:
        return self._loop.time()


def virtual_ports(loop: asyncio.AbstractEventLoop, *, seed: int) -> Ports:
    """Return the doors of a virtual world: the loop's clock, and tokens drawn from `seed`."""
    dice = random.Random(seed)

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds)

    return Ports(
        clock=VirtualClock(loop),
        new_token=lambda: f"{dice.getrandbits(64):016x}",
        sleep=sleep,
        spawn=spawn_task,
    )


def run_virtual(work: Coroutine[Any, Any, T], *, loop: VirtualLoop) -> T:
    """Run `work` to its end in virtual time, then cancel what is left on the loop and close it.

    Raises:
        StandstillError: Nothing can go on any more.
    """
    try:
        return loop.run_until_complete(work)
    finally:
        for _ in range(CANCEL_ROUNDS):
            left = asyncio.all_tasks(loop)
            if not left:
                break
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.wait(left, timeout=1.0))
        loop.close()
