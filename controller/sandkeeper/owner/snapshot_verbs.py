"""The directory's verbs for snapshots: from parameters to the parts that do it."""

from __future__ import annotations

from typing import Any

from sandkeeper.core import snapshot_verbs as params
from sandkeeper.core.verbs import DeleteSnapshot, Nothing, OfSnapshot
from sandkeeper.core.views import SnapshotView
from sandkeeper.owner.archives import Archives
from sandkeeper.owner.collecting import collect
from sandkeeper.owner.reaping import Reaping
from sandkeeper.owner.snapshot_catalogue import SnapshotCatalogue


class SnapshotVerbs:
    """The verbs of one installation."""

    def __init__(self, snapshots: SnapshotCatalogue, *, archives: Archives, reaping: Reaping) -> None:
        self._snapshots = snapshots
        self._archives = archives
        self._reaping = reaping

    def entries(self) -> dict[str, Any]:
        """Return the rows of the dispatch table."""
        return {
            "snapshots": (Nothing, self._list),
            "snapshot": (OfSnapshot, self._show),
            "delete_snapshot": (DeleteSnapshot, self._delete),
            "pin_snapshot": (params.PinSnapshot, self._pin),
            "unpin_snapshot": (params.UnpinSnapshot, self._unpin),
            "gc": (params.CollectGarbage, self._collect),
            "export_snapshot": (params.ExportSnapshot, self._archives.export),
            "import_snapshot": (params.ImportSnapshot, self._archives.import_),
        }

    async def _list(self, wanted: Nothing) -> list[SnapshotView]:
        return await self._snapshots.views()

    async def _show(self, wanted: OfSnapshot) -> SnapshotView:
        return await self._snapshots.view(wanted.snapshot_id)

    async def _delete(self, wanted: DeleteSnapshot) -> None:
        await self._snapshots.delete(wanted.snapshot_id)

    async def _pin(self, wanted: params.PinSnapshot) -> SnapshotView:
        await self._snapshots.find(wanted.snapshot_id)
        await self._snapshots.retentions.pin(wanted.snapshot_id, keep_s=wanted.keep_s)
        return await self._snapshots.view(wanted.snapshot_id)

    async def _unpin(self, wanted: params.UnpinSnapshot) -> SnapshotView:
        await self._snapshots.find(wanted.snapshot_id)
        await self._snapshots.retentions.unpin(wanted.snapshot_id)
        return await self._snapshots.view(wanted.snapshot_id)

    async def _collect(self, wanted: params.CollectGarbage) -> params.GarbageReport:
        return await collect(self._snapshots, self._reaping, dry_run=wanted.dry_run)
