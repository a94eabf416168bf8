"""Records, entries and answers to write."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sandkeeper.core.ids import (
    DEFAULT_TENANT,
    MachineId,
    OwnerId,
    RequestId,
    SandboxId,
    SnapshotId,
)
from sandkeeper.core.record import SandboxRecord, SnapshotRecord
from sandkeeper.core.sizes import Size
from sandkeeper.core.spec import BootImage, SandboxSpec
from sandkeeper.ports import real_ports
from sandkeeper.store.entries import Answer, JournalEntry
from sandkeeper.store.journal import OwnerJournal
from sandkeeper.store.locks import ProcessLock

MACHINE = MachineId("m1")
OWNER = OwnerId("owner-0")
START = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
BOOT = BootImage(image_id="sha256:aa", base_digest="sha256:aa")


def moment(number: int) -> datetime:
    """Return the `number`-th second of the samples' day."""
    return START + timedelta(seconds=number)


def sample_record(number: int = 1, **changes: Any) -> SandboxRecord:
    record = SandboxRecord(
        sandbox_id=SandboxId(f"sb{number:016x}"),
        tenant_id=DEFAULT_TENANT,
        machine_id=MACHINE,
        owner_id=OWNER,
        spec=SandboxSpec(image="base", boot=BOOT, size=Size(name="basic", vcpu=2, memory_mib=512)),
        boot=BOOT,
        created_at=moment(number),
        updated_at=moment(number),
    )
    return record.model_copy(update=changes)


def sample_entry(record: SandboxRecord | None = None, **changes: Any) -> JournalEntry:
    fields: dict[str, Any] = {"kind": "created", "at": START, **changes}
    return JournalEntry(record=record or sample_record(), **fields)


def sample_answer(request_id: str = "r1", *, fingerprint: str = "f1", **changes: Any) -> Answer:
    answer = Answer(
        tenant_id=DEFAULT_TENANT,
        request_id=RequestId(request_id),
        verb="start",
        fingerprint=fingerprint,
        is_error=False,
        document={"phase": "running", "n": [1, 2.5, None]},
        at=START,
    )
    return answer.model_copy(update=changes)


def sample_snapshot(number: int = 1, **changes: Any) -> SnapshotRecord:
    snapshot = SnapshotRecord(
        snapshot_id=SnapshotId(f"sn{number:016x}"),
        tenant_id=DEFAULT_TENANT,
        machine_id=MACHINE,
        sandbox_id=sample_record().sandbox_id,
        generation=1,
        boot=BOOT,
        size_bytes=2**40,
        delta_bytes=17,
        freeze_ms=1.5,
        created_at=moment(number),
    )
    return snapshot.model_copy(update=changes)


def held_lock(folder: Path) -> ProcessLock:
    lock = ProcessLock(folder / "owner.lock", ports=real_ports())
    assert lock.try_acquire()
    return lock


def owner_journal(folder: Path, lock: ProcessLock) -> OwnerJournal:
    return OwnerJournal(folder / "owner.db", machine_id=MACHINE, lock=lock)
