"""What an owner needs of its journal and its lock: the promises the real ones and the fakes both keep.

Owns the Protocols. The conformance suite tests every implementation against them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

from sandkeeper.core.ids import OwnerId, RequestId, SandboxId, SnapshotId, TenantId
from sandkeeper.core.record import SandboxRecord, SnapshotRecord
from sandkeeper.store.catalogue_entries import OwnerRow
from sandkeeper.store.entries import Answer, JournalEntry, JournalEvent
from sandkeeper.store.keeping import KeptAlarms, KeptState


class WriterLock(Protocol):
    """Says whether its holder may write."""

    @property
    def is_held(self) -> bool:
        """Whether the lock is held by this incarnation."""
        ...


class Epochs(Protocol):
    """Numbers the incarnations of owners; the directory's catalogue is one."""

    async def raise_epoch(self, owner_id: OwnerId, *, pid: int, start_ticks: int) -> int:
        """Return an epoch higher than any this owner had, durable before the return."""
        ...

    async def owner(self, owner_id: OwnerId) -> OwnerRow | None:
        """Return what is known of an owner."""
        ...


class Journal(Protocol):
    """One owner's durable memory.

    A write that returned survives kill -9 of every process and a machine restart. A write that raised with
    `admitted` "no" changed nothing; with "unknown" the journal refuses all further writes and only a reopened
    one tells. Cancelling a waiting write does not take it back.
    """

    @property
    def state(self) -> KeptState:
        """The key-value state of its sandboxes."""
        ...

    @property
    def alarms(self) -> KeptAlarms:
        """Their alarms; those of a sandbox are cancelled by the commit of its destruction."""
        ...

    async def commit(self, entry: JournalEntry) -> int:
        """Make `entry` durable, all of it or nothing, and return the seq of its journal line."""
        ...

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
        ...

    async def put_answer(self, answer: Answer, *, sandbox_id: SandboxId) -> int:
        """Keep the answer of a request that changed no record (a line of kind `answered`); return the seq.

        The first answer of a request id stays. Raises AlreadyExists `request_id_conflict` when it was given
        for another fingerprint.
        """
        ...

    async def answer(self, request_id: RequestId, *, tenant_id: TenantId) -> Answer | None:
        """Return the answer kept for a request, if any."""
        ...

    async def prune_answers(self, *, before: datetime) -> int:
        """Forget answers given before that moment; return how many."""
        ...

    async def prune_history(self, *, before: datetime) -> int:
        """Forget the oldest journal lines, never the newest, and what is destroyed, of before that moment.

        State and alarms of destroyed sandboxes go with them, and alarms that have ended.
        Returns how many lines went; it is bounded, so call again while it is large.
        """
        ...

    async def records(self) -> list[SandboxRecord]:
        """Return the records of all sandboxes that are not destroyed, oldest first."""
        ...

    async def record(self, sandbox_id: SandboxId) -> SandboxRecord | None:
        """Return one record, a destroyed one too."""
        ...

    async def events(
        self, sandbox_id: SandboxId | None = None, *, after_seq: int = 0, limit: int = 1000
    ) -> list[JournalEvent]:
        """Return up to `limit` journal lines after `after_seq`, oldest first, of one sandbox or of all."""
        ...

    async def snapshots(
        self, *, tenant_id: TenantId | None = None, sandbox_id: SandboxId | None = None
    ) -> list[SnapshotRecord]:
        """Return committed snapshots, oldest first."""
        ...

    async def snapshot(self, snapshot_id: SnapshotId) -> SnapshotRecord | None:
        """Return one committed snapshot."""
        ...

    async def close(self) -> None:
        """Finish the writes already asked for and close; safe to repeat."""
        ...
