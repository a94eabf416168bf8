"""One machine on a journal in memory, with a runner whose every reply a test can hold or choose."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sandkeeper.core import commands as cmd
from sandkeeper.core import events as ev
from sandkeeper.core.ids import MachineId
from sandkeeper.core.observation import RuntimeObservation
from sandkeeper.core.record import Phase, SandboxRecord
from sandkeeper.core.recovery import Correction
from sandkeeper.owner.machine import SandboxMachine
from sandkeeper.ports import Ports
from tests.fakes.disk import MemoryDisk
from tests.fakes.journal import FakeJournal
from tests.fakes.lock import FakeLock
from tests.unit.core.samples import record

JOURNAL = "owner.db"
MACHINE_ID = MachineId("m0")

_GOOD: dict[str, Callable[[Any], ev.Reply]] = {
    "launch_runtime": lambda command: ev.RuntimeStarted(command_id=command.command_id),
    "start_kept": lambda command: ev.RuntimeStarted(command_id=command.command_id),
    "freeze_runtime": lambda command: ev.RuntimeFrozen(command_id=command.command_id),
    "thaw_runtime": lambda command: ev.RuntimeThawed(command_id=command.command_id),
    "update_runtime": lambda command: ev.RuntimeResized(command_id=command.command_id),
    "stop_runtime": lambda command: ev.RuntimeStopped(command_id=command.command_id),
    "remove_runtime": lambda command: ev.RuntimeRemoved(command_id=command.command_id),
    "commit_snapshot": lambda command: ev.SnapshotCommitted(
        command_id=command.command_id, image_id="sha256:new", size_bytes=10, delta_bytes=5, freeze_ms=1.0
    ),
}


@dataclass
class ScriptedRunner:
    """A runner in memory.

    Attributes:
        journal: What is durable when a command is performed is noted from here.
        held: Kinds of commands that wait until `release`.
        replies: Other replies than the good ones, by kind; an exception is raised.
        sights: What `observe` returns, one each; the last one for ever. Errors are raised.
        story: Commands begun, ended and cancelled, and corrections, in order.
    """

    journal: FakeJournal
    held: dict[str, asyncio.Event] = field(default_factory=dict)
    replies: dict[str, Any] = field(default_factory=dict)
    sights: list[Any] = field(default_factory=lambda: [None])
    refused_corrections: list[Exception] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    durable: list[SandboxRecord | None] = field(default_factory=list)
    looks: int = 0
    lost: asyncio.Queue[ev.RuntimeLost] = field(default_factory=asyncio.Queue)
    cancel_takes_s: float = 0.0
    ports: Ports | None = None

    async def perform(self, record: SandboxRecord, command: cmd.Command) -> ev.Reply:
        self.story.append(f"begin {command.kind}")
        self.durable.append(await self.journal.record(record.sandbox_id))
        try:
            if command.kind in self.held:
                await self.held[command.kind].wait()
        except asyncio.CancelledError:
            await self._finish_call()
            self.story.append(f"cancelled {command.kind}")
            raise
        made = self.replies.get(command.kind, _GOOD[command.kind])
        if isinstance(made, Exception):
            raise made
        self.story.append(f"end {command.kind}")
        reply: ev.Reply = made(command)
        return reply

    async def _finish_call(self) -> None:
        """As at the real engine: a call that was sent is over before its cancellation goes on, however often asked."""
        if self.ports is None:
            return
        until_s = self.ports.clock.monotonic_s() + self.cancel_takes_s
        while (left_s := until_s - self.ports.clock.monotonic_s()) > 0:
            with suppress(asyncio.CancelledError):
                await self.ports.sleep(left_s)

    async def observe(self, record: SandboxRecord) -> RuntimeObservation | None:
        self.looks += 1
        sight = self.sights.pop(0) if len(self.sights) > 1 else self.sights[0]
        if isinstance(sight, Exception):
            raise sight
        seen: RuntimeObservation | None = sight
        return seen

    async def correct(self, record: SandboxRecord, correction: Correction) -> None:
        self.story.append(f"correct {correction.value}")
        if self.refused_corrections:
            raise self.refused_corrections.pop(0)

    async def wait_lost(self, record: SandboxRecord) -> ev.RuntimeLost:
        return await self.lost.get()

    def hold(self, *kinds: str) -> None:
        """Let commands of these kinds wait."""
        for kind in kinds:
            self.held[kind] = asyncio.Event()

    def release(self, kind: str) -> None:
        """Let the waiting command, and later ones, go on."""
        self.held.pop(kind).set()


@dataclass
class Stage:
    """A machine and what it stands on."""

    ports: Ports
    disk: MemoryDisk
    journal: FakeJournal
    runner: ScriptedRunner
    machine: SandboxMachine
    commits: list[Phase]
    loop: asyncio.Task[Any] | None = None

    def start(self, *, is_recovered: bool = False) -> asyncio.Task[Any]:
        self.loop = self.machine.start(is_recovered=is_recovered)
        return self.loop

    def begin(self) -> None:
        """Start the machine of a new sandbox, or of one that nothing has to be compared for."""
        self.loop = self.machine.start(is_recovered=False)

    def recover(self) -> None:
        """Start the machine as an owner's restart does."""
        self.loop = self.machine.start(is_recovered=True)

    async def kinds(self) -> list[str]:
        """Return the kinds of all journal lines."""
        return [line.kind for line in await self.journal.events()]

    async def rest(self, seconds: float = 1.0) -> None:
        """Let everything go on that can."""
        await self.ports.sleep(seconds)


async def open_journal(ports: Ports, disk: MemoryDisk, *, process: str = "p1") -> FakeJournal:
    """Return the opened journal of a process that holds the lock."""
    lock = FakeLock(disk, "owner.lock", process)
    await lock.acquire_or_end()
    journal = FakeJournal(disk, JOURNAL, MACHINE_ID, lock, ports, commit_s=0.001)
    await journal.open()
    return journal


async def set_stage(ports: Ports, sandbox: SandboxRecord | None = None) -> Stage:
    """Return a machine for `sandbox` (a created one if none is given), not started yet."""
    disk = MemoryDisk()
    journal = await open_journal(ports, disk)
    runner = ScriptedRunner(journal, ports=ports)
    commits: list[Phase] = []

    def on_commit(machine: SandboxMachine) -> None:
        commits.append(machine.record.phase)
        if machine.record.phase is Phase.DESTROYED:
            machine.retire()

    machine = SandboxMachine(
        sandbox or record(Phase.CREATED), journal=journal, runner=runner, ports=ports, on_commit=on_commit
    )
    return Stage(ports, disk, journal, runner, machine, commits)
