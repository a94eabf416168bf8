"""The owner's journal on disk: records, journal lines, snapshots and answers in one file.

Owns what one commit writes. Never decides anything: the record it is given is the truth. Only the holder of
the owner's process lock opens it.
"""

from __future__ import annotations

import sqlite3
from datetime import datetime
from pathlib import Path
from typing import Any

from sandkeeper.core.errors import FailedPrecondition
from sandkeeper.core.ids import MachineId, SandboxId, TenantId
from sandkeeper.core.record import Phase
from sandkeeper.store import alarms, lines, schema, state
from sandkeeper.store import journal_rows as rows
from sandkeeper.store.alarms import AlarmTable
from sandkeeper.store.committer import Committer
from sandkeeper.store.contract import WriterLock
from sandkeeper.store.entries import Answer, JournalEntry, moment_text
from sandkeeper.store.migrations import OWNER_LAYOUT
from sandkeeper.store.reader import OwnerReader
from sandkeeper.store.state import StateTable
from sandkeeper.store.statements import upsert

PRUNED_LINES_MAX = 10_000
"""Journal lines one `prune_history` removes: it shares the committer's thread with every commit."""

_PUT_RECORD = upsert(schema.sandboxes)
_PUT_SNAPSHOT = upsert(schema.snapshots)
_PRUNE_ANSWERS = "DELETE FROM answers WHERE at < :before"
_PRUNE_EVENTS = (
    "DELETE FROM events WHERE seq < (SELECT min(seq) FROM events) + :limit AND seq < coalesce("
    "(SELECT seq FROM events WHERE at >= :before ORDER BY seq LIMIT 1), (SELECT max(seq) FROM events))"
)
_PRUNE_DESTROYED = (
    "DELETE FROM sandboxes WHERE phase = 'destroyed' AND updated_at < :before"
    " AND sandbox_id NOT IN (SELECT sandbox_id FROM snapshots)"
)


class OwnerJournal(OwnerReader):
    """`contract.Journal` on a SQLite file: everything `OwnerReader` reads, and the writes.

    Attributes:
        state: The key-value state of its sandboxes.
        alarms: Their alarms.
    """

    def __init__(self, path: Path, *, machine_id: MachineId, lock: WriterLock) -> None:
        super().__init__(path)
        self._machine_id = machine_id
        self._lock = lock
        self._committer = Committer(path, layout=OWNER_LAYOUT)
        self.state = StateTable(self._committer, file=self._file, machine_id=machine_id)
        self.alarms = AlarmTable(self._committer, file=self._file, machine_id=machine_id)

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
            await super().open()
        except BaseException:
            await self._committer.close()
            raise

    async def close(self) -> None:
        """Finish the writes already asked for and close; safe to repeat. Before the lock is released."""
        try:
            await super().close()
        finally:
            await self._committer.close()

    async def commit(self, entry: JournalEntry) -> int:
        """Make `entry` durable, all of it or nothing, and return the seq of its journal line.

        Raises:
            AlreadyExists: `request_id_conflict`; an answer is kept for that id with another fingerprint.
            SandkeeperError: As `Committer.commit`.
        """
        record = rows.record_row(entry.record)
        line = rows.event_row(entry)
        snapshot = None if entry.snapshot is None else rows.snapshot_row(entry.snapshot)
        answers = [rows.answer_row(answer, machine_id=self._machine_id) for answer in entry.answers]

        def work(connection: sqlite3.Connection) -> int:
            connection.execute(_PUT_RECORD, record)
            if entry.record.phase is Phase.DESTROYED:
                alarms.cancel_all(connection, sandbox_id=entry.record.sandbox_id, at=line["at"])
            if snapshot is not None:
                connection.execute(_PUT_SNAPSHOT, snapshot)
            for answer in answers:
                lines.put_answer(connection, answer)
            return lines.put_line(connection, line)

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
        line = rows.note_row(
            sandbox_id,
            tenant_id=tenant_id,
            machine_id=self._machine_id,
            kind=kind,
            at=at,
            details=details or {},
        )
        return await self._committer.commit(lambda connection: lines.put_line(connection, line))

    async def put_answer(self, answer: Answer, *, sandbox_id: SandboxId) -> int:
        """Keep the answer of a request that changed no record, and return the seq of its `answered` line.

        Raises:
            AlreadyExists: `request_id_conflict`.
        """
        row = rows.answer_row(answer, machine_id=self._machine_id)
        line = rows.note_row(
            sandbox_id,
            tenant_id=answer.tenant_id,
            machine_id=self._machine_id,
            kind="answered",
            at=answer.at,
            details={"request_id": answer.request_id, "verb": answer.verb, "is_error": answer.is_error},
        )

        def work(connection: sqlite3.Connection) -> int:
            lines.put_answer(connection, row)
            return lines.put_line(connection, line)

        return await self._committer.commit(work)

    async def prune_answers(self, *, before: datetime) -> int:
        """Forget answers given before that moment; return how many."""
        moment = moment_text(before)
        return await self._committer.commit(
            lambda connection: connection.execute(_PRUNE_ANSWERS, {"before": moment}).rowcount
        )

    async def prune_history(self, *, before: datetime) -> int:
        """Forget the oldest journal lines, and destroyed sandboxes, of before that moment.

        Only lines at the beginning go, at most PRUNED_LINES_MAX of them, and never the newest: so seqs have no
        gaps and are never given twice. A sandbox that snapshots were taken of stays: they say what it was. State of
        destroyed sandboxes and alarms that have ended go with their age.

        Returns:
            How many lines went; when it is PRUNED_LINES_MAX, call it again.
        """
        wanted = {"before": moment_text(before), "limit": PRUNED_LINES_MAX}

        def work(connection: sqlite3.Connection) -> int:
            connection.execute(state.PRUNE, wanted)
            connection.execute(alarms.PRUNE, wanted)
            connection.execute(_PRUNE_DESTROYED, wanted)
            return connection.execute(_PRUNE_EVENTS, wanted).rowcount

        return await self._committer.commit(work)
