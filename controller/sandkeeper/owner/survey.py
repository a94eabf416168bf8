"""What all owners' files say, read by the directory: the owners' records are the truth, also while one is down.

Owns read-only views of the owners' journals. Never writes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sandkeeper.containers.reaper import KnownNames
from sandkeeper.core.errors import DataLoss, error_from_wire
from sandkeeper.core.ids import DEFAULT_TENANT, BirthId, CommandId, OwnerId, RequestId, SandboxId, SnapshotId
from sandkeeper.core.record import Phase, SandboxRecord, SnapshotRecord
from sandkeeper.owner.config import StatePaths
from sandkeeper.store.catalogue_entries import OwnerRow
from sandkeeper.store.reader import OwnerReader

Found = TypeVar("Found", SandboxRecord, SnapshotRecord)


@dataclass(frozen=True, slots=True)
class FoundSnapshot:
    """A snapshot and the catalogue name its sandbox was created under."""

    snapshot: SnapshotRecord
    image: str


class Survey:
    """Readers of every owner's journal, opened when first needed."""

    def __init__(self, paths: StatePaths) -> None:
        self._paths = paths
        self._readers: dict[OwnerId, OwnerReader] = {}

    async def record(self, sandbox_id: SandboxId, *, owner_id: OwnerId) -> SandboxRecord | None:
        """Return one record, a destroyed one too; None when its owner never stored it."""
        reader = await self._reader(owner_id)
        return None if reader is None else await reader.record(sandbox_id)

    async def answer(self, request_id: RequestId, *, owner_id: OwnerId) -> dict[str, Any] | None:
        """Return the answer that owner gave to a request, or None when it has not answered.

        Raises:
            SandkeeperError: The answer was an error.
        """
        reader = await self._reader(owner_id)
        answer = None if reader is None else await reader.answer(request_id, tenant_id=DEFAULT_TENANT)
        if answer is not None and answer.is_error:
            raise error_from_wire(answer.document)
        return None if answer is None else answer.document

    async def records(self, owners: list[OwnerId]) -> list[SandboxRecord]:
        """Return all records that are not destroyed, of these owners, oldest first."""
        return await self._gather(owners, lambda reader: reader.records())

    async def destroyed(self, owners: list[OwnerId]) -> list[SandboxRecord]:
        """Return the records of destroyed sandboxes that history still keeps, of these owners, oldest first."""
        return await self._gather(owners, lambda reader: reader.destroyed())

    async def snapshots(self, owners: list[OwnerId]) -> list[SnapshotRecord]:
        """Return all committed snapshots, of these owners, oldest first; deleted ones too."""
        return await self._gather(owners, lambda reader: reader.snapshots())

    async def snapshot(self, snapshot_id: SnapshotId, owners: list[OwnerId]) -> FoundSnapshot | None:
        """Return one committed snapshot and its image's name, wherever it is."""
        for owner_id in owners:
            reader = await self._reader(owner_id)
            snapshot = None if reader is None else await reader.snapshot(snapshot_id)
            if reader is None or snapshot is None:
                continue
            source = await reader.record(snapshot.sandbox_id)
            if source is not None:
                return FoundSnapshot(snapshot, source.spec.image)
        return None

    async def users(self, snapshot_id: SnapshotId, owners: list[OwnerId]) -> list[SandboxId]:
        """Return the sandboxes that stand on a snapshot now, or would at their next launch."""
        return [
            record.sandbox_id
            for record in await self.records(owners)
            if record.phase is not Phase.DESTROYED and snapshot_id in _stands_on(record)
        ]

    async def used(self, owners: list[OwnerId]) -> frozenset[SnapshotId]:
        """Return every snapshot that some sandbox stands on now, or would at its next launch."""
        found: set[SnapshotId | None] = set()
        for record in await self.records(owners):
            if record.phase is not Phase.DESTROYED:
                found |= _stands_on(record)
        return frozenset(snapshot_id for snapshot_id in found if snapshot_id is not None)

    async def known_names(self, owners: list[OwnerRow], deleted: frozenset[SnapshotId]) -> KnownNames:
        """Return every engine name the records claim; read it after the engine was listed.

        Records are read before snapshots: one that is committed in between is in one of the two.

        Raises:
            DataLoss: `journal_missing`: an owner that has acted has no journal, so nothing can be called
                unclaimed.
        """
        births: set[BirthId] = set()
        given_up: set[str] = set()
        pending: set[CommandId] = set()
        snapshots: set[SnapshotId] = set()
        for row in owners:
            reader = await self._reader(row.owner_id)
            if reader is None and row.epoch == 0:
                continue
            if reader is None:
                raise DataLoss(
                    f"owner {row.owner_id} has reached epoch {row.epoch} and has no journal",
                    code="journal_missing",
                    advice="restore the state folder from a backup; nothing is removed until then",
                )
            for record in await reader.records():
                if record.pending is not None and record.pending.kind == "commit_snapshot":
                    snapshots.add(record.pending.snapshot_id)
            snapshots |= {snapshot.snapshot_id for snapshot in await reader.snapshots()}
            claims = await reader.claims()
            births |= claims.births
            given_up |= claims.given_up
            pending |= claims.pending
        return KnownNames(
            births=frozenset(births),
            given_up=frozenset(given_up),
            pending=frozenset(pending),
            snapshots=frozenset(snapshots) - deleted,
        )

    async def close(self) -> None:
        """Close all readers. Repeating is safe."""
        while self._readers:
            await self._readers.popitem()[1].close()

    async def _gather(
        self, owners: list[OwnerId], read: Callable[[OwnerReader], Awaitable[list[Found]]]
    ) -> list[Found]:
        """Return what `read` finds in the journals of these owners, oldest first."""
        found: list[Found] = []
        for owner_id in owners:
            reader = await self._reader(owner_id)
            if reader is not None:
                found += await read(reader)
        return sorted(found, key=lambda one: one.created_at)

    async def _reader(self, owner_id: OwnerId) -> OwnerReader | None:
        """Return a reader, or None for an owner that has not made its file yet."""
        known = self._readers.get(owner_id)
        if known is not None:
            return known
        path = self._paths.owner(owner_id).journal
        if not path.exists():
            return None
        reader = OwnerReader(path)
        await reader.open()
        self._readers[owner_id] = reader
        return reader


def _stands_on(record: SandboxRecord) -> set[SnapshotId | None]:
    runtime = record.runtime_boot.snapshot_id if record.runtime_boot and record.birth_id else None
    return {record.boot.snapshot_id, runtime}
