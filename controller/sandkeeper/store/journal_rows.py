"""What is written to an owner's file, as rows of its tables.

Owns the mapping; made on the event loop, so that the committer's thread only executes.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from pydantic_core import to_json

from sandkeeper.core.ids import MachineId, SandboxId, TenantId
from sandkeeper.core.record import SandboxRecord, SnapshotRecord
from sandkeeper.store.entries import Answer, JournalEntry, moment_text

Parameters = dict[str, Any]


def record_row(record: SandboxRecord) -> Parameters:
    """Return the row of a sandbox's record, with the columns that are looked up."""
    return {
        "sandbox_id": record.sandbox_id,
        "tenant_id": record.tenant_id,
        "machine_id": record.machine_id,
        "name": record.name,
        "phase": record.phase.value,
        "birth_id": record.birth_id,
        "pending_id": None if record.pending is None else record.pending.command_id,
        "given_up": json.dumps(record.given_up) if record.given_up else "[]",
        "memory_mib": record.spec.size.memory_mib,
        "created_at": moment_text(record.created_at),
        "updated_at": moment_text(record.updated_at),
        "document": record.model_dump_json(),
    }


def event_row(entry: JournalEntry) -> Parameters:
    """Return the row of the entry's journal line."""
    return {
        "tenant_id": entry.record.tenant_id,
        "machine_id": entry.record.machine_id,
        "sandbox_id": entry.record.sandbox_id,
        "kind": entry.kind,
        "at": moment_text(entry.at),
        "event": None if entry.event is None else entry.event.model_dump_json(),
        "details": to_json(entry.details).decode() if entry.details else "{}",
    }


def snapshot_row(snapshot: SnapshotRecord) -> Parameters:
    """Return the row of a snapshot."""
    return {
        "snapshot_id": snapshot.snapshot_id,
        "tenant_id": snapshot.tenant_id,
        "machine_id": snapshot.machine_id,
        "sandbox_id": snapshot.sandbox_id,
        "created_at": moment_text(snapshot.created_at),
        "document": snapshot.model_dump_json(),
    }


def note_row(
    sandbox_id: SandboxId,
    *,
    tenant_id: TenantId,
    machine_id: MachineId,
    kind: str,
    at: datetime,
    details: dict[str, Any],
) -> Parameters:
    """Return the row of a journal line that is no lifecycle event."""
    return {
        "tenant_id": tenant_id,
        "machine_id": machine_id,
        "sandbox_id": sandbox_id,
        "kind": kind,
        "at": moment_text(at),
        "event": None,
        "details": to_json(details).decode(),
    }


def answer_row(answer: Answer, *, machine_id: MachineId) -> Parameters:
    """Return the row of an answer."""
    return {
        "tenant_id": answer.tenant_id,
        "request_id": answer.request_id,
        "machine_id": machine_id,
        "fingerprint": answer.fingerprint,
        "at": moment_text(answer.at),
        "document": answer.model_dump_json(),
    }
