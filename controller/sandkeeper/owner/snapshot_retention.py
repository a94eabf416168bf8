"""How long snapshots are kept, as it was decided since they were taken: pins, and renewals by use.

Owns reading and writing of those decisions. The rules are `core.snapshots`; deletion is `snapshot_catalogue`.
"""

from __future__ import annotations

from collections.abc import Iterable

from sandkeeper.core.ids import SnapshotId
from sandkeeper.core.record import SnapshotRecord
from sandkeeper.core.snapshots import Retention, kept_for, renewed, retention_of
from sandkeeper.ports import Ports
from sandkeeper.store.catalogue import Catalogue


class Retentions:
    """The retention in force of every snapshot of an installation."""

    def __init__(self, catalogue: Catalogue, *, default_keep_s: float, ports: Ports) -> None:
        self._catalogue = catalogue
        self._default_keep_s = default_keep_s
        self._ports = ports

    async def of(self, snapshot: SnapshotRecord) -> Retention:
        """Return the retention in force of one snapshot."""
        return (await self.of_all([snapshot]))[snapshot.snapshot_id]

    async def of_all(self, snapshots: Iterable[SnapshotRecord]) -> dict[SnapshotId, Retention]:
        """Return the retention in force of each of these."""
        decided = {
            row.snapshot_id: Retention(row.keep_s, row.expires_at)
            for row in await self._catalogue.retentions()
        }
        return {
            snapshot.snapshot_id: retention_of(
                snapshot, kept=decided.get(snapshot.snapshot_id), automatic_keep_s=self._default_keep_s
            )
            for snapshot in snapshots
        }

    async def pinned(self) -> frozenset[SnapshotId]:
        """Return the snapshots whose retention a caller has decided."""
        return frozenset(row.snapshot_id for row in await self._catalogue.retentions() if row.is_pinned)

    async def pin(self, snapshot_id: SnapshotId, *, keep_s: float | None) -> Retention:
        """Keep a snapshot for that long after its last use, or for ever."""
        retention = kept_for(keep_s, now=self._ports.clock.now())
        await self._put(snapshot_id, retention, is_pinned=True)
        return retention

    async def unpin(self, snapshot_id: SnapshotId) -> Retention:
        """Keep a snapshot for the policy's time after its last use, counted from now."""
        retention = kept_for(self._default_keep_s, now=self._ports.clock.now())
        await self._put(snapshot_id, retention, is_pinned=False)
        return retention

    async def renew(self, snapshots: Iterable[SnapshotRecord]) -> None:
        """Count a use of each of these now; what gains next to nothing is not written."""
        now = self._ports.clock.now()
        pinned = await self.pinned()
        for snapshot_id, retention in (await self.of_all(snapshots)).items():
            after = renewed(retention, now=now)
            if after is not None:
                await self._put(snapshot_id, after, is_pinned=snapshot_id in pinned)

    async def _put(self, snapshot_id: SnapshotId, retention: Retention, *, is_pinned: bool) -> None:
        await self._catalogue.put_retention(
            snapshot_id, keep_s=retention.keep_s, expires_at=retention.expires_at, is_pinned=is_pinned
        )
