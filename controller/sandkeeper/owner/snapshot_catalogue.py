"""Snapshots across owners: which are valid, who uses them, and their deletion.

Owns leases of creates in progress and tombstones. The rows themselves are the owners'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from sandkeeper.containers.engine import Engine
from sandkeeper.core.errors import FailedPrecondition, NotFound, SandkeeperError
from sandkeeper.core.ids import InstallationId, OwnerId, SnapshotId, snapshot_image_tag
from sandkeeper.core.record import SnapshotRecord
from sandkeeper.owner.survey import FoundSnapshot, Survey
from sandkeeper.ports import Ports
from sandkeeper.store.catalogue import Catalogue
from sandkeeper.store.catalogue_entries import TombstoneState

log = structlog.get_logger(__name__)


class SnapshotCatalogue:
    """All snapshots of one installation."""

    def __init__(
        self,
        *,
        installation_id: InstallationId,
        catalogue: Catalogue,
        survey: Survey,
        engine: Engine,
        ports: Ports,
    ) -> None:
        self._installation_id = installation_id
        self._catalogue = catalogue
        self._survey = survey
        self._engine = engine
        self._ports = ports
        self._leases: Counter[SnapshotId] = Counter()
        self._deleting: set[SnapshotId] = set()

    @contextmanager
    def lease(self, snapshot_id: SnapshotId | None) -> Iterator[None]:
        """Keep a snapshot from being deleted while a create that stands on it is in progress.

        Raises:
            NotFound: `snapshot_not_found`: it is being deleted.
        """
        if snapshot_id is None:
            yield
            return
        if snapshot_id in self._deleting:
            raise _unknown(snapshot_id)
        self._leases[snapshot_id] += 1
        try:
            yield
        finally:
            self._leases[snapshot_id] -= 1
            if not self._leases[snapshot_id]:
                del self._leases[snapshot_id]

    async def valid(self) -> list[SnapshotRecord]:
        """Return all valid snapshots, oldest first."""
        gone = await self.gone()
        return [
            snapshot
            for snapshot in await self._survey.snapshots(await self._owners())
            if snapshot.snapshot_id not in gone
        ]

    async def find(self, snapshot_id: SnapshotId) -> FoundSnapshot:
        """Return one valid snapshot.

        Raises:
            NotFound: `snapshot_not_found`: never taken, or deleted.
        """
        found = await self._survey.snapshot(snapshot_id, await self._owners())
        if found is None or await self._catalogue.tombstone(snapshot_id) is not None:
            raise _unknown(snapshot_id)
        return found

    async def delete(self, snapshot_id: SnapshotId) -> None:
        """Delete a snapshot and its image. A repeat is safe.

        Raises:
            NotFound: `snapshot_not_found`: there never was such a snapshot.
            FailedPrecondition: `snapshot_in_use`, with the sandboxes that stand on it.
            Unavailable: The engine does not answer; the snapshot counts as deleted, its image goes later.
        """
        if await self._survey.snapshot(snapshot_id, await self._owners()) is None:
            raise _unknown(snapshot_id)
        self._deleting.add(snapshot_id)
        try:
            await self._refuse_used(snapshot_id)
            await self._catalogue.put_tombstone(snapshot_id, state=TombstoneState.DELETING)
        finally:
            self._deleting.discard(snapshot_id)
        await self._engine.untag_or_remove_image(snapshot_image_tag(self._installation_id, snapshot_id))
        await self._catalogue.put_tombstone(snapshot_id, state=TombstoneState.DELETED)

    async def prune(self) -> None:
        """Delete snapshots whose time is over and that nothing uses."""
        now = self._ports.clock.now()
        for snapshot in await self.valid():
            if snapshot.expires_at is None or snapshot.expires_at > now:
                continue
            try:
                await self.delete(snapshot.snapshot_id)
            except SandkeeperError as error:
                log.info("snapshot_kept", snapshot_id=snapshot.snapshot_id, code=error.code)

    async def gone(self) -> frozenset[SnapshotId]:
        """Return the snapshots that were deleted."""
        return frozenset(tombstone.snapshot_id for tombstone in await self._catalogue.tombstones())

    async def _refuse_used(self, snapshot_id: SnapshotId) -> None:
        """Count creates in progress before the records are read: one that ends meanwhile is in the records."""
        creates = self._leases[snapshot_id]
        users = await self._survey.users(snapshot_id, await self._owners())
        if not users and not creates:
            return
        raise FailedPrecondition(
            f"snapshot {snapshot_id} is used by {len(users)} sandboxes and {creates} creates",
            code="snapshot_in_use",
            advice="destroy those sandboxes first",
            details={"sandboxes": users},
        )

    async def _owners(self) -> list[OwnerId]:
        return [row.owner_id for row in await self._catalogue.owners()]


def _unknown(snapshot_id: SnapshotId) -> NotFound:
    return NotFound(
        f"there is no snapshot {snapshot_id}",
        code="snapshot_not_found",
        advice="list snapshots to see which exist",
    )
