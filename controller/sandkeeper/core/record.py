"""The durable truth about one sandbox: what its owner commits before it acts.

Owns the shape of the record. Only `lifecycle.step` makes a new one from an old one.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from sandkeeper.core.commands import Command
from sandkeeper.core.findings import SecretScan
from sandkeeper.core.ids import BirthId, MachineId, OwnerId, RequestId, SandboxId, SnapshotId, TenantId
from sandkeeper.core.spec import BootImage, SandboxSpec


class Phase(StrEnum):
    """Where a sandbox stands. Only `lifecycle.py` moves it."""

    CREATED = "created"
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    SNAPSHOTTING = "snapshotting"
    REBUILDING = "rebuilding"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    DESTROYING = "destroying"
    DESTROYED = "destroyed"


class RequestRef(BaseModel):
    """The client's request that a pending command answers.

    Attributes:
        request_id: Made by the client; a repeat gets the same answer.
        verb: Name of the verb.
        fingerprint: Hash of the verb's parameters; another fingerprint under one id is a conflict.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    request_id: RequestId
    verb: str
    fingerprint: str


class Evidence(BaseModel):
    """What is known of a runtime that died or never came up.

    Attributes:
        generation: Its number.
        reason: Stable code: `killed`, `exited`, `oom_killed`, `vanished`, `launch_failed`, `engine_lost` ...
        message: The step that failed and what was seen.
        exit_code: Exit code of process 1 where the engine knows it.
        oom_killed: Whether the engine says the memory limit killed process 1.
        output_tail: Last output of process 1, bounded.
        at: When it was noticed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    generation: int
    reason: str
    message: str = ""
    exit_code: int | None = None
    oom_killed: bool = False
    output_tail: str = ""
    at: datetime


class Ailment(BaseModel):
    """A runtime that answers, and in which ordinary commands cannot work.

    Attributes:
        code: `sandbox_unhealthy`, `pids_exhausted` or `disk_exceeded`.
        message: What was seen.
        since_at: When it was seen first.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str
    message: str
    since_at: datetime


class SnapshotRecord(BaseModel):
    """A committed, immutable filesystem image of a sandbox.

    Attributes:
        snapshot_id: Its id.
        tenant_id: Whose it is.
        machine_id: Machine whose engine holds the image.
        sandbox_id: The sandbox it was taken from.
        generation: The runtime it was taken from.
        name: The caller's name for it, if any; not unique.
        boot: The image to restore from.
        parent: Snapshot its sandbox was started from, if any.
        size_bytes: Whole image size.
        delta_bytes: What this snapshot holds above its parent image.
        freeze_ms: How long processes stood still.
        ledger_position: Watermark in the side-effect ledger at the freeze.
        created_at: When it was committed.
        expires_at: When it may be pruned, as it was decided when it was taken; None means never.
        is_automatic: A stop made it by itself: only the newest few of a sandbox are kept.
        is_flattened: Its layers were made into one.
        metadata_cut: Why user attributes and nanosecond times are not all in it; None when they are.
        secrets: What the scan for credentials found; None when there was none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    snapshot_id: SnapshotId
    tenant_id: TenantId
    machine_id: MachineId
    sandbox_id: SandboxId
    generation: int
    name: str | None = None
    boot: BootImage
    parent: SnapshotId | None = None
    size_bytes: int
    delta_bytes: int
    freeze_ms: float
    ledger_position: int = 0
    created_at: datetime
    expires_at: datetime | None = None
    is_automatic: bool = False
    is_flattened: bool = False
    metadata_cut: str | None = None
    secrets: SecretScan | None = None


class SandboxRecord(BaseModel):
    """Everything its owner must know again after a crash.

    Attributes:
        generation: Number of the newest runtime, started or being started; the fencing token.
        birth_id: The claim: the one container that is this sandbox's runtime. Its commit is the claim.
        pending: The one command whose reply is awaited; performed again by recovery, idempotent by name.
        pending_request: The client request the pending command answers.
        return_to: Phase a snapshot goes back to.
        settle_to: Phase entered when the runtime has been removed.
        is_kept: The container of `birth_id` is stopped on purpose and holds the files.
        boot: Where the next launch starts from: the last valid snapshot, else the create's image.
        runtime_boot: Where the present runtime was started from: the parent of its snapshots.
        given_up: Engine names abandoned with their command; whatever appears under them later is removed.
        rebuild_count: Rebuilds in a row without a runtime that lived long.
        running_since_at: When the present runtime answered first.
        evidence: What is known of the last runtime that was lost or failed.
        is_resting: It was stopped or paused for idleness: the next use wakes it.
        ailment: What is wrong with a runtime that still answers; None when nothing is.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    sandbox_id: SandboxId
    tenant_id: TenantId
    machine_id: MachineId
    owner_id: OwnerId
    name: str | None = None
    spec: SandboxSpec
    phase: Phase = Phase.CREATED
    generation: int = 0
    birth_id: BirthId | None = None
    pending: Command | None = None
    pending_request: RequestRef | None = None
    return_to: Phase | None = None
    settle_to: Phase | None = None
    is_kept: bool = False
    boot: BootImage
    last_snapshot_at: datetime | None = None
    runtime_boot: BootImage | None = None
    command_count: int = 0
    given_up: tuple[str, ...] = ()
    rebuild_count: int = 0
    running_since_at: datetime | None = None
    evidence: Evidence | None = None
    is_resting: bool = False
    ailment: Ailment | None = None
    created_at: datetime
    updated_at: datetime
