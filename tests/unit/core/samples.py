"""Sample records and events of the core tests: one record in every phase, one event of every kind."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sandkeeper.core import commands as cmd
from sandkeeper.core import events as ev
from sandkeeper.core.ids import (
    DEFAULT_TENANT,
    BirthId,
    CommandId,
    MachineId,
    OwnerId,
    RequestId,
    SandboxId,
    SnapshotId,
)
from sandkeeper.core.moves import Stamp
from sandkeeper.core.record import Phase, RequestRef, SandboxRecord
from sandkeeper.core.sizes import NAMED_SIZES
from sandkeeper.core.spec import BootImage, Keep, OnLost, SandboxSpec

AT = datetime(2030, 1, 1, tzinfo=UTC)
STAMP = Stamp(at=AT, token="f" * 16)
BASE = BootImage(image_id="sha256:base", base_digest="sha256:base")
SNAPSHOT = BootImage(
    image_id="sha256:snap", base_digest="sha256:base", snapshot_id=SnapshotId("sn0"), depth=1
)
BIRTH = BirthId("sk-old")
COMMAND = CommandId("sb0-1")


def request(name: str = "r1", verb: str = "verb") -> RequestRef:
    """Return a request reference."""
    return RequestRef(request_id=RequestId(name), verb=verb, fingerprint="f")


def record(phase: Phase = Phase.RUNNING, **changes: Any) -> SandboxRecord:
    """Return a record in `phase`, with the runtime and the pending command such a record has."""
    spec = SandboxSpec(
        image="base", boot=BASE, size=NAMED_SIZES["basic"], on_lost=changes.pop("on_lost", OnLost.REBUILD)
    )
    fields: dict[str, Any] = {
        "sandbox_id": SandboxId("sb0"),
        "tenant_id": DEFAULT_TENANT,
        "machine_id": MachineId("m0"),
        "owner_id": OwnerId("ow0"),
        "spec": spec,
        "phase": phase,
        "boot": BASE,
        "created_at": AT,
        "updated_at": AT,
    }
    if phase not in (Phase.CREATED, Phase.STOPPED, Phase.FAILED, Phase.DESTROYED):
        fields |= {"birth_id": BIRTH, "generation": 1, "runtime_boot": BASE, "command_count": 1}
    pending = pending_of(phase)
    if pending is not None:
        fields |= {"pending": pending, "pending_request": request("pending")}
    if phase is Phase.SNAPSHOTTING:
        fields["return_to"] = Phase.RUNNING
    if phase in (Phase.STOPPING, Phase.DESTROYING, Phase.REBUILDING):
        settle = {Phase.STOPPING: Phase.STOPPED, Phase.DESTROYING: Phase.DESTROYED}
        fields["settle_to"] = settle.get(phase, Phase.REBUILDING)
    return SandboxRecord.model_validate(fields | changes)


def pending_of(phase: Phase) -> cmd.Command | None:
    """Return the command a record in `phase` waits for."""
    target: dict[str, Any] = {"command_id": COMMAND, "birth_id": BIRTH, "generation": 1}
    size = NAMED_SIZES["basic"]
    match phase:
        case Phase.STARTING:
            return cmd.LaunchRuntime(**target, boot=BASE, size=size)
        case Phase.SNAPSHOTTING:
            return cmd.CommitSnapshot(**target, snapshot_id=SnapshotId("sn1"))
        case Phase.REBUILDING | Phase.STOPPING | Phase.DESTROYING:
            return cmd.RemoveRuntime(**target)
        case _:
            return None


def event(kind: type[Any]) -> Any:
    """Return one event of a class."""
    fields: dict[str, Any] = {}
    wanted = kind.model_fields
    samples: dict[str, Any] = {
        "request": request(),
        "command_id": COMMAND,
        "snapshot_id": SnapshotId("sn1"),
        "keep": Keep.NOTHING,
        "size": NAMED_SIZES["lite"],
        "generation": 1,
        "image_id": "sha256:new",
        "size_bytes": 10,
        "delta_bytes": 5,
        "freeze_ms": 1.5,
        "code": "some_code",
        "reason": "some_reason",
        "message": "what happened",
    }
    for name in wanted:
        if name in samples:
            fields[name] = samples[name]
    return kind(**fields)


def all_events() -> list[Any]:
    """Return one event of every class."""
    return [event(kind) for kind in ev.EVENTS]
