"""The journal of an owner in memory, in virtual time; passes the conformance suite of the real one.

A simulated crash is placed by two hooks: `before_commit` runs when nothing of the entry is durable yet,
`after_commit` when all of it is and the writer has not heard so. A hook that raises, or that kills the journal
and cancels its task, crashes there; the `MemoryDisk` keeps what was durable for the next incarnation.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from sandkeeper.core.errors import AlreadyExists, FailedPrecondition, ResourceExhausted
from sandkeeper.core.ids import MachineId, RequestId, SandboxId, SnapshotId, TenantId
from sandkeeper.core.record import Phase, SandboxRecord, SnapshotRecord
from sandkeeper.ports import Ports
from sandkeeper.store.contract import WriterLock
from sandkeeper.store.entries import (
    PHASES_WITHOUT_MEMORY,
    Answer,
    Claims,
    JournalEntry,
    JournalEvent,
    moment_text,
)
from tests.fakes import keeping
from tests.fakes.disk import JournalContent, MemoryDisk

T = TypeVar("T")
Hook = Callable[[str], Awaitable[None]]
"""Called with what is written: the journal line's kind, or `prune_answers`."""


@dataclass(slots=True)
class FakeJournal:
    """`contract.Journal` on a `MemoryDisk`.

    Attributes:
        disk: What survives.
        name: The file on it.
        commit_s: Time one commit takes.
        before_commit: Hook before anything is durable.
        after_commit: Hook after all is durable, before the writer hears so.
    """

    disk: MemoryDisk
    name: str
    machine_id: MachineId
    lock: WriterLock
    ports: Ports
    commit_s: float = 0.0
    before_commit: Hook | None = None
    after_commit: Hook | None = None
    _revision: int = 0
    _is_open: bool = False
    _is_killed: bool = False
    _fenced: FailedPrecondition | None = field(default=None)

    @property
    def state(self) -> keeping.FakeState:
        return keeping.FakeState(self)

    @property
    def alarms(self) -> keeping.FakeAlarms:
        return keeping.FakeAlarms(self)

    @property
    def content(self) -> JournalContent:
        if not self._is_open:
            raise FailedPrecondition(f"{self.name} is closed", code="journal_closed")
        return self.disk.journal(self.name)

    async def open(self) -> None:
        if not self.lock.is_held:
            raise FailedPrecondition(f"{self.name} needs its process lock", code="lock_not_held")
        self._is_open = True
        self._revision = self.content.revision

    async def close(self) -> None:
        self._is_open = False

    def kill(self) -> None:
        """Die as by SIGKILL: writes that are not durable yet never will be, and no call works any more."""
        self._is_killed = True
        self._is_open = False

    async def commit(self, entry: JournalEntry) -> int:
        moment_text(entry.at)
        return await self.write(lambda content: self._put_entry(content, entry), what=entry.kind)

    async def note(
        self,
        sandbox_id: SandboxId,
        *,
        tenant_id: TenantId,
        kind: str,
        at: datetime,
        details: dict[str, Any] | None = None,
    ) -> int:
        moment_text(at)
        line = self._line(sandbox_id, tenant_id=tenant_id, kind=kind, at=at, details=details or {})
        return await self.write(lambda content: _append(content, line), what=kind)

    async def put_answer(self, answer: Answer, *, sandbox_id: SandboxId) -> int:
        details = {"request_id": answer.request_id, "verb": answer.verb, "is_error": answer.is_error}
        line = self._line(
            sandbox_id, tenant_id=answer.tenant_id, kind="answered", at=answer.at, details=details
        )

        def work(content: JournalContent) -> int:
            _refuse_conflicts(content, (answer,))
            _keep_answers(content, (answer,))
            return _append(content, line)

        return await self.write(work, what="answered")

    async def prune_answers(self, *, before: datetime) -> int:
        def work(content: JournalContent) -> int:
            old = [key for key, answer in content.answers.items() if answer.at < before]
            for key in old:
                del content.answers[key]
            return len(old)

        return await self.write(work, what="prune_answers")

    async def prune_history(self, *, before: datetime) -> int:
        def work(content: JournalContent) -> int:
            needed = {snapshot.sandbox_id for snapshot in content.snapshots.values()}
            old = {
                record.sandbox_id
                for record in content.records.values()
                if record.phase is Phase.DESTROYED and record.updated_at < before
            }
            keeping.prune(content, gone=old, before=before)
            for sandbox_id in old - needed:
                del content.records[sandbox_id]
            newer = (index for index, line in enumerate(content.events) if line.at >= before)
            count = next(newer, max(0, len(content.events) - 1))
            del content.events[:count]
            return count

        return await self.write(work, what="prune_history")

    async def answer(self, request_id: RequestId, *, tenant_id: TenantId) -> Answer | None:
        return self.content.answers.get((tenant_id, request_id))

    async def records(self) -> list[SandboxRecord]:
        alive = [record for record in self.content.records.values() if record.phase is not Phase.DESTROYED]
        return sorted(alive, key=lambda record: record.created_at)

    async def record(self, sandbox_id: SandboxId) -> SandboxRecord | None:
        return self.content.records.get(sandbox_id)

    async def events(
        self, sandbox_id: SandboxId | None = None, *, after_seq: int = 0, limit: int = 1000
    ) -> list[JournalEvent]:
        lines = self.content.events
        start = max(0, after_seq + 1 - lines[0].seq) if lines else 0
        wanted = (line for line in lines[start:] if sandbox_id in (None, line.sandbox_id))
        return list(itertools.islice(wanted, limit))

    async def snapshots(
        self, *, tenant_id: TenantId | None = None, sandbox_id: SandboxId | None = None
    ) -> list[SnapshotRecord]:
        found = [
            snapshot
            for snapshot in self.content.snapshots.values()
            if tenant_id in (None, snapshot.tenant_id) and sandbox_id in (None, snapshot.sandbox_id)
        ]
        return sorted(found, key=lambda snapshot: snapshot.created_at)

    async def snapshot(self, snapshot_id: SnapshotId) -> SnapshotRecord | None:
        return self.content.snapshots.get(snapshot_id)

    def _put_entry(self, content: JournalContent, entry: JournalEntry) -> int:
        _refuse_conflicts(content, entry.answers)
        record = entry.record
        content.records[record.sandbox_id] = record
        if record.phase is Phase.DESTROYED:
            keeping.cancel_all(content, sandbox_id=record.sandbox_id, at=entry.at)
        if entry.snapshot is not None:
            content.snapshots[entry.snapshot.snapshot_id] = entry.snapshot
        _keep_answers(content, entry.answers)
        line = self._line(
            record.sandbox_id,
            tenant_id=record.tenant_id,
            kind=entry.kind,
            at=entry.at,
            details=entry.details,
            machine_id=record.machine_id,
        )
        return _append(content, line.model_copy(update={"event": entry.event}))

    def line_of(
        self,
        content: JournalContent,
        sandbox_id: SandboxId,
        *,
        tenant_id: TenantId,
        kind: str,
        at: datetime,
        details: dict[str, Any],
    ) -> int:
        """Append a line inside a write, and return its seq."""
        line = self._line(sandbox_id, tenant_id=tenant_id, kind=kind, at=at, details=details)
        return _append(content, line)

    def _line(
        self,
        sandbox_id: SandboxId,
        *,
        tenant_id: TenantId,
        kind: str,
        at: datetime,
        details: dict[str, Any],
        machine_id: MachineId | None = None,
    ) -> JournalEvent:
        return JournalEvent(
            seq=0,
            tenant_id=tenant_id,
            machine_id=machine_id or self.machine_id,
            sandbox_id=sandbox_id,
            kind=kind,
            at=at,
            details=copy.deepcopy(details),
        )

    async def write(self, work: Callable[[JournalContent], T], *, what: str) -> T:
        if not self._is_open:
            raise FailedPrecondition(f"{self.name} is closed", code="journal_closed")
        try:
            await self.ports.sleep(self.commit_s)
            if self.before_commit is not None:
                await self.before_commit(what)
        except asyncio.CancelledError:
            # As with the real one, a cancelled wait does not take the write back; a kill does.
            if not self._is_killed:
                self._apply(work)
            raise
        value = self._apply(work)
        if self.after_commit is not None:
            await self.after_commit(what)
        return value

    def _apply(self, work: Callable[[JournalContent], T]) -> T:
        if self._is_killed:
            raise asyncio.CancelledError
        if self._fenced is not None:
            raise self._fenced
        content = self.disk.journal(self.name)
        if content.revision != self._revision:
            self._fenced = FailedPrecondition(f"{self.name} has a second writer", code="journal_fenced")
            raise self._fenced
        if self.disk.is_full:
            raise ResourceExhausted("no space left; nothing was changed", code="disk_full", retry_after_s=5.0)
        value = work(content)
        content.revision += 1
        self._revision = content.revision
        return value


