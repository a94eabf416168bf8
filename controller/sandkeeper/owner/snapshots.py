"""Takes a snapshot: measure, scan, freeze, commit under a pending name, thaw, flatten, tag, make durable.

Owns that the runtime is thawed again whatever happens in between. A snapshot counts only by the record that
follows: what this leaves behind when it is cut is removed by name.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from sandkeeper.containers.engine import Engine
from sandkeeper.core import commands as cmd
from sandkeeper.core import events as ev
from sandkeeper.core.errors import DataLoss, PermissionDenied, SandkeeperError
from sandkeeper.core.findings import SecretsMode
from sandkeeper.core.ids import (
    InstallationId,
    flat_image_tag,
    flat_name,
    pending_image_tag,
    snapshot_image_tag,
)
from sandkeeper.core.record import SandboxRecord
from sandkeeper.core.snapshots import wants_flattening
from sandkeeper.owner.boxes import Boxes
from sandkeeper.owner.secret_scan import SecretScanner
from sandkeeper.ports import Ports

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Frozen:
    image_id: str
    freeze_ms: float
    metadata_cut: str | None


@dataclass(frozen=True, slots=True)
class Snapshotter:
    """Takes snapshots on one engine.

    Attributes:
        max_snapshot_bytes: Largest writable layer, apparent size.
        flatten_at_depth: Layers at which a snapshot is made into one.
        secrets: What is done about files that seem to hold credentials.
    """

    engine: Engine
    boxes: Boxes
    installation_id: InstallationId
    max_snapshot_bytes: int
    ports: Ports
    flatten_at_depth: int = 100
    secrets: SecretsMode = "off"

    async def take(self, record: SandboxRecord, command: cmd.CommitSnapshot) -> ev.Reply:
        """Take one snapshot; on failure the runtime is as before and nothing is left but names given up."""
        pending = pending_image_tag(self.installation_id, command.command_id)
        flat = flat_image_tag(self.installation_id, command.command_id)
        final = snapshot_image_tag(self.installation_id, command.snapshot_id)
        try:
            delta_bytes = await self._measure(command)
            scanner = SecretScanner(self.engine, self.boxes, self.secrets, self.ports)
            scan = await scanner.scan(record, command)
            frozen = await self._commit(record, command, tag=pending)
            flat_id = await self._flatten(record, command, frozen.image_id, tag=flat)
            image_id = flat_id or frozen.image_id
            await self.engine.tag(image_id, final)
            await self.engine.untag_or_remove_image(pending)
            if flat_id is not None:
                await self.engine.untag_or_remove_image(flat)
            await self.engine.sync()
            image = await self.engine.image(image_id)
            if image is None:
                raise DataLoss(f"image {image_id} is gone after its commit", code="image_missing")
        except SandkeeperError as error:
            for tag in (pending, final, *((flat,) if self._is_deep(record) else ())):
                await self._clear(tag)
            return _failed(command, error)
        return ev.SnapshotCommitted(
            command_id=command.command_id,
            image_id=image_id,
            size_bytes=image.size_bytes,
            delta_bytes=delta_bytes,
            freeze_ms=frozen.freeze_ms,
            is_flattened=flat_id is not None,
            metadata_cut=frozen.metadata_cut,
            secrets=scan,
        )

    async def _measure(self, command: cmd.CommitSnapshot) -> int:
        delta_bytes = await self.engine.delta_bytes(command.birth_id)
        if delta_bytes > self.max_snapshot_bytes:
            raise PermissionDenied(
                f"the files written are {delta_bytes} bytes in apparent size, "
                f"{self.max_snapshot_bytes} are allowed",
                code="snapshot_too_large",
                advice="remove large or sparse files, or raise max_snapshot_bytes in the policy",
                details={"delta_bytes": delta_bytes},
            )
        return delta_bytes

    async def _commit(self, record: SandboxRecord, command: cmd.CommitSnapshot, *, tag: str) -> _Frozen:
        if command.was_frozen:
            image_id = await self.engine.commit(command.birth_id, tag=tag)
            return _Frozen(image_id, 0.0, "not_running")
        await self.boxes.quiesce(record, reason="snapshot")
        metadata_cut = await self._save_metadata(record)
        since_s = self.ports.clock.monotonic_s()
        try:
            await self.engine.freeze(command.birth_id)
            image_id = await self.engine.commit(command.birth_id, tag=tag)
        finally:
            await self._thaw(record, command)
        freeze_ms = (self.ports.clock.monotonic_s() - since_s) * 1000
        return _Frozen(image_id, round(freeze_ms, 1), metadata_cut)

    async def _save_metadata(self, record: SandboxRecord) -> str | None:
        """Have the box write down what the commit loses; a snapshot without it is a snapshot all the same."""
        try:
            return await self.boxes.save_metadata(record)
        except SandkeeperError as error:
            log.info("metadata_not_saved", sandbox_id=record.sandbox_id, code=error.code)
            return error.code

    async def _flatten(
        self, record: SandboxRecord, command: cmd.CommitSnapshot, image_id: str, *, tag: str
    ) -> str | None:
        """Make an image of too many layers into one, while the runtime goes on; None when it stays as it is.

        A failure costs nothing yet: the deep image is as good, and the next snapshot tries again.
        """
        if not self._is_deep(record):
            return None
        try:
            return await self.engine.flatten(image_id, name=flat_name(command.command_id), tag=tag)
        except SandkeeperError as error:
            log.warning(
                "not_flattened", snapshot_id=command.snapshot_id, code=error.code, error=error.message
            )
            await self._clear(tag)
            return None

    def _is_deep(self, record: SandboxRecord) -> bool:
        depth = (record.runtime_boot or record.spec.boot).depth + 1
        return wants_flattening(depth, flatten_at_depth=self.flatten_at_depth)

    async def _thaw(self, record: SandboxRecord, command: cmd.CommitSnapshot) -> None:
        """Thaw and let the box work again; what fails here is found by the next check of the sandbox."""
        try:
            await self.engine.thaw(command.birth_id)
            await self.boxes.resume(record)
        except SandkeeperError as error:
            log.warning("thaw_failed", birth_id=command.birth_id, code=error.code, message=error.message)

    async def _clear(self, tag: str) -> None:
        try:
            await self.engine.untag_or_remove_image(tag)
        except SandkeeperError as error:
            log.warning("image_left", tag=tag, code=error.code)


def _failed(command: cmd.CommitSnapshot, error: SandkeeperError) -> ev.SnapshotFailed:
    return ev.SnapshotFailed(
        command_id=command.command_id,
        category=error.category,
        code=error.code,
        message=f"snapshot {command.snapshot_id}: {error.message}",
        advice=error.advice or "the last valid snapshot is unchanged; take it again",
    )
