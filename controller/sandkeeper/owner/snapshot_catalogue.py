"""Snapshots across owners: which there are and in what state, who uses them, and their deletion.

Owns leases of creates in progress and tombstones. The rows themselves are the owners', or the catalogue's for those
that came from archives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from sandkeeper.containers.engine import Engine
from sandkeeper.core.errors import FailedPrecondition, NotFound, SandkeeperError, Unavailable
from sandkeeper.core.ids import InstallationId, OwnerId, SnapshotId, snapshot_image_tag
from sandkeeper.core.record import SnapshotRecord
from sandkeeper.core.snapshots import prunable, snapshot_missing, state_of
from sandkeeper.core.views import SnapshotView, snapshot_view
from sandkeeper.owner.snapshot_retention import Retentions
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
        retentions: Retentions,
        ports: Ports,
    ) -> None:
        self.retentions = retentions
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
        """Return all snapshots that were not deleted, oldest first."""
        gone = await self.gone()
        taken = await self._survey.snapshots(await self._owners())
        found = [*taken, *(one.snapshot for one in await self._imported())]
        return sorted(
            (snapshot for snapshot in found if snapshot.snapshot_id not in gone),
            key=lambda snapshot: snapshot.created_at,
        )

    async def views(self) -> list[SnapshotView]:
        """Return all snapshots as callers see them: with the retention in force, and whether their images are there."""
        now, snapshots = self._ports.clock.now(), await self.valid()
        retentions = await self.retentions.of_all(snapshots)
        present = await self._present()
        return [
            snapshot_view(
                snapshot,
                retention=retentions[snapshot.snapshot_id],
                state=state_of(
                    retentions[snapshot.snapshot_id],
                    is_present=None if present is None else snapshot.boot.image_id in present,
                    now=now,
                ),
            )
            for snapshot in snapshots
        ]

    async def view(self, snapshot_id: SnapshotId) -> SnapshotView:
        """Return one snapshot as callers see it.

        Raises:
            NotFound: `snapshot_not_found`.
        """
        snapshot = (await self.find(snapshot_id)).snapshot
        retention = await self.retentions.of(snapshot)
        present = await self._present()
        is_present = None if present is None else snapshot.boot.image_id in present
        return snapshot_view(
            snapshot,
            retention=retention,
            state=state_of(retention, is_present=is_present, now=self._ports.clock.now()),
        )

    async def restorable(self, snapshot_id: SnapshotId) -> FoundSnapshot:
        """Return one snapshot for a create that stands on it, and count the use.

        Raises:
            NotFound: `snapshot_not_found`: never taken, or deleted.
            DataLoss: `snapshot_missing`: its image is gone from the engine.
        """
        found = await self.find(snapshot_id)
        if await self._engine.image(found.snapshot.boot.image_id) is None:
            raise snapshot_missing(snapshot_id)
        await self.retentions.renew([found.snapshot])
        return found

    async def find(self, snapshot_id: SnapshotId) -> FoundSnapshot:
        """Return one valid snapshot.

        Raises:
            NotFound: `snapshot_not_found`: never taken, or deleted.
        """
        found = await self._lookup(snapshot_id)
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
        if await self._lookup(snapshot_id) is None:
            raise _unknown(snapshot_id)
        self._deleting.add(snapshot_id)
        try:
            await self._refuse_used(snapshot_id)
            await self._catalogue.put_tombstone(snapshot_id, state=TombstoneState.DELETING)
        finally:
            self._deleting.discard(snapshot_id)
        await self._engine.untag_or_remove_image(snapshot_image_tag(self._installation_id, snapshot_id))
        await self._catalogue.put_tombstone(snapshot_id, state=TombstoneState.DELETED)

    async def prunable(self) -> dict[SnapshotId, str]:
        """Return the snapshots that may go now, each with the reason."""
        snapshots = await self.valid()
        return prunable(
            snapshots,
            retentions=await self.retentions.of_all(snapshots),
            pinned=await self.retentions.pinned(),
            used=await self._used(),
            now=self._ports.clock.now(),
        )

    async def prune(self) -> list[SnapshotId]:
        """Renew what is in use, delete what is over and that nothing uses, and return what was deleted."""
        used = await self._used()
        await self.retentions.renew([one for one in await self.valid() if one.snapshot_id in used])
        gone: list[SnapshotId] = []
        for snapshot_id, why in (await self.prunable()).items():
            try:
                await self.delete(snapshot_id)
            except SandkeeperError as error:
                log.info("snapshot_kept", snapshot_id=snapshot_id, code=error.code)
            else:
                log.info("snapshot_pruned", snapshot_id=snapshot_id, why=why)
                gone.append(snapshot_id)
        return gone

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

    async def named(self) -> frozenset[SnapshotId]:
        """Return the snapshots from archives, those being imported too: their names at the engine are claimed."""
        return frozenset(row.snapshot_id for row in await self._catalogue.imports())

    async def _lookup(self, snapshot_id: SnapshotId) -> FoundSnapshot | None:
        for found in await self._imported():
            if found.snapshot.snapshot_id == snapshot_id:
                return found
        return await self._survey.snapshot(snapshot_id, await self._owners())

    async def _imported(self) -> list[FoundSnapshot]:
        return [
            FoundSnapshot(SnapshotRecord.model_validate(row.document), row.image)
            for row in await self._catalogue.imports()
            if row.is_done
        ]

    async def _used(self) -> frozenset[SnapshotId]:
        """Return what is in use; creates in progress first: one that ends meanwhile is in the records."""
        creates = frozenset(self._leases)
        return creates | await self._survey.used(await self._owners())

    async def _present(self) -> frozenset[str] | None:
        """Return the ids of this installation's images, or None when the engine cannot be asked."""
        try:
            return frozenset(image.image_id for image in await self._engine.list_images())
        except Unavailable as error:
            log.info("images_unknown", code=error.code)
            return None

    async def _owners(self) -> list[OwnerId]:
        return [row.owner_id for row in await self._catalogue.owners()]


def _unknown(snapshot_id: SnapshotId) -> NotFound:
    return NotFound(
        f"there is no snapshot {snapshot_id}",
        code="snapshot_not_found",
        advice="list snapshots to see which exist",
    )
