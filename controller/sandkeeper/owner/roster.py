"""The sandboxes of one owner: which machines run, and what they share.

Owns the set of machines from load to destruction, the periodic audit, and the news for those who wait for
events. Never handles an event itself.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import structlog

from sandkeeper.containers.engine import Engine
from sandkeeper.core.errors import ResourceExhausted, SandkeeperError
from sandkeeper.core.ids import BirthId, MachineId, OwnerId, SandboxId
from sandkeeper.core.record import Phase, SandboxRecord
from sandkeeper.core.recovery import NOTHING, recover
from sandkeeper.core.verbs import AdoptSpec
from sandkeeper.owner.machine import SandboxMachine
from sandkeeper.owner.performing import Runner
from sandkeeper.ports import Ports
from sandkeeper.store.contract import Journal

log = structlog.get_logger(__name__)

Fatal = Callable[[str], None]


class PathOfBox(Protocol):
    """Says where a box's control socket lies."""

    def control_path(self, birth_id: BirthId) -> Path:
        """Return the path clients connect to."""
        ...


class Roster:
    """The machines of one owner."""

    def __init__(
        self,
        *,
        owner_id: OwnerId,
        machine_id: MachineId,
        epoch: int,
        capacity: int,
        journal: Journal,
        engine: Engine,
        runner: Runner,
        boxes: PathOfBox,
        ports: Ports,
        fatal: Fatal,
    ) -> None:
        self.epoch = epoch
        self._owner_id = owner_id
        self._machine_id = machine_id
        self._capacity = capacity
        self._journal = journal
        self._engine = engine
        self._runner = runner
        self._boxes = boxes
        self._ports = ports
        self._fatal = fatal
        self._machines: dict[SandboxId, SandboxMachine] = {}
        self._news = asyncio.Event()

    async def load(self) -> int:
        """Start a machine for every sandbox that is not destroyed; each compares itself with reality first.

        Each journal gets a line `owner_restarted` with the epoch, so that users see who acts since when.
        """
        records = await self._journal.records()
        await asyncio.gather(*(self._note_restart(record) for record in records))
        for record in records:
            self._begin(record, is_recovered=True)
        return len(self._machines)

    def find(self, sandbox_id: SandboxId) -> SandboxMachine | None:
        """Return the machine of a sandbox, or None when it is unknown here or destroyed."""
        return self._machines.get(sandbox_id)

    def add(self, params: AdoptSpec) -> SandboxMachine:
        """Make the machine of a new sandbox; it is durable with its first event.

        Raises:
            ResourceExhausted: `owner_full`.
        """
        if len(self._machines) >= self._capacity:
            raise ResourceExhausted(
                f"owner {self._owner_id} has {self._capacity} sandboxes", code="owner_full", retry_after_s=1.0
            )
        now = self._ports.clock.now()
        record = SandboxRecord(
            sandbox_id=params.sandbox_id,
            tenant_id=params.tenant_id,
            machine_id=self._machine_id,
            owner_id=self._owner_id,
            name=params.name,
            spec=params.spec,
            boot=params.spec.boot,
            created_at=now,
            updated_at=now,
        )
        return self._begin(record, is_recovered=False)

    def claimed_by(self, birth_id: BirthId) -> SandboxId | None:
        """Return the sandbox whose record claims that birth id."""
        for sandbox_id, machine in self._machines.items():
            if machine.record.birth_id == birth_id:
                return sandbox_id
        return None

    def control_path(self, birth_id: BirthId) -> Path:
        """Return the socket of that box's boxd."""
        return self._boxes.control_path(birth_id)

    def status(self) -> dict[str, Any]:
        """Return who this owner is and how much it has."""
        return {
            "owner_id": self._owner_id,
            "epoch": self.epoch,
            "pid": os.getpid(),
            "sandbox_count": len(self._machines),
        }

    def news(self) -> asyncio.Event:
        """Return the event of the next commit of any sandbox; take it before reading what there is already."""
        return self._news

    def announce(self) -> None:
        """Wake those who wait for news: something was written to the journal."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def audit(self) -> None:
        """Compare all quiet sandboxes with one listing of the engine; those that differ look for themselves."""
        try:
            listed = {seen.birth_id: seen for seen in await self._engine.list_runtimes()}
        except SandkeeperError as error:
            log.warning("audit_skipped", code=error.code, message=error.message)
            return
        for machine in list(self._machines.values()):
            record = machine.record
            if record.pending is not None or record.birth_id is None:
                continue
            if recover(record, listed.get(record.birth_id)) != NOTHING:
                machine.check()

    def machines(self) -> list[SandboxMachine]:
        """Return the machines of all sandboxes that are not destroyed."""
        return list(self._machines.values())

    async def close(self) -> None:
        """End all machines; nothing durable changes and runtimes go on."""
        machines = list(self._machines.values())
        self._machines.clear()
        await asyncio.gather(*(machine.close() for machine in machines))

    def forget(self, machine: SandboxMachine) -> None:
        """Drop a machine: destroyed, or its create never became durable."""
        self._machines.pop(machine.record.sandbox_id, None)

    async def drop_unstored(self, machine: SandboxMachine) -> None:
        """End a machine whose first event the journal refused: there never was such a sandbox."""
        if machine.record.phase is Phase.CREATED:
            self.forget(machine)
            await machine.close()

    async def _note_restart(self, record: SandboxRecord) -> None:
        """Tell a sandbox's readers who acts now; a full disk costs the line, not the start."""
        try:
            await self._journal.note(
                record.sandbox_id,
                tenant_id=record.tenant_id,
                kind="owner_restarted",
                at=self._ports.clock.now(),
                details={"epoch": self.epoch, "phase": record.phase.value, "generation": record.generation},
            )
        except ResourceExhausted as error:
            log.warning("restart_not_told", sandbox_id=record.sandbox_id, code=error.code)

    def _begin(self, record: SandboxRecord, *, is_recovered: bool) -> SandboxMachine:
        machine = SandboxMachine(
            record, journal=self._journal, runner=self._runner, ports=self._ports, on_commit=self._on_commit
        )
        self._machines[record.sandbox_id] = machine
        machine.start(is_recovered=is_recovered).add_done_callback(self._on_end)
        return machine

    def _on_commit(self, machine: SandboxMachine) -> None:
        self.announce()
        if machine.record.phase is Phase.DESTROYED:
            self.forget(machine)
            machine.retire()

    def _on_end(self, loop: asyncio.Task[Any]) -> None:
        error = None if loop.cancelled() else loop.exception()
        if error is None:
            return
        log.critical("machine_ended", error=repr(error), exc_info=error)
        self._fatal(f"{loop.get_name()} ended with {error!r}")


async def wait_for(event: asyncio.Event, *, timeout_s: float) -> None:
    """Return when the event is set, or when the time is over."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
