"""`keeper.snapshots`: the committed snapshots of this installation.

Owns nothing but the words: what a snapshot is and whether it may go is decided where it is kept.
"""

from __future__ import annotations

from sandkeeper.client.results import Snapshot
from sandkeeper.client.routing import Router
from sandkeeper.core.ids import RequestId, SnapshotId
from sandkeeper.core.verbs import DeleteSnapshot, Nothing, OfSnapshot


class Snapshots:
    """Reads and deletes snapshots. Taking one is a sandbox's verb, restoring one a create's."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def list(self) -> list[Snapshot]:
        """Return all snapshots."""
        found: list[Snapshot] = await self._router.directory("snapshots", Nothing(), answer=list[Snapshot])
        return found

    async def get(self, snapshot_id: str) -> Snapshot:
        """Return one snapshot.

        Raises:
            NotFound: `snapshot_not_found`.
        """
        found: Snapshot = await self._router.directory(
            "snapshot", OfSnapshot(snapshot_id=SnapshotId(snapshot_id)), answer=Snapshot
        )
        return found

    async def delete(self, snapshot_id: str, *, request_id: str | None = None) -> None:
        """Delete a snapshot and its image. May be repeated with the same request id.

        Raises:
            FailedPrecondition: Something still starts from it.
        """
        params = DeleteSnapshot(
            snapshot_id=SnapshotId(snapshot_id),
            request_id=RequestId(request_id or self._router.ports.new_token()),
        )
        await self._router.directory("delete_snapshot", params, answer=None)
