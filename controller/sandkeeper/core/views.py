"""What callers see: the JSON documents every verb answers with, made from records.

Pure and stable: the control sockets, the SDK and the CLI's `--json` all carry these shapes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

from sandkeeper.core.findings import SecretScan
from sandkeeper.core.ids import BirthId, ClientId, OwnerId, SandboxId, SnapshotId, TenantId
from sandkeeper.core.record import Ailment, Evidence, Phase, SandboxRecord, SnapshotRecord
from sandkeeper.core.sizes import Size
from sandkeeper.core.snapshots import Retention, SnapshotState
from sandkeeper.core.spec import OnLost


class _View(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class SandboxView(_View):
    """A sandbox as it stands.

    Attributes:
        id: Its id.
        client_id: The client it ends with, unless it is detached.
        pending: Kind of the command in progress, if any.
        boot_snapshot: Snapshot the next launch starts from; None means the catalogue image.
        last_snapshot_at: When that snapshot was taken.
        evidence: What is known of the last runtime that was lost or failed.
        health: `healthy`, or the code of `ailment`.
        ailment: What is wrong with a runtime that still answers.
        disk_limit_bytes: What may be written to the root filesystem, watched by boxd; None means no limit.
        is_resting: It was stopped or paused for idleness: the next use wakes it.
    """

    id: SandboxId
    tenant_id: TenantId
    owner_id: OwnerId
    name: str | None
    phase: Phase
    generation: int
    image: str
    size: Size
    labels: dict[str, str]
    detached: bool
    client_id: ClientId | None = None
    on_lost: OnLost
    lifetime_s: float | None
    pending: str | None
    birth_id: BirthId | None
    boot_snapshot: SnapshotId | None
    last_snapshot_at: datetime | None
    keeps_files: bool
    evidence: Evidence | None
    health: str
    ailment: Ailment | None
    is_resting: bool
    idle_timeout_s: float | None
    disk_limit_bytes: int | None
    created_at: datetime
    updated_at: datetime


class SnapshotView(_View):
    """A snapshot as the SDK names its parts; sizes in bytes, `freeze_ms` in milliseconds.

    Attributes:
        state: `valid`, `expired` (it may go any time), `missing` (its image is gone) or `unknown`.
        expires_at: When it may be pruned unless it is used before; None means never.
        is_automatic: A stop made it by itself.
        metadata_cut: Why user attributes and nanosecond times are not all in it; None when they are.
        secrets: What the scan for credentials found; None when there was none.
    """

    id: SnapshotId
    name: str | None
    sandbox_id: SandboxId
    generation: int
    size_bytes: int
    delta_bytes: int
    base_digest: str
    parent: SnapshotId | None
    depth: int
    ledger_position: int
    freeze_ms: float
    created_at: datetime
    expires_at: datetime | None
    state: str = SnapshotState.VALID.value
    is_automatic: bool = False
    is_flattened: bool = False
    metadata_cut: str | None = None
    secrets: SecretScan | None = None


class Lease(_View):
    """The right to talk straight to a sandbox's boxd, for processes of the controller's own user.

    Attributes:
        control_path: Socket to connect to, owned by the host.
        birth_id: The runtime it belongs to.
        generation: Its number; work is stamped with it.
        epoch: The owner's epoch, sent with every mutating call.
    """

    sandbox_id: SandboxId
    control_path: str
    birth_id: BirthId
    generation: int
    epoch: int


class EventView(_View):
    """One line of a sandbox's journal; `seq` is the cursor."""

    seq: int
    sandbox_id: SandboxId
    at: datetime
    kind: str
    details: dict[str, Any]


def sandbox_view(record: SandboxRecord) -> SandboxView:
    """Return the public view of a record."""
    return SandboxView(
        id=record.sandbox_id,
        tenant_id=record.tenant_id,
        owner_id=record.owner_id,
        name=record.name,
        phase=record.phase,
        generation=record.generation,
        image=record.spec.image,
        size=record.spec.size,
        labels=dict(record.spec.labels),
        detached=record.spec.detached,
        client_id=record.spec.client_id,
        on_lost=record.spec.on_lost,
        lifetime_s=record.spec.lifetime_s,
        pending=record.pending.kind if record.pending else None,
        birth_id=record.birth_id,
        boot_snapshot=record.boot.snapshot_id,
        last_snapshot_at=record.last_snapshot_at,
        keeps_files=record.is_kept,
        evidence=record.evidence,
        health=record.ailment.code if record.ailment else "healthy",
        ailment=record.ailment,
        is_resting=record.is_resting,
        idle_timeout_s=record.spec.idle_timeout_s,
        disk_limit_bytes=record.spec.disk_limit_bytes,
        created_at=record.created_at,
        updated_at=record.updated_at,
    )


def snapshot_view(
    snapshot: SnapshotRecord,
    *,
    retention: Retention | None = None,
    state: SnapshotState = SnapshotState.VALID,
) -> SnapshotView:
    """Return the public view of a snapshot; a retention given is the one in force."""
    return SnapshotView(
        id=snapshot.snapshot_id,
        name=snapshot.name,
        sandbox_id=snapshot.sandbox_id,
        generation=snapshot.generation,
        size_bytes=snapshot.size_bytes,
        delta_bytes=snapshot.delta_bytes,
        base_digest=snapshot.boot.base_digest,
        parent=snapshot.parent,
        depth=snapshot.boot.depth,
        ledger_position=snapshot.ledger_position,
        freeze_ms=snapshot.freeze_ms,
        created_at=snapshot.created_at,
        expires_at=snapshot.expires_at if retention is None else retention.expires_at,
        state=state.value,
        is_automatic=snapshot.is_automatic,
        is_flattened=snapshot.is_flattened,
        metadata_cut=snapshot.metadata_cut,
        secrets=snapshot.secrets,
    )
