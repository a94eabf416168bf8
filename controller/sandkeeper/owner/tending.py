"""Looks after running sandboxes: notices ailing ones, and puts idle ones to rest.

Owns the rhythm of looking and what counts as idle or ailing. Decides nothing about phases: it hands events to
the machines like everybody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, assert_never

import structlog

from sandkeeper.core import events as ev
from sandkeeper.core.errors import SandkeeperError
from sandkeeper.core.ids import SandboxId
from sandkeeper.core.record import Phase, SandboxRecord
from sandkeeper.core.rows_of_requests import IDLE
from sandkeeper.core.spec import Keep, OnIdle
from sandkeeper.owner.machine import SandboxMachine
from sandkeeper.ports import Ports

log = structlog.get_logger(__name__)

SILENCES = 2
"""Looks in a row without an answer after which a box counts as ailing."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at a box showed.

    Attributes:
        idle_s: Seconds without activity; 0 while there is some.
        code: What ails it, or None.
        message: The evidence.
    """

    idle_s: float
    code: str | None = None
    message: str = ""


class Carer(Protocol):
    """What the tender can do to boxes."""

    async def look(self, record: SandboxRecord) -> Look:
        """Look at a running box.

        Raises:
            SandkeeperError: It does not answer.
        """
        ...

    async def quiesce_if_idle(self, record: SandboxRecord) -> bool:
        """Have the box take no new work, unless some is going on; return whether it is at rest.

        Raises:
            SandkeeperError: It does not answer.
        """
        ...


class Tender:
    """Tends the sandboxes of one owner."""

    def __init__(self, carer: Carer, *, ports: Ports) -> None:
        self._carer = carer
        self._ports = ports
        self._silences: dict[SandboxId, int] = {}

    async def tend(self, machines: Iterable[SandboxMachine]) -> None:
        """Look at every running sandbox once."""
        running = [machine for machine in machines if _is_quiet(machine.record)]
        await asyncio.gather(*(self._tend(machine) for machine in running))
        known = {machine.record.sandbox_id for machine in running}
        self._silences = {name: count for name, count in self._silences.items() if name in known}

    async def _tend(self, machine: SandboxMachine) -> None:
        record = machine.record
        try:
            look = await self._carer.look(record)
            self._silences.pop(record.sandbox_id, None)
        except SandkeeperError as error:
            look = self._silent(record, error)
        known = record.ailment.code if record.ailment else None
        if look.code != known and machine.record is record:
            machine.tell(ev.HealthChanged(generation=record.generation, code=look.code, message=look.message))
        if _is_idle(record, look):
            await self._rest(machine, record)

    def _silent(self, record: SandboxRecord, error: SandkeeperError) -> Look:
        count = self._silences[record.sandbox_id] = self._silences.get(record.sandbox_id, 0) + 1
        if count < SILENCES:
            return Look(0.0, record.ailment.code if record.ailment else None)
        return Look(0.0, "sandbox_unhealthy", f"boxd does not answer: {error.code}")

    async def _rest(self, machine: SandboxMachine, record: SandboxRecord) -> None:
        try:
            if not await self._carer.quiesce_if_idle(record) or machine.record is not record:
                return
        except SandkeeperError as error:
            log.warning("rest_failed", sandbox_id=record.sandbox_id, code=error.code)
            return
        log.info("sandbox_idle", sandbox_id=record.sandbox_id, on_idle=record.spec.on_idle.value)
        match record.spec.on_idle:
            case OnIdle.SNAPSHOT:
                machine.tell(ev.StopRequested(keep=Keep.SNAPSHOT, reason=IDLE))
            case OnIdle.STOP:
                machine.tell(ev.StopRequested(keep=Keep.FILES, reason=IDLE))
            case OnIdle.PAUSE:
                machine.tell(ev.PauseRequested(reason=IDLE))
            case OnIdle.DESTROY:
                machine.tell(ev.DestroyRequested(reason=IDLE))
            case _:
                assert_never(record.spec.on_idle)


def _is_quiet(record: SandboxRecord) -> bool:
    return record.phase is Phase.RUNNING and record.pending is None and record.birth_id is not None


def _is_idle(record: SandboxRecord, look: Look) -> bool:
    limit_s = record.spec.idle_timeout_s
    return limit_s is not None and look.code is None and look.idle_s >= limit_s
