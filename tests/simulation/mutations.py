"""Ways to break the product that the simulation must notice. Each is applied to the real code for one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from sandkeeper.owner.machine import SandboxMachine
from sandkeeper.owner.snapshots import Snapshotter
from tests.fakes.lock import FakeLock

Mutation = Callable[[], Any]


@contextmanager
def skip_the_lock() -> Iterator[None]:
    """The new owner does not end the old one before it acts."""

    async def steal(self: FakeLock, *, grace_s: float = 0.0, timeout_s: float = 10.0) -> None:
        self.disk.locks[self.name] = self.process

    with patch.object(FakeLock, "acquire_or_end", steal):
        yield


@contextmanager
def commit_after_acting() -> Iterator[None]:
    """A command is performed before its record is durable."""
    original = SandboxMachine._move

    async def act_first(self: SandboxMachine, event: Any, move: Any) -> None:
        if move.command is not None:
            self.record = move.record
            self._perform(move.command)
            await self._ports.sleep(0.05)
        await original(self, event, move)

    with patch.object(SandboxMachine, "_move", act_first):
        yield


@contextmanager
def forget_the_unpause() -> Iterator[None]:
    """A snapshot leaves its runtime frozen."""

    async def forget(self: Snapshotter, record: Any, command: Any) -> None:
        return None

    with patch.object(Snapshotter, "_thaw", forget):
        yield


MUTATIONS: dict[str, Mutation] = {
    "skip the lock": skip_the_lock,
    "commit after acting": commit_after_acting,
    "forget the unpause": forget_the_unpause,
}
