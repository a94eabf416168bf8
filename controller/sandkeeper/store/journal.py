"""The owner's journal on disk: records, journal lines, snapshots and answers in one file.

Owns what one commit writes. Never decides anything: the record it is given is the truth. Only the holder of
the owner's process lock opens it.
"""

from __future__ import annotations

import json
import sqlite3
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from pydantic_core import to_json

from sandkeeper.core.errors import AlreadyExists, FailedPrecondition
from sandkeeper.core.ids import MachineId, RequestId, SandboxId, SnapshotId, TenantId
from sandkeeper.core.record import SandboxRecord, SnapshotRecord
from sandkeeper.store import schema
from sandkeeper.store.committer import Committer
from sandkeeper.store.contract import WriterLock
from sandkeeper.store.entries import Answer, JournalEntry, JournalEvent, moment_text
from sandkeeper.store.migrations import OWNER_LAYOUT
from sandkeeper.store.reader import OwnerReader
from sandkeeper.store.statements import insert, insert_first, upsert

_PUT_RECORD = upsert(schema.sandboxes)
_PUT_EVENT = insert(schema.events)
_PUT_SNAPSHOT = upsert(schema.snapshots)
_PUT_ANSWER = insert_first(schema.answers)
_ANSWERED_AS = "SELECT fingerprint FROM answers WHERE tenant_id = :tenant_id AND request_id = :request_id"
_PRUNE_ANSWERS = "DELETE FROM answers WHERE at < :before"

Parameters = dict[str, Any]


class OwnerJournal:
    """`contract.Journal` on a SQLite file."""

    def __init__(self, path: Path, *, machine_id: MachineId, lock: WriterLock) -> None:
        self.path = path
        self._machine_id = machine_id
        self._lock = lock
        self._committer = Committer(path, layout=OWNER_LAYOUT)
        self._reader = OwnerReader(path)

    async def open(self) -> None:
        """Check the file, bring it up, and make it ready; once per object.

        Raises:
            FailedPrecondition: `lock_not_held`, `schema_newer` or `schema_foreign`; nothing was changed.
            DataLoss: `journal_damaged` or `journal_unwritable`; nothing was changed.
            ResourceExhausted: `disk_full`.
        """
        if not self._lock.is_held:
            raise FailedPrecondition(
                f"{self.path.name} may be written only under its process lock", code="lock_not_held"
            )
        await self._committer.open()
        try:
            await self._reader.open()
        except BaseException:
            await self._committer.close()
            raise

    async def close(self) -> None:
        """Finish the writes already asked for and close; safe to repeat. Before the lock is released."""
        await self._reader.close()
        await self._committer.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---- writes

    async def commit(self, entry: JournalEntry) -> int:
        """Make `entry` durable, all of it or nothing, and return the seq of its journal line.

        Raises:
            AlreadyExists: `request_id_conflict`; an answer is kept for that id with another fingerprint.
            SandkeeperError: As `Committer.commit`.
        """
        record_row = _record_row(entry.record)
        event_row = _event_row(entry)
        snapshot_row = None if entry.snapshot is None else _snapshot_row(entry.snapshot)
        answer_rows = [self._answer_row(answer) for answer in entry.answers]

        def work(connection: sqlite3.Connection) -> int:
            connection.execute(_PUT_RECORD, record_row)
            if snapshot_row is not None:
                connection.execute(_PUT_SNAPSHOT, snapshot_row)
            for row in answer_rows:
                _put_answer(connection, row)
            return _put_event(connection, event_row)

        return await self._committer.commit(work)

    async def note(
        self,
        sandbox_id: SandboxId,
        *,
        tenant_id: TenantId,
        kind: str,
        at: datetime,
        details: dict[str, Any] | None = None,
    ) -> int:
        """Append a journal line that changes no record, and return its seq."""
        row = self._note_row(sandbox_id, tenant_id=tenant_id, kind=kind, at=at, details=details or {})
        return await self._committer.commit(lambda connection: _put_event(connection, row))

    async def put_answer(self, answer: Answer, *, sandbox_id: SandboxId) -> int:
        """Keep the answer of a request that changed no record, and return the seq of its `answered` line.

        Raises:
            AlreadyExists: `request_id_conflict`.
        """
        details = {"request_id": answer.request_id, "verb": answer.verb, "is_error": answer.is_error}
        answer_row = self._answer_row(answer)
        line = self._note_row(
            sandbox_id, tenant_id=answer.tenant_id, kind="answered", at=answer.at, details=details
        )

        def work(connection: sqlite3.Connection) -> int:
            _put_answer(connection, answer_row)
            return _put_event(connection, line)

        return await self._committer.commit(work)

    async def prune_answers(self, *, before: datetime) -> int:
        """Forget answers given before that moment; return how many."""
        moment = moment_text(before)
        return await self._committer.commit(
            lambda connection: connection.execute(_PRUNE_ANSWERS, {"before": moment}).rowcount
        )

    # ---- reads

    async def answer(self, request_id: RequestId, *, tenant_id: TenantId) -> Answer | None:
        """Return the answer kept for a request, if any."""
        return await self._reader.answer(request_id, tenant_id=tenant_id)

    async def records(self) -> list[SandboxRecord]:
        """Return the records of all sandboxes that are not destroyed, oldest first."""
        return await self._reader.records()

    async def record(self, sandbox_id: SandboxId) -> SandboxRecord | None:
        """Return one record, a destroyed one too."""
        return await self._reader.record(sandbox_id)

    async def events(
        self, sandbox_id: SandboxId | None = None, *, after_seq: int = 0, limit: int = 1000
    ) -> list[JournalEvent]:
        """Return up to `limit` journal lines after `after_seq`, oldest first, of one sandbox or of all."""
        return await self._reader.events(sandbox_id, after_seq=after_seq, limit=limit)

    async def snapshots(
        self, *, tenant_id: TenantId | None = None, sandbox_id: SandboxId | None = None
    ) -> list[SnapshotRecord]:
        """Return committed snapshots, oldest first."""
        return await self._reader.snapshots(tenant_id=tenant_id, sandbox_id=sandbox_id)

    async def snapshot(self, snapshot_id: SnapshotId) -> SnapshotRecord | None:
        """Return one committed snapshot."""
        return await self._reader.snapshot(snapshot_id)

    def _answer_row(self, answer: Answer) -> Parameters:
        return {
            "tenant_id": answer.tenant_id,
            "request_id": answer.request_id,
            "machine_id": self._machine_id,
            "fingerprint": answer.fingerprint,
            "at": moment_text(answer.at),
            "document": answer.model_dump_json(),
        }

    def _note_row(
        self, sandbox_id: SandboxId, *, tenant_id: TenantId, kind: str, at: datetime, details: dict[str, Any]
    ) -> Parameters:
        return {
            "tenant_id": tenant_id,
            "machine_id": self._machine_id,
            "sandbox_id": sandbox_id,
            "kind": kind,
            "at": moment_text(at),
            "event": None,
            "details": to_json(details).decode(),
        }