def claims_of(content: JournalContent) -> Claims:
    """Return what `OwnerReader.claims` reads from the same records."""
    alive = [record for record in content.records.values() if record.phase is not Phase.DESTROYED]
    return Claims(
        births=frozenset(record.birth_id for record in alive if record.birth_id is not None),
        given_up=frozenset(name for record in content.records.values() for name in record.given_up),
        pending=frozenset(record.pending.command_id for record in alive if record.pending is not None),
    )


def memory_in_use_mib(content: JournalContent) -> int:
    """Return what `OwnerReader.memory_in_use_mib` reads from the same records."""
    counted = [record for record in content.records.values() if record.phase not in PHASES_WITHOUT_MEMORY]
    return sum(record.spec.size.memory_mib for record in counted)


def _append(content: JournalContent, line: JournalEvent) -> int:
    seq = content.events[-1].seq + 1 if content.events else 1
    content.events.append(line.model_copy(update={"seq": seq}))
    return seq


def _refuse_conflicts(content: JournalContent, answers: tuple[Answer, ...]) -> None:
    for answer in answers:
        kept = content.answers.get((answer.tenant_id, answer.request_id))
        if kept is not None and kept.fingerprint != answer.fingerprint:
            raise AlreadyExists(
                f"request {answer.request_id} was answered for other parameters",
                code="request_id_conflict",
                request_id=answer.request_id,
            )


def _keep_answers(content: JournalContent, answers: tuple[Answer, ...]) -> None:
    for answer in answers:
        content.answers.setdefault((answer.tenant_id, answer.request_id), answer)
