"""`keeper.snapshots`: the committed snapshots of this installation.

Owns nothing but the words, and the waiting for what takes long: what a snapshot is, how long it is kept and whether
it may go is decided where it is kept.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sandkeeper.client.results import Exported, GarbageReport, Snapshot
from sandkeeper.client.routing import Router
from sandkeeper.core.errors import Aborted, AlreadyExists
from sandkeeper.core.ids import RequestId, SnapshotId
from sandkeeper.core.snapshot_verbs import (
    CollectGarbage,
    ExportSnapshot,
    ImportSnapshot,
    PinSnapshot,
    UnpinSnapshot,
)
from sandkeeper.core.verbs import DeleteSnapshot, Nothing, OfSnapshot, Params, checked


class Snapshots:
    """Reads, keeps, moves and deletes snapshots. Taking one is a sandbox's verb, restoring one a create's.

    Every mutating method may be repeated with the same request id.
    """

    def __init__(self, router: Router) -> None:
        self._router = router

    async def list(self) -> list[Snapshot]:
        """Return all snapshots, oldest first; `state` says whether one can be restored."""
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
        params = checked(
            DeleteSnapshot, snapshot_id=SnapshotId(snapshot_id), request_id=self._request(request_id)
        )
        await self._router.directory("delete_snapshot", params, answer=None)

    async def pin(
        self, snapshot_id: str, *, keep_s: float | None = None, request_id: str | None = None
    ) -> Snapshot:
        """Keep a snapshot for `keep_s` seconds after its last use, counted from now; None keeps it for ever.

        Raises:
            NotFound: `snapshot_not_found`.
        """
        params = checked(
            PinSnapshot,
            snapshot_id=SnapshotId(snapshot_id),
            request_id=self._request(request_id),
            keep_s=keep_s,
        )
        kept: Snapshot = await self._router.directory("pin_snapshot", params, answer=Snapshot)
        return kept

    async def unpin(self, snapshot_id: str, *, request_id: str | None = None) -> Snapshot:
        """Keep a snapshot for the policy's default time after its last use, counted from now.

        Raises:
            NotFound: `snapshot_not_found`.
        """
        params = checked(
            UnpinSnapshot, snapshot_id=SnapshotId(snapshot_id), request_id=self._request(request_id)
        )
        kept: Snapshot = await self._router.directory("unpin_snapshot", params, answer=Snapshot)
        return kept

    async def collect(self, *, dry_run: bool = False) -> GarbageReport:
        """Remove expired snapshots and what no record claims, or with `dry_run` only say what would go and why."""
        report: GarbageReport = await self._router.directory(
            "gc", CollectGarbage(dry_run=dry_run), answer=GarbageReport
        )
        return report

    async def export(
        self,
        snapshot_id: str,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        request_id: str | None = None,
    ) -> Exported:
        """Write a snapshot into one file: its image with all it stands on, and a manifest with its hash.

        The file is written by the installation, on its machine, and appears whole or not at all.

        Raises:
            AlreadyExists: `path_exists`.
            NotFound: `snapshot_not_found`.
            DataLoss: `snapshot_missing`.
            InvalidArgument: `path_unwritable`.
            ResourceExhausted: `disk_full`.
        """
        target = _target(path, overwrite=overwrite)
        params = checked(
            ExportSnapshot,
            snapshot_id=SnapshotId(snapshot_id),
            request_id=self._request(request_id),
            path=target,
        )
        exported: Exported = await self._finished("export_snapshot", params, answer=Exported)
        return exported

    async def import_(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        keep_s: float | None = None,
        request_id: str | None = None,
    ) -> Snapshot:
        """Make a snapshot of an exported file. It is checked whole before anything of it is loaded.

        Args:
            path: On the installation's machine.
            name: A name for it; None = the one it had.
            keep_s: Seconds it is kept after its last use; None = the policy's default.
            request_id: A repeat with the same id gets the same snapshot.

        Raises:
            NotFound: `archive_not_found`.
            DataLoss: `archive_damaged`.
            InvalidArgument: `archive_refused`, or `snapshot_image_mismatch`: its base image is not here.
        """
        params = checked(
            ImportSnapshot,
            request_id=self._request(request_id),
            path=_absolute(path),
            name=name,
            keep_s=keep_s,
        )
        imported: Snapshot = await self._finished("import_snapshot", params, answer=Snapshot)
        return imported

    async def _finished(self, verb: str, params: Params, *, answer: Any) -> Any:
        """Ask again while the work goes on."""
        while True:
            try:
                return await self._router.directory(verb, params, answer=answer)
            except Aborted as error:
                if error.code != "in_progress":
                    raise
                await self._router.ports.sleep(error.retry_after_s or 1.0)

    def _request(self, request_id: str | None) -> RequestId:
        return RequestId(request_id or self._router.ports.new_token())


def _absolute(path: str | os.PathLike[str]) -> str:
    return str(Path(path).absolute())


def _target(path: str | os.PathLike[str], *, overwrite: bool) -> str:
    """Return the absolute path of a file to be written.

    Raises:
        AlreadyExists: `path_exists`.
    """
    target = Path(path).absolute()
    if target.exists() and not overwrite:
        raise AlreadyExists(f"{target} is there already", code="path_exists", advice="overwrite it knowingly")
    return str(target)
