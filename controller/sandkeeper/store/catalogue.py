"""The catalogue on disk, written by the directory only.

Owns owners' epochs, reservations, tombstones, images and policies. Never holds what a sandbox is: that is in
its owner's file. Every change is one line more in the `changes` table.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from sandkeeper.core.errors import FailedPrecondition, NotFound
from sandkeeper.core.ids import DEFAULT_TENANT, MachineId, OwnerId, RequestId, SandboxId, SnapshotId, TenantId
from sandkeeper.ports import Ports
from sandkeeper.store import reservations, schema
from sandkeeper.store.catalogue_entries import (
    CatalogueImage,
    ImportRow,
    OwnerRow,
    PolicyVersion,
    Reservation,
    Reserved,
    RetentionRow,
    Tombstone,
    TombstoneState,
)
from sandkeeper.store.catalogue_reader import CatalogueReader
from sandkeeper.store.catalogue_rows import select_one, to_row
from sandkeeper.store.committer import Committer
from sandkeeper.store.contract import WriterLock
from sandkeeper.store.entries import moment_text
from sandkeeper.store.migrations import CATALOGUE_LAYOUT
from sandkeeper.store.statements import insert, insert_first, upsert

T = TypeVar("T")

_ADD_OWNER = insert_first(schema.owners)
_OWNER = "SELECT * FROM owners WHERE owner_id = :owner_id"
_RAISE = (
    "UPDATE owners SET epoch = epoch + 1, pid = :pid, start_ticks = :start_ticks WHERE owner_id = :owner_id"
    " RETURNING epoch"
)
_PUT_TOMBSTONE = f"{upsert(schema.tombstones)} WHERE tombstones.state != '{TombstoneState.DELETED.value}'"
_TOMBSTONE = "SELECT * FROM tombstones WHERE snapshot_id = :snapshot_id"
_PUT_RETENTION = upsert(schema.retentions)
_PUT_IMPORT = upsert(schema.imports)
_DROP_IMPORT = "DELETE FROM imports WHERE snapshot_id = :snapshot_id"
_PUT_IMAGE = upsert(schema.images)
_DROP_IMAGE = "DELETE FROM images WHERE tenant_id = :tenant_id AND name = :name"
_NEXT_POLICY = "SELECT coalesce(max(version), 0) + 1 FROM policies"
_PUT_POLICY = insert(schema.policies)
_PUT_CHANGE = insert(schema.changes)


class Catalogue(CatalogueReader):
    """The directory's file: everything `CatalogueReader` reads, and the writes."""

    def __init__(self, path: Path, *, machine_id: MachineId, lock: WriterLock, ports: Ports) -> None:
        super().__init__(path)
        self._machine_id = machine_id
        self._lock = lock
        self._clock = ports.clock
        self._committer = Committer(path, layout=CATALOGUE_LAYOUT)

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

    async def add_owner(self, owner_id: OwnerId) -> OwnerRow:
        """Make an owner known at epoch 0, or return it as it is. Safe to repeat."""
        made = OwnerRow(machine_id=self._machine_id, owner_id=owner_id, created_at=self._clock.now())
        row = to_row(made)

        def work(connection: sqlite3.Connection) -> OwnerRow:
            connection.execute(_ADD_OWNER, row)
            return select_one(connection, _OWNER, row, model=OwnerRow) or made

        return await self._write(work, kind="owner_added", subject=owner_id)

    async def raise_epoch(self, owner_id: OwnerId, *, pid: int, start_ticks: int) -> int:
        """Give an owner's new incarnation its epoch, higher than any before; durable before it returns.

        Raises:
            NotFound: `owner_unknown`.
        """
        wanted = {"owner_id": owner_id, "pid": pid, "start_ticks": start_ticks}

        def work(connection: sqlite3.Connection) -> int:
            raised = connection.execute(_RAISE, wanted).fetchall()
            if not raised:
                raise NotFound(f"there is no owner {owner_id}", code="owner_unknown")
            return int(raised[0][0])

        return await self._write(work, kind="epoch_raised", subject=owner_id)

    async def reserve(self, reservation: Reservation) -> Reserved:
        """Take a create's request id, name and memory; a repeat of the request finds what it made. Atomic.

        Raises:
            AlreadyExists: `request_id_conflict` for another fingerprint under the id, or `name_taken`.
        """
        return await self._write(
            lambda connection: reservations.reserve(connection, reservation),
            kind="reserved",
            subject=reservation.sandbox_id,
            tenant_id=reservation.tenant_id,
        )

    async def release(self, sandbox_id: SandboxId) -> bool:
        """Free the name and the memory of a sandbox that is gone; return whether they were taken till now.

        The row stays, so that a repeat of the create still finds its sandbox, until it is pruned.
        """
        wanted = {"sandbox_id": sandbox_id, "at": moment_text(self._clock.now())}
        return await self._write(
            lambda connection: reservations.release(connection, wanted),
            kind="released",
            subject=sandbox_id,
        )

    async def resize(self, sandbox_id: SandboxId, *, memory_mib: int) -> bool:
        """Change what admission counts for a sandbox; return whether it has an unreleased reservation."""
        wanted = {"sandbox_id": sandbox_id, "memory_mib": memory_mib}
        return await self._write(
            lambda connection: reservations.resize(connection, wanted),
            kind="resized",
            subject=sandbox_id,
        )

    async def forget_released(self, request_id: RequestId, *, tenant_id: TenantId = DEFAULT_TENANT) -> bool:
        """Forget a create that came to nothing, so that a repeat of its request begins anew; whether it was there.

        One that is not released stays.
        """
        wanted = {"tenant_id": tenant_id, "request_id": request_id}
        return await self._write(
            lambda connection: reservations.forget_released(connection, wanted),
            kind="create_forgotten",
            subject=request_id,
            tenant_id=tenant_id,
        )

    async def prune_reservations(self, *, before: datetime) -> int:
        """Forget reservations released before that moment; return how many."""
        moment = moment_text(before)
        return await self._write(
            lambda connection: reservations.prune(connection, {"before": moment}),
            kind="reservations_pruned",
            subject=moment,
        )

    async def put_tombstone(
        self, snapshot_id: SnapshotId, *, state: TombstoneState, tenant_id: TenantId = DEFAULT_TENANT
    ) -> Tombstone:
        """Mark a snapshot as being deleted, or as deleted, and return the mark in force.

        Safe to repeat; never taken back, and a deleted one stays deleted.
        """
        tombstone = Tombstone(
            tenant_id=tenant_id,
            machine_id=self._machine_id,
            snapshot_id=snapshot_id,
            state=state,
            at=self._clock.now(),
        )
        row = to_row(tombstone)

        def work(connection: sqlite3.Connection) -> Tombstone:
            connection.execute(_PUT_TOMBSTONE, row)
            return select_one(connection, _TOMBSTONE, row, model=Tombstone) or tombstone

        return await self._write(
            work, kind=f"snapshot_{state.value}", subject=snapshot_id, tenant_id=tenant_id
        )

    async def put_retention(
        self,
        snapshot_id: SnapshotId,
        *,
        keep_s: float | None,
        expires_at: datetime | None,
        is_pinned: bool,
        tenant_id: TenantId = DEFAULT_TENANT,
    ) -> RetentionRow:
        """Decide how long a snapshot is kept, in place of what was decided before. Safe to repeat."""
        retention = RetentionRow(
            tenant_id=tenant_id,
            machine_id=self._machine_id,
            snapshot_id=snapshot_id,
            keep_s=keep_s,
            expires_at=expires_at,
            is_pinned=is_pinned,
            at=self._clock.now(),
        )
        row = to_row(retention)

        def work(connection: sqlite3.Connection) -> RetentionRow:
            connection.execute(_PUT_RETENTION, row)
            return retention

        kind = "snapshot_pinned" if is_pinned else "snapshot_renewed"
        return await self._write(work, kind=kind, subject=snapshot_id, tenant_id=tenant_id)

    async def put_import(self, entry: ImportRow) -> ImportRow:
        """Store an import, in place of its earlier state. Safe to repeat."""
        row = to_row(entry)

        def work(connection: sqlite3.Connection) -> ImportRow:
            connection.execute(_PUT_IMPORT, row)
            return entry

        kind = "import_done" if entry.is_done else "import_begun"
        return await self._write(work, kind=kind, subject=entry.snapshot_id, tenant_id=entry.tenant_id)

    async def drop_import(self, snapshot_id: SnapshotId) -> None:
        """Forget an import that did not come to its end. Safe to repeat."""
        await self._write(
            lambda connection: connection.execute(_DROP_IMPORT, {"snapshot_id": snapshot_id}),
            kind="import_dropped",
            subject=snapshot_id,
        )

    async def put_image(
        self, name: str, *, image_id: str, facts: dict[str, Any], tenant_id: TenantId = DEFAULT_TENANT
    ) -> CatalogueImage:
        """Offer an image under a name, in place of what had the name. Safe to repeat."""
        image = CatalogueImage(
            tenant_id=tenant_id,
            machine_id=self._machine_id,
            name=name,
            image_id=image_id,
            facts=facts,
            at=self._clock.now(),
        )
        row = to_row(image)

        def work(connection: sqlite3.Connection) -> CatalogueImage:
            connection.execute(_PUT_IMAGE, row)
            return image

        return await self._write(work, kind="image_put", subject=name, tenant_id=tenant_id)

    async def drop_image(self, name: str, *, tenant_id: TenantId = DEFAULT_TENANT) -> bool:
        """Offer an image no more; return whether it was offered till now."""
        wanted = {"tenant_id": tenant_id, "name": name}
        return await self._write(
            lambda connection: connection.execute(_DROP_IMAGE, wanted).rowcount == 1,
            kind="image_dropped",
            subject=name,
            tenant_id=tenant_id,
        )

    async def put_policy(
        self, document: dict[str, Any], *, tenant_id: TenantId = DEFAULT_TENANT
    ) -> PolicyVersion:
        """Put a policy in force as the next version, and return it."""
        machine_id, at = self._machine_id, self._clock.now()

        def work(connection: sqlite3.Connection) -> PolicyVersion:
            version = int(connection.execute(_NEXT_POLICY).fetchone()[0])
            policy = PolicyVersion(
                tenant_id=tenant_id, machine_id=machine_id, version=version, document=document, at=at
            )
            connection.execute(_PUT_POLICY, to_row(policy))
            return policy

        return await self._write(work, kind="policy_put", subject="policy", tenant_id=tenant_id)

    async def _write(
        self,
        work: Callable[[sqlite3.Connection], T],
        *,
        kind: str,
        subject: str,
        tenant_id: TenantId = DEFAULT_TENANT,
    ) -> T:
        """Run `work` and append its line to the changes, together."""
        change = {
            "tenant_id": tenant_id,
            "machine_id": self._machine_id,
            "kind": kind,
            "subject": subject,
            "at": moment_text(self._clock.now()),
        }

        def with_change(connection: sqlite3.Connection) -> T:
            value = work(connection)
            connection.execute(_PUT_CHANGE, change)
            return value

        return await self._committer.commit(with_change)
