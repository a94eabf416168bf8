"""What a step writes down beside its record: the answer of a request, and the details of a journal line. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sandkeeper.core import commands as cmd
from sandkeeper.core import events as ev
from sandkeeper.core.errors import SandkeeperError, Unavailable
from sandkeeper.core.record import RequestRef, SandboxRecord, SnapshotRecord
from sandkeeper.core.views import sandbox_view, snapshot_view
from sandkeeper.store.entries import Answer


def answer_of(
    record: SandboxRecord,
    request: RequestRef,
    *,
    at: datetime,
    error: SandkeeperError | None = None,
    snapshot: SnapshotRecord | None = None,
) -> Answer:
    """Return the answer that a request gets, now and at every repeat.

    Args:
        record: The sandbox after the step that settles the request.
        request: Whose answer it is.
        at: The moment.
        error: Why it was not done.
        snapshot: The snapshot that the step made valid.
    """
    if error is not None:
        document = error.to_wire()
    elif snapshot is not None and request.verb == "take_snapshot":
        document = snapshot_view(snapshot).model_dump(mode="json")
    else:
        document = sandbox_view(record).model_dump(mode="json")
    return Answer(
        tenant_id=record.tenant_id,
        request_id=request.request_id,
        verb=request.verb,
        fingerprint=request.fingerprint,
        is_error=error is not None,
        document=document,
        at=at,
    )


def closing(record: SandboxRecord) -> Unavailable:
    """Return the error of requests that wait while their owner closes."""
    return Unavailable(
        "the owner is closing",
        code="owner_closing",
        advice="repeat with the same request id",
        sandbox_id=record.sandbox_id,
        admitted="unknown",
        retry_after_s=1.0,
    )


def details_of(event: ev.Event, record: SandboxRecord) -> dict[str, Any]:
    """Return what a journal line says beside its event's kind; JSON-safe."""
    details: dict[str, Any] = event.model_dump(mode="json", exclude={"kind", "request"}, exclude_none=True)
    details |= {"phase": record.phase.value, "generation": record.generation}
    if isinstance(event, ev.RuntimeRemoved) and isinstance(record.pending, cmd.LaunchRuntime):
        details |= {"boot_snapshot": record.boot.snapshot_id}
        if record.last_snapshot_at is not None:
            details |= {"snapshot_taken_at": record.last_snapshot_at.isoformat()}
    return details
