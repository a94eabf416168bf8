"""What the catalogue keeps: owners and their epochs, reservations, tombstones, images, policies.

Owns the shapes. Never touches a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from sandkeeper.core.ids import DEFAULT_TENANT, MachineId, OwnerId, RequestId, SandboxId, SnapshotId, TenantId


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    tenant_id: TenantId = DEFAULT_TENANT
    machine_id: MachineId


class OwnerRow(_Row):
    """One owner and its newest incarnation.

    Attributes:
        epoch: Number of the newest incarnation; 0 before the first. It only rises.
        pid: The newest incarnation's process, None before the first.
        start_ticks: Its start time in clock ticks since boot.
    """

    owner_id: OwnerId
    epoch: int = 0
    pid: int | None = None
    start_ticks: int | None = None
    created_at: AwareDatetime


class Reservation(_Row):
    """A create that was admitted: its names and memory are taken before an owner hears of it.

    Attributes:
        request_id: The create's request; a repeat finds the same reservation.
        fingerprint: Hash of the create's parameters.
        name: The caller's name for the sandbox, unique per tenant until released.
        memory_mib: What admission counts for it.
        parameters: What a named create asked for, for those who ask for the name again; None without a name.
        at: When it was made.
        released_at: When the sandbox was gone; its name and memory are free from then on.
    """

    request_id: RequestId
    fingerprint: str
    name: str | None = None
    sandbox_id: SandboxId
    owner_id: OwnerId
    memory_mib: int = Field(ge=0)
    parameters: dict[str, Any] | None = None
    at: AwareDatetime
    released_at: AwareDatetime | None = None


@dataclass(frozen=True, slots=True)
class Reserved:
    """The answer of `reserve`: the reservation in force, and whether this call made it."""

    reservation: Reservation
    is_new: bool


class TombstoneState(StrEnum):
    """How far a snapshot's deletion is; both hide the snapshot for ever."""

    DELETING = "deleting"
    DELETED = "deleted"


class Tombstone(_Row):
    """A snapshot that is not to be used any more, whatever its owner's file says."""

    snapshot_id: SnapshotId
    state: TombstoneState
    at: AwareDatetime


class RetentionRow(_Row):
    """What was decided about keeping a snapshot since it was taken.

    Attributes:
        keep_s: Seconds it is kept after its last use; None means for ever.
        expires_at: When it may go; None means never.
        is_pinned: A caller decided it, not a restore.
    """

    snapshot_id: SnapshotId
    keep_s: float | None
    expires_at: AwareDatetime | None
    is_pinned: bool
    at: AwareDatetime


class ImportRow(_Row):
    """A snapshot that came from an archive.

    Attributes:
        request_id: The import's request; a repeat finds the same row.
        image: Catalogue name it stands on.
        is_done: Its image is loaded, tagged and durable; before that the snapshot does not exist.
        document: The snapshot's row, as an owner's file would hold it.
    """

    snapshot_id: SnapshotId
    request_id: RequestId
    image: str
    is_done: bool
    document: dict[str, Any]
    at: AwareDatetime


class CatalogueImage(_Row):
    """An image a sandbox may be created from, pinned by the engine's content id."""

    name: str
    image_id: str
    facts: dict[str, Any]
    at: AwareDatetime


class PolicyVersion(_Row):
    """One version of a tenant's policy; the newest is in force."""

    version: int
    document: dict[str, Any]
    at: AwareDatetime
