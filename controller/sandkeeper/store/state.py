"""The key-value state of sandboxes in an owner's file.

Owns its table's statements. The version of a key is the number of the journal line that wrote it: it only rises,
also when the key is deleted and made again, so a compare-and-set never takes an old value for the present one.
"""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from sandkeeper.core.ids import MachineId, SandboxId
from sandkeeper.core.state import StateEntry, StateItem, check_room, check_version
from sandkeeper.store import journal_rows as rows
from sandkeeper.store import lines, schema
from sandkeeper.store.committer import Committer
from sandkeeper.store.entries import Answer, moment_text
from sandkeeper.store.keeping import StateChange
from sandkeeper.store.reading import ReadConnection
from sandkeeper.store.statements import upsert

_PUT = upsert(schema.states)
_VERSION = "SELECT version FROM states WHERE sandbox_id = :sandbox_id AND key = :key"
_OTHERS = (
    "SELECT coalesce(sum(size_bytes), 0), count(*) FROM states WHERE sandbox_id = :sandbox_id AND key != :key"
)
_DELETE = "DELETE FROM states WHERE sandbox_id = :sandbox_id AND key = :key"
_ENTRY = (
    "SELECT key, version, size_bytes, updated_at, document FROM states"
    " WHERE sandbox_id = :sandbox_id AND key = :key"
)
_ITEMS = (
    "SELECT key, version, size_bytes, updated_at FROM states"
    " WHERE sandbox_id = :sandbox_id AND substr(key, 1, length(:prefix)) = :prefix ORDER BY key"
)
PRUNE = (
    "DELETE FROM states WHERE sandbox_id IN"
    " (SELECT sandbox_id FROM sandboxes WHERE phase = 'destroyed' AND updated_at < :before)"
)


class StateTable:
    """`keeping.KeptState` on an owner's file."""

    def __init__(self, committer: Committer, *, file: ReadConnection, machine_id: MachineId) -> None:
        self._committer = committer
        self._file = file
        self._machine_id = machine_id

    async def change(self, change: StateChange) -> Answer:
        """Make a change durable and return its answer (see `keeping.KeptState`)."""
        line = rows.note_row(
            change.sandbox_id,
            tenant_id=change.tenant_id,
            machine_id=self._machine_id,
            kind=change.kind,
            at=change.at,
            details=change.details(),
        )
        wanted = {"sandbox_id": change.sandbox_id, "key": change.key}

        def work(connection: sqlite3.Connection) -> Answer:
            known = lines.repeated(connection, change.request, tenant_id=change.tenant_id)
            if known is not None:
                return known
            lines.refuse_gone(connection, change.sandbox_id)
            found = connection.execute(_VERSION, wanted).fetchone()
            check_version(change.key, wanted=change.if_version, found=0 if found is None else found[0])
            if change.text is not None:
                others_bytes, others_count = connection.execute(_OTHERS, wanted).fetchone()
                check_room(size_bytes=change.size_bytes, others_bytes=others_bytes, others_count=others_count)
            seq = lines.put_line(connection, line)
            if change.text is None:
                connection.execute(_DELETE, wanted)
            else:
                connection.execute(_PUT, self._row(change, version=seq))
            answer = change.answered(change.document(version=seq, was_there=found is not None))
            lines.put_answer(connection, rows.answer_row(answer, machine_id=self._machine_id))
            return answer

        return await self._committer.commit(work)

    async def entry(self, sandbox_id: SandboxId, *, key: str) -> StateEntry | None:
        """Return one key with its value, of a destroyed sandbox too."""
        found = await self._file.rows(_ENTRY, {"sandbox_id": sandbox_id, "key": key})
        if not found:
            return None
        *head, text = found[0]
        return self._file.parsed(f'{json.dumps(_named(head))[:-1]}, "value": {text}}}', model=StateEntry)

    async def items(self, sandbox_id: SandboxId, *, prefix: str = "") -> list[StateItem]:
        """Return the keys that begin with `prefix`, in their own order."""
        found = await self._file.rows(_ITEMS, {"sandbox_id": sandbox_id, "prefix": prefix})
        return [self._file.parsed(json.dumps(_named(row)), model=StateItem) for row in found]

    def _row(self, change: StateChange, *, version: int) -> dict[str, Any]:
        return {
            "sandbox_id": change.sandbox_id,
            "key": change.key,
            "tenant_id": change.tenant_id,
            "machine_id": self._machine_id,
            "version": version,
            "size_bytes": change.size_bytes,
            "updated_at": moment_text(change.at),
            "document": change.text,
        }


def _named(row: Any) -> dict[str, Any]:
    return dict(zip(("key", "version", "size_bytes", "updated_at"), row, strict=True))
