"""Exports and imports of snapshots: archives on this machine's disk, and the rows of what came from them.

Owns the order of an import: the archive is checked, the row says it has begun, the image is loaded and made durable,
the row says it is done. What is cut in between did not happen and is removed. The format is `snapshot_archive`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from sandkeeper.containers.engine import Engine
from sandkeeper.containers.shelf import Shelf
from sandkeeper.core.errors import Aborted, DataLoss, InvalidArgument, SandkeeperError
from sandkeeper.core.ids import (
    DEFAULT_TENANT,
    InstallationId,
    MachineId,
    RequestId,
    SnapshotId,
    new_snapshot_id,
    snapshot_image_tag,
)
from sandkeeper.core.record import SnapshotRecord
from sandkeeper.core.snapshot_verbs import Exported, ExportSnapshot, ImportSnapshot
from sandkeeper.core.snapshots import kept_for, snapshot_missing
from sandkeeper.core.views import SnapshotView
from sandkeeper.owner.snapshot_archive import ArchiveReader, ArchiveWriter, Manifest
from sandkeeper.owner.snapshot_catalogue import SnapshotCatalogue
from sandkeeper.ports import Ports
from sandkeeper.store.catalogue import Catalogue
from sandkeeper.store.catalogue_entries import ImportRow

log = structlog.get_logger(__name__)

ANSWER_WAIT_S = 120.0
FINISHED_KEPT = 64


class Archives:
    """Exports and imports of one installation."""

    def __init__(
        self,
        *,
        installation_id: InstallationId,
        machine_id: MachineId,
        default_keep_s: float,
        catalogue: Catalogue,
        snapshots: SnapshotCatalogue,
        shelf: Shelf,
        engine: Engine,
        ports: Ports,
    ) -> None:
        self._installation_id = installation_id
        self._machine_id = machine_id
        self._default_keep_s = default_keep_s
        self._catalogue = catalogue
        self._snapshots = snapshots
        self._shelf = shelf
        self._engine = engine
        self._ports = ports
        self._work: dict[RequestId, asyncio.Task[Any]] = {}

    async def recover(self) -> None:
        """Undo the imports that an earlier directory did not finish; what the engine refuses now goes later."""
        for row in await self._catalogue.imports():
            if not row.is_done:
                await self._undo(SnapshotRecord.model_validate(row.document))

    async def export(self, params: ExportSnapshot) -> Exported:
        """Write a snapshot into an archive. A repeat of the request id waits for the same one.

        Raises:
            NotFound: `snapshot_not_found`.
            DataLoss: `snapshot_missing`.
            InvalidArgument: `path_unwritable`.
            ResourceExhausted: `disk_full`.
            Aborted: `in_progress`: it goes on; ask again.
        """
        exported: Exported = await self._joined(params.request_id, lambda: self._export(params))
        return exported

    async def import_(self, params: ImportSnapshot) -> SnapshotView:
        """Make a snapshot of an archive. A repeat of the request id waits for the same one, or finds it.

        Raises:
            NotFound: `archive_not_found`.
            InvalidArgument: `archive_refused`, `snapshot_image_mismatch`.
            DataLoss: `archive_damaged`.
            Aborted: `in_progress`: it goes on; ask again.
        """
        for row in await self._catalogue.imports():
            if row.is_done and row.request_id == params.request_id:
                return await self._snapshots.view(row.snapshot_id)
        view: SnapshotView = await self._joined(params.request_id, lambda: self._import(params))
        return view

    async def close(self) -> None:
        """Cut what is in progress; the next directory undoes it. Repeating is safe."""
        work = list(self._work.values())
        self._work.clear()
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)

    async def _joined(self, request_id: RequestId, begin: Callable[[], Awaitable[Any]]) -> Any:
        async def work() -> Any:
            return await begin()

        task = self._work.get(request_id)
        if task is None or (task.done() and task.exception() is not None):
            task = self._work[request_id] = self._ports.spawn(work(), name=f"archive {request_id}")
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        for known in list(self._work)[:-FINISHED_KEPT]:
            if self._work[known].done():
                del self._work[known]
        try:
            async with asyncio.timeout(ANSWER_WAIT_S):
                return await asyncio.shield(task)
        except TimeoutError as error:
            raise Aborted(
                f"not finished after {ANSWER_WAIT_S:g} s; it goes on",
                code="in_progress",
                advice="repeat with the same request id to wait on",
                admitted="yes",
                retry_after_s=1.0,
            ) from error

    async def _export(self, params: ExportSnapshot) -> Exported:
        with self._snapshots.lease(params.snapshot_id):
            found = await self._snapshots.find(params.snapshot_id)
            writer = ArchiveWriter(Path(params.path))
            writer.open()
            try:
                await self._save(found.snapshot, writer)
                at = self._ports.clock.now()
                finish = partial(writer.finish, image=found.image, snapshot=found.snapshot, at=at)
                manifest, size_bytes = await asyncio.to_thread(finish)
            finally:
                writer.discard()
        log.info("snapshot_exported", snapshot_id=params.snapshot_id, size_bytes=size_bytes)
        return Exported(path=params.path, sha256=manifest.sha256, size_bytes=size_bytes)

    async def _save(self, snapshot: SnapshotRecord, writer: ArchiveWriter) -> None:
        try:
            await self._engine.save_image(snapshot.boot.image_id, sink=writer.write)
        except DataLoss as error:
            if error.code != "image_missing":
                raise
            raise snapshot_missing(snapshot.snapshot_id) from error

    async def _import(self, params: ImportSnapshot) -> SnapshotView:
        reader = ArchiveReader(Path(params.path))
        try:
            manifest = await asyncio.to_thread(reader.check)
            await self._check_base(manifest)
            row = self._row(params, manifest)
            snapshot = SnapshotRecord.model_validate(row.document)
            await self._catalogue.put_import(row)
            try:
                await self._engine.load_image(reader.image())
                await self._engine.tag(
                    snapshot.boot.image_id, snapshot_image_tag(self._installation_id, snapshot.snapshot_id)
                )
                await self._engine.sync()
                await self._catalogue.put_import(row.model_copy(update={"is_done": True}))
            except SandkeeperError:
                await self._undo(snapshot)
                raise
        finally:
            reader.close()
        log.info("snapshot_imported", snapshot_id=snapshot.snapshot_id, image_id=snapshot.boot.image_id)
        return await self._snapshots.view(snapshot.snapshot_id)

    async def _check_base(self, manifest: Manifest) -> None:
        """A snapshot restores only on its own image digest, so that image has to be here."""
        image = await self._shelf.find(manifest.image)
        wanted = manifest.snapshot.boot.base_digest
        if image is None or image.image_id != wanted:
            here = "not here" if image is None else image.image_id
            raise InvalidArgument(
                f"the archive stands on {manifest.image} at {wanted}, which is {here}",
                code="snapshot_image_mismatch",
                advice=f"have image {manifest.image} at that digest at the engine first",
                details={"image": manifest.image, "base_digest": wanted},
            )

    def _row(self, params: ImportSnapshot, manifest: Manifest) -> ImportRow:
        """The new snapshot is one of its own: another id, kept from now on, without a parent here."""
        now = self._ports.clock.now()
        snapshot_id = new_snapshot_id(self._ports.new_token())
        retention = kept_for(params.keep_s or self._default_keep_s, now=now)
        source = manifest.snapshot
        snapshot = source.model_copy(
            update={
                "snapshot_id": snapshot_id,
                "tenant_id": DEFAULT_TENANT,
                "machine_id": self._machine_id,
                "name": params.name or source.name,
                "boot": source.boot.model_copy(update={"snapshot_id": snapshot_id}),
                "parent": None,
                "created_at": now,
                "expires_at": retention.expires_at,
                "is_automatic": False,
            }
        )
        return ImportRow(
            machine_id=self._machine_id,
            snapshot_id=snapshot_id,
            request_id=params.request_id,
            image=manifest.image,
            is_done=False,
            document=snapshot.model_dump(mode="json"),
            at=now,
        )

    async def _undo(self, snapshot: SnapshotRecord) -> None:
        """Forget an import, and remove its image unless it is known by another name."""
        tag = snapshot_image_tag(self._installation_id, snapshot.snapshot_id)
        try:
            await self._engine.untag_or_remove_image(tag)
            left = await self._engine.image(snapshot.boot.image_id)
            if left is not None and not left.tags:
                await self._engine.untag_or_remove_image(left.image_id)
        except SandkeeperError as error:
            log.warning("import_left", snapshot_id=snapshot.snapshot_id, code=error.code)
            return
        await self._catalogue.drop_import(SnapshotId(snapshot.snapshot_id))
