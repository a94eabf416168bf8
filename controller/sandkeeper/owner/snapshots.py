"""Takes a snapshot: measure, freeze, commit under a pending name, thaw, tag, make durable.

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
from sandkeeper.core.ids import InstallationId, pending_image_tag, snapshot_image_tag
from sandkeeper.core.record import SandboxRecord
from sandkeeper.owner.boxes import Boxes
from sandkeeper.ports import Ports

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Frozen:
    image_id: str
    freeze_ms: float


@dataclass(frozen=True, slots=True)
class Snapshotter:
    """Takes snapshots on one engine."""

    engine: Engine
    boxes: Boxes
    installation_id: InstallationId
    max_snapshot_bytes: int
    ports: Ports

    async def take(self, record: SandboxRecord, command: cmd.CommitSnapshot) -> ev.Reply:
        """Take one snapshot; on failure the runtime is as before and nothing is left but names given up."""
        pending = pending_image_tag(self.installation_id, command.command_id)
        final = snapshot_image_tag(self.installation_id, command.snapshot_id)
        try:
            delta_bytes = await self._measure(command)
            frozen = await self._commit(record, command, tag=pending)
            await self.engine.tag(frozen.image_id, final)
            await self.engine.untag_or_remove_image(pending)
            await self.engine.sync()
            image = await self.engine.image(frozen.image_id)
            if image is None:
                raise DataLoss(f"image {frozen.image_id} is gone after its commit", code="image_missing")
        except SandkeeperError as error:
            await self._clear(pending)
            await self._clear(final)
            return _failed(command, error)
        return ev.SnapshotCommitted(
            command_id=command.command_id,
            image_id=frozen.image_id,
            size_bytes=image.size_bytes,
            delta_bytes=delta_bytes,
            freeze_ms=frozen.freeze_ms,
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
            return _Frozen(await self.engine.commit(command.birth_id, tag=tag), 0.0)
        await self.boxes.quiesce(record, reason="snapshot")
        since_s = self.ports.clock.monotonic_s()
        try:
            await self.engine.freeze(command.birth_id)
            image_id = await self.engine.commit(command.birth_id, tag=tag)
        finally:
            await self._thaw(record, command)
        freeze_ms = (self.ports.clock.monotonic_s() - since_s) * 1000
        return _Frozen(image_id, round(freeze_ms, 1))

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
