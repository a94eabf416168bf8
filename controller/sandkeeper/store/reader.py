"""Reading an owner's file, from any process, while its owner writes it.

Owns the queries. Never writes. Every call sees all that was durable when it began.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Self

from sandkeeper.core.ids import BirthId, CommandId, RequestId, SandboxId, SnapshotId, TenantId
from sandkeeper.core.record import Phase, SandboxRecord, SnapshotRecord
from sandkeeper.store.entries import PHASES_WITHOUT_MEMORY, Answer, Claims, JournalEvent
from sandkeeper.store.migrations import OWNER_LAYOUT
from sandkeeper.store.reading import ReadConnection, Row

_ALIVE = f"phase != '{Phase.DESTROYED.value}'"
_WITHOUT_MEMORY = ", ".join(f"'{phase.value}'" for phase in sorted(PHASES_WITHOUT_MEMORY))

_RECORDS = f"SELECT document FROM sandboxes WHERE {_ALIVE} ORDER BY created_at, rowid"
_DESTROYED = f"SELECT document FROM sandboxes WHERE NOT ({_ALIVE}) ORDER BY created_at, rowid"
_RECORD = "SELECT document FROM sandboxes WHERE sandbox_id = :sandbox_id"
_CLAIMS = f"SELECT birth_id, pending_id, given_up, {_ALIVE} FROM sandboxes WHERE {_ALIVE} OR given_up != '[]'"
_MEMORY = f"SELECT coalesce(sum(memory_mib), 0) FROM sandboxes WHERE phase NOT IN ({_WITHOUT_MEMORY})"
_ANSWER = "SELECT document FROM answers WHERE tenant_id = :tenant_id AND request_id = :request_id"
_EVENT_COLUMNS = "seq, tenant_id, machine_id, sandbox_id, kind, at, event, details"
_EVENTS = f"SELECT {_EVENT_COLUMNS} FROM events WHERE seq > :after_seq ORDER BY seq LIMIT :limit"
_EVENTS_OF_ONE = (
    f"SELECT {_EVENT_COLUMNS} FROM events WHERE sandbox_id = :sandbox_id AND seq > :after_seq"
    " ORDER BY seq LIMIT :limit"
)
_SNAPSHOTS = (
    "SELECT document FROM snapshots WHERE coalesce(:tenant_id, tenant_id) = tenant_id"
    " AND coalesce(:sandbox_id, sandbox_id) = sandbox_id ORDER BY created_at, rowid"
)
_SNAPSHOT = "SELECT document FROM snapshots WHERE snapshot_id = :snapshot_id"


class OwnerReader:
    """Read-only view of one `owner.db`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = ReadConnection(path, layout=OWNER_LAYOUT)

    async def open(self) -> None:
        """Connect; see `ReadConnection.open` for what it raises."""
        await self._file.open()

    async def close(self) -> None:
        """Disconnect; safe to repeat."""
        await self._file.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def records(self) -> list[SandboxRecord]:
        """Return the records of all sandboxes that are not destroyed, oldest first."""
        return await self._file.documents(_RECORDS, model=SandboxRecord)

    async def destroyed(self) -> list[SandboxRecord]:
        """Return the records of destroyed sandboxes that history still keeps, oldest first."""
        return await self._file.documents(_DESTROYED, model=SandboxRecord)

    async def record(self, sandbox_id: SandboxId) -> SandboxRecord | None:
        """Return one record, a destroyed one too."""
        found = await self._file.documents(_RECORD, {"sandbox_id": sandbox_id}, model=SandboxRecord)
        return found[0] if found else None

    async def claims(self) -> Claims:
        """Return the names at the engine that this owner's records claim, await, or have given up.

        Read it after the engine was listed: a claim is durable before its container is made.
        """
        rows = await self._file.rows(_CLAIMS)
        return Claims(
            births=frozenset(
                BirthId(birth) for birth, _, _, is_alive in rows if is_alive and birth is not None
            ),
            given_up=frozenset(name for _, _, names, _ in rows for name in json.loads(names)),
            pending=frozenset(CommandId(number) for _, number, _, is_alive in rows if is_alive and number),
        )

    async def memory_in_use_mib(self) -> int:
        """Return the sum of the memory limits of all sandboxes that have a runtime or are about to."""
        return int((await self._file.rows(_MEMORY))[0][0])

    async def answer(self, request_id: RequestId, *, tenant_id: TenantId) -> Answer | None:
        """Return the answer kept for a request, if any."""
        wanted = {"tenant_id": tenant_id, "request_id": request_id}
        found = await self._file.documents(_ANSWER, wanted, model=Answer)
        return found[0] if found else None

    async def events(
        self, sandbox_id: SandboxId | None = None, *, after_seq: int = 0, limit: int = 1000
    ) -> list[JournalEvent]:
        """Return up to `limit` journal lines after `after_seq`, oldest first, of one sandbox or of all."""
        statement = _EVENTS if sandbox_id is None else _EVENTS_OF_ONE
        wanted = {"sandbox_id": sandbox_id, "after_seq": after_seq, "limit": limit}
        return [self._event(row) for row in await self._file.rows(statement, wanted)]

    async def snapshots(
        self, *, tenant_id: TenantId | None = None, sandbox_id: SandboxId | None = None
    ) -> list[SnapshotRecord]:
        """Return committed snapshots, oldest first."""
        wanted = {"tenant_id": tenant_id, "sandbox_id": sandbox_id}
        return await self._file.documents(_SNAPSHOTS, wanted, model=SnapshotRecord)

    async def snapshot(self, snapshot_id: SnapshotId) -> SnapshotRecord | None:
        """Return one committed snapshot."""
        found = await self._file.documents(_SNAPSHOT, {"snapshot_id": snapshot_id}, model=SnapshotRecord)
        return found[0] if found else None

    def _event(self, row: Row) -> JournalEvent:
        seq, tenant_id, machine_id, sandbox_id, kind, at, event, details = row
        head = json.dumps(
            {
                "seq": seq,
                "tenant_id": tenant_id,
                "machine_id": machine_id,
                "sandbox_id": sandbox_id,
                "kind": kind,
                "at": at,
            }
        )
        document = f'{head[:-1]}, "event": {event or "null"}, "details": {details}}}'
        return self._file.parsed(document, model=JournalEvent)
