"""Ways to break the product that the simulation must notice. Each is applied to the real code for one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

from sandkeeper.core.errors import SandkeeperError
from sandkeeper.owner.alarms import AlarmClock
from sandkeeper.owner.machine import SandboxMachine
from sandkeeper.owner.snapshots import Snapshotter
from tests.fakes.keeping import FakeState
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


@contextmanager
def forget_alarms_at_a_restart() -> Iterator[None]:
    """A new owner fires only alarms once it is told of one."""
    original = AlarmClock.run

    async def wait_first(self: AlarmClock) -> None:
        await self._changed.wait()
        await original(self)

    with patch.object(AlarmClock, "run", wait_first):
        yield


@contextmanager
def answer_before_the_commit() -> Iterator[None]:
    """A write of state is answered although it is durable only later."""
    original = FakeState.change

    async def later(self: FakeState, change: Any) -> Any:
        async def write() -> None:
            await self.journal.ports.sleep(1.0)
            with suppress(SandkeeperError):
                await original(self, change)

        _ = self.journal.ports.spawn(write(), name="late write")
        return change.answered({"key": change.key})

    with patch.object(FakeState, "change", later):
        yield


MUTATIONS: dict[str, Mutation] = {
    "skip the lock": skip_the_lock,
    "commit after acting": commit_after_acting,
    "forget the unpause": forget_the_unpause,
    "forget alarms at a restart": forget_alarms_at_a_restart,
    "answer before the commit": answer_before_the_commit,
}
