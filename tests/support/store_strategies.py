"""Hypothesis strategies for all that is stored: every field of every record, command and event is drawn."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from hypothesis import strategies as st

from sandkeeper.core import commands, events
from sandkeeper.core.findings import Finding, SecretScan
from sandkeeper.core.ids import (
    BirthId,
    ClientId,
    MachineId,
    OwnerId,
    RequestId,
    SandboxId,
    SnapshotId,
    TenantId,
)
from sandkeeper.core.record import Evidence, Phase, RequestRef, SandboxRecord
from sandkeeper.core.sizes import Size
from sandkeeper.core.spec import BootImage, Keep, OnLost, SandboxSpec

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
    pids=st.integers(min_value=160, max_value=65_536),
)
_boot = st.builds(
    BootImage, image_id=_text, base_digest=_text, snapshot_id=_or_none(_text.map(SnapshotId)), depth=_count
)
_request = _or_none(st.builds(RequestRef, request_id=_text.map(RequestId), verb=_text, fingerprint=_text))
_scan = st.builds(
    SecretScan,
    mode=st.sampled_from(["off", "quick", "warn", "scrub", "refuse"]),
    findings=st.lists(st.builds(Finding, path=_text, kind=_text), max_size=3).map(tuple),
    scrubbed=st.lists(_text, max_size=3).map(tuple),
    file_count=_count,
    read_bytes=_count,
    is_complete=st.booleans(),
)
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
    "is_flattened": st.booleans(),
    "metadata_cut": _or_none(_text),
    "secrets": _or_none(_scan),
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
    client_id=_or_none(_text.map(ClientId)),
    client_ttl_s=_seconds,
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
