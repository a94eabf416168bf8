"""Records, entries and answers to write, and hypothesis strategies for all that is stored."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from sandkeeper.core import commands, events
from sandkeeper.core.ids import (
    DEFAULT_TENANT,
    BirthId,
    MachineId,
    OwnerId,
    RequestId,
    SandboxId,
    SnapshotId,
    TenantId,
)
from sandkeeper.core.record import Evidence, Phase, RequestRef, SandboxRecord, SnapshotRecord
from sandkeeper.core.sizes import Size
from sandkeeper.core.spec import BootImage, Keep, OnLost, SandboxSpec
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


_text = st.text(max_size=40)
_name = st.from_regex(r"[a-z0-9]([a-z0-9_.-]{0,20}[a-z0-9])?", fullmatch=True)
_count = st.integers(min_value=0, max_value=2**53)
_moment = st.datetimes(timezones=st.just(UTC))
_seconds = st.floats(min_value=0, max_value=1e9, allow_nan=False)


def _or_none(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


_size = st.builds(
    Size,
    name=_name,
    vcpu=st.floats(min_value=0.05, max_value=1024, allow_nan=False),
    memory_mib=st.integers(min_value=16, max_value=16 * 1024 * 1024),
    pids=st.integers(min_value=96, max_value=65_536),
)
_boot = st.builds(
    BootImage, image_id=_text, base_digest=_text, snapshot_id=_or_none(_text.map(SnapshotId)), depth=_count
)
_request = _or_none(st.builds(RequestRef, request_id=_text.map(RequestId), verb=_text, fingerprint=_text))
_fields: dict[str, st.SearchStrategy[Any]] = {
    "command_id": _text,
    "birth_id": _text,
    "generation": _count,
    "boot": _boot,
    "size": _size,
    "delay_s": _seconds,
    "snapshot_id": _text,
    "name": _or_none(_text),
    "keep_s": _or_none(_seconds),
    "was_frozen": st.booleans(),
    "request": _request,
    "keep": st.sampled_from(Keep),
    "reason": _text,
    "message": _text,
    "exit_code": _or_none(st.integers(-255, 255)),
    "oom_killed": st.booleans(),
    "output_tail": _text,
    "is_final": st.booleans(),
    "is_container_there": st.booleans(),
    "image_id": _text,
    "size_bytes": _count,
    "delta_bytes": _count,
    "freeze_ms": _seconds,
    "category": _text,
    "code": _text,
    "advice": _text,
}


def _any_of(model: Any) -> st.SearchStrategy[Any]:
    """Return instances of a command or event class, every field of it drawn."""
    names = [name for name in model.model_fields if name != "kind"]
    return st.builds(model, **{name: _fields[name] for name in names})


COMMAND_KINDS = (
    commands.LaunchRuntime,
    commands.StartKept,
    commands.FreezeRuntime,
    commands.ThawRuntime,
    commands.UpdateRuntime,
    commands.CommitSnapshot,
    commands.StopRuntime,
    commands.RemoveRuntime,
)
any_command = st.one_of([_any_of(kind) for kind in COMMAND_KINDS])
any_event = st.one_of([_any_of(kind) for kind in events.EVENTS])
any_spec = st.builds(
    SandboxSpec,
    image=_text,
    boot=_boot,
    size=_size,
    env=st.dictionaries(
        st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True), _text.filter(lambda t: "\0" not in t)
    ),
    user=_or_none(_text),
    workdir=_or_none(_text),
    on_lost=st.sampled_from(OnLost),
    lifetime_s=_or_none(_seconds),
    labels=st.dictionaries(_name, _text, max_size=3),
    detached=st.booleans(),
    start_timeout_s=_seconds,
)
any_record = st.builds(
    SandboxRecord,
    sandbox_id=_text.map(SandboxId),
    tenant_id=_text.map(TenantId),
    machine_id=_text.map(MachineId),
    owner_id=_text.map(OwnerId),
    name=_or_none(_text),
    spec=any_spec,
    phase=st.sampled_from([phase for phase in Phase if phase is not Phase.DESTROYED]),
    generation=_count,
    birth_id=_or_none(_text.map(BirthId)),
    pending=_or_none(any_command),
    pending_request=_request,
    return_to=_or_none(st.sampled_from(Phase)),
    settle_to=_or_none(st.sampled_from(Phase)),
    is_kept=st.booleans(),
    boot=_boot,
    last_snapshot_at=_or_none(_moment),
    runtime_boot=_or_none(_boot),
    command_count=_count,
    given_up=st.lists(_text, max_size=3).map(tuple),
    rebuild_count=_count,
    running_since_at=_or_none(_moment),
    evidence=_or_none(
        st.builds(
            Evidence,
            generation=_count,
            reason=_text,
            message=_text,
            exit_code=_or_none(st.integers(-255, 255)),
            oom_killed=st.booleans(),
            output_tail=_text,
            at=_moment,
        )
    ),
    created_at=_moment,
    updated_at=_moment,
)