def _record_row(record: SandboxRecord) -> Parameters:
    return {
        "sandbox_id": record.sandbox_id,
        "tenant_id": record.tenant_id,
        "machine_id": record.machine_id,
        "name": record.name,
        "phase": record.phase.value,
        "birth_id": record.birth_id,
        "pending_id": None if record.pending is None else record.pending.command_id,
        "given_up": json.dumps(record.given_up) if record.given_up else "[]",
        "memory_mib": record.spec.size.memory_mib,
        "created_at": moment_text(record.created_at),
        "document": record.model_dump_json(),
    }


def _event_row(entry: JournalEntry) -> Parameters:
    return {
        "tenant_id": entry.record.tenant_id,
        "machine_id": entry.record.machine_id,
        "sandbox_id": entry.record.sandbox_id,
        "kind": entry.kind,
        "at": moment_text(entry.at),
        "event": None if entry.event is None else entry.event.model_dump_json(),
        "details": to_json(entry.details).decode() if entry.details else "{}",
    }


def _snapshot_row(snapshot: SnapshotRecord) -> Parameters:
    return {
        "snapshot_id": snapshot.snapshot_id,
        "tenant_id": snapshot.tenant_id,
        "machine_id": snapshot.machine_id,
        "sandbox_id": snapshot.sandbox_id,
        "created_at": moment_text(snapshot.created_at),
        "document": snapshot.model_dump_json(),
    }


def _put_event(connection: sqlite3.Connection, row: Parameters) -> int:
    seq = connection.execute(_PUT_EVENT, row).lastrowid
    if seq is None:
        raise FailedPrecondition("an insert into the journal got no seq", code="journal_error")
    return seq


def _put_answer(connection: sqlite3.Connection, row: Parameters) -> None:
    if connection.execute(_PUT_ANSWER, row).rowcount == 1:
        return
    kept = connection.execute(_ANSWERED_AS, row).fetchone()
    if kept is not None and kept[0] != row["fingerprint"]:
        raise AlreadyExists(
            f"request {row['request_id']} was answered for other parameters",
            code="request_id_conflict",
            advice="use a new request id for a different request",
            request_id=row["request_id"],
        )
