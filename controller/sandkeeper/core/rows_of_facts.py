"""The rows of the lifecycle table for what has happened: replies of commands, and the loss of a runtime.

Each turns a record and a fact into the next record and its command. Pure; called by `lifecycle.step` only,
which has matched phase, command id and generation.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sandkeeper.core import commands as cmd
from sandkeeper.core import events as ev
from sandkeeper.core.errors import Aborted, DataLoss, SandkeeperError, error_from_wire
from sandkeeper.core.moves import (
    Move,
    Settled,
    Stamp,
    answered,
    begin_launch,
    begin_removal,
    changed,
    claimed,
    done,
    failed_request,
    give_up_image,
    interrupted,
)
from sandkeeper.core.record import Ailment, Evidence, Phase, SandboxRecord, SnapshotRecord
from sandkeeper.core.spec import BootImage, OnLost

REBUILD_BUDGET = 5
LONG_LIVED_S = 60.0
MAX_BACKOFF_S = 30.0
ENGINE_GONE = "engine_unavailable"
"""A launch that failed for this reason is answered at once: its removal has to wait for the engine."""
_LOST_IMAGES = ("image_missing", "snapshot_missing")


def started(record: SandboxRecord, event: ev.RuntimeStarted, stamp: Stamp) -> Move:
    """The runtime answers: the sandbox runs."""
    changes: dict[str, Any] = {
        "phase": Phase.RUNNING,
        "is_kept": False,
        "running_since_at": stamp.at,
        "settle_to": None,
        "is_resting": False,
        "ailment": None,
    }
    return done(record, **changes)


def launch_failed(record: SandboxRecord, event: ev.LaunchFailed, stamp: Stamp) -> Move:
    """A start failed: keep the evidence, remove what it made. A kept container stays kept."""
    failed = changed(record, evidence=_evidence(record, event, stamp))
    if isinstance(record.pending, cmd.StartKept) and not event.is_final:
        return failed_request(failed, _launch_error(failed), phase=Phase.STOPPED)
    changes: dict[str, Any] = {"phase": Phase.STOPPING, "settle_to": Phase.FAILED, "is_kept": False}
    if event.reason == ENGINE_GONE:
        settled = answered(record.pending_request, _launch_error(failed))
        return begin_removal(failed, claimed(record), request=None, settled=settled, **changes)
    return begin_removal(failed, claimed(record), request=record.pending_request, **changes)


def rebuild_failed(record: SandboxRecord, event: ev.LaunchFailed, stamp: Stamp) -> Move:
    """A rebuild failed: try again within the budget, else give up."""
    failed = changed(record, evidence=_evidence(record, event, stamp))
    if event.is_final or record.rebuild_count >= REBUILD_BUDGET:
        changes: dict[str, Any] = {"phase": Phase.STOPPING, "settle_to": Phase.FAILED}
        return begin_removal(failed, claimed(record), request=record.pending_request, **changes)
    changes = {"settle_to": Phase.REBUILDING, "rebuild_count": record.rebuild_count + 1}
    return begin_removal(failed, claimed(record), request=record.pending_request, **changes)


def frozen(record: SandboxRecord, event: ev.RuntimeFrozen, stamp: Stamp) -> Move:
    """The processes stand still."""
    return done(record, phase=Phase.PAUSED)


def thawed(record: SandboxRecord, event: ev.RuntimeThawed, stamp: Stamp) -> Move:
    """The processes go on."""
    return done(record, phase=Phase.RUNNING, is_resting=False)


def resized(record: SandboxRecord, event: ev.RuntimeResized, stamp: Stamp) -> Move:
    """The new limits are in force."""
    if not isinstance(record.pending, cmd.UpdateRuntime):
        return Move(record)
    return done(record, spec=record.spec.model_copy(update={"size": record.pending.size}))


def snapshot_committed(record: SandboxRecord, event: ev.SnapshotCommitted, stamp: Stamp) -> Move:
    """The snapshot exists; the next launch starts from it."""
    pending = record.pending
    if not isinstance(pending, cmd.CommitSnapshot):
        return Move(record)
    parent = record.runtime_boot or record.spec.boot
    taken = SnapshotRecord(
        snapshot_id=pending.snapshot_id,
        tenant_id=record.tenant_id,
        machine_id=record.machine_id,
        sandbox_id=record.sandbox_id,
        generation=record.generation,
        name=pending.name,
        boot=BootImage(
            image_id=event.image_id,
            base_digest=record.spec.boot.base_digest,
            snapshot_id=pending.snapshot_id,
            depth=1 if event.is_flattened else parent.depth + 1,
        ),
        parent=parent.snapshot_id,
        size_bytes=event.size_bytes,
        delta_bytes=event.delta_bytes,
        freeze_ms=event.freeze_ms,
        created_at=stamp.at,
        expires_at=None if pending.keep_s is None else stamp.at + timedelta(seconds=pending.keep_s),
        is_automatic=record.return_to is Phase.STOPPING,
        is_flattened=event.is_flattened,
        metadata_cut=event.metadata_cut,
        secrets=event.secrets,
    )
    changes: dict[str, Any] = {"boot": taken.boot, "last_snapshot_at": stamp.at, "return_to": None}
    kept = changed(record, **changes)
    if record.return_to is Phase.STOPPING:
        goal: dict[str, Any] = {"phase": Phase.STOPPING, "settle_to": Phase.STOPPED}
        move = begin_removal(kept, claimed(record), request=record.pending_request, **goal)
    else:
        move = done(kept, phase=record.return_to or Phase.RUNNING)
    return Move(move.record, move.command, taken, move.settled)


def snapshot_failed(record: SandboxRecord, event: ev.SnapshotFailed, stamp: Stamp) -> Move:
    """There is no snapshot; its name is given up and the runtime is as before."""
    error = _event_error(record, event)
    failed = give_up_image(record)
    return failed_request(failed, error, phase=_phase_without_snapshot(record), return_to=None)


def stopped(record: SandboxRecord, event: ev.RuntimeStopped, stamp: Stamp) -> Move:
    """The container is stopped and keeps the files."""
    return done(
        record,
        phase=Phase.STOPPED,
        is_kept=True,
        settle_to=None,
        return_to=None,
        running_since_at=None,
        ailment=None,
    )


def removed(record: SandboxRecord, event: ev.RuntimeRemoved, stamp: Stamp) -> Move:
    """The runtime is gone: go where `settle_to` says."""
    bare = changed(record, birth_id=None, is_kept=False, running_since_at=None)
    if record.settle_to is Phase.REBUILDING:
        delay_s = 0.0 if bare.rebuild_count <= 1 else min(MAX_BACKOFF_S, 2.0 ** (bare.rebuild_count - 2))
        return begin_launch(
            bare, stamp, phase=Phase.REBUILDING, request=bare.pending_request, delay_s=delay_s
        )
    if record.settle_to is Phase.FAILED:
        return failed_request(bare, _launch_error(bare), phase=Phase.FAILED, settle_to=None)
    if isinstance(record.pending, cmd.StopRuntime):
        return failed_request(bare, _files_lost(record), phase=Phase.STOPPED, settle_to=None)
    return done(bare, phase=record.settle_to or Phase.STOPPED, settle_to=None)


def command_failed(record: SandboxRecord, event: ev.CommandFailed, stamp: Stamp) -> Move:
    """A verb could not be done; the runtime is as before."""
    return failed_request(record, _event_error(record, event))


def stop_refused(record: SandboxRecord, event: ev.CommandFailed, stamp: Stamp) -> Move:
    """A stop that keeps files could not be done: the container is as it was, and so is the phase."""
    phase = record.return_to or Phase.RUNNING
    return failed_request(
        record, _event_error(record, event), phase=phase, settle_to=None, return_to=None, is_resting=False
    )


def lost(record: SandboxRecord, event: ev.RuntimeLost, stamp: Stamp) -> Move:
    """The runtime died: keep the evidence and do what `on_lost` says."""
    if record.phase is Phase.SNAPSHOTTING and record.is_kept:
        return Move(record)
    settled = interrupted(record)
    base = record if record.phase is not Phase.SNAPSHOTTING else give_up_image(record)
    base = changed(
        base,
        evidence=_evidence(record, event, stamp),
        pending=None,
        pending_request=None,
        return_to=None,
        running_since_at=None,
        ailment=None,
        is_resting=False,
    )
    match record.spec.on_lost:
        case OnLost.REBUILD:
            return _rebuild(base, count=_rebuilds_in_a_row(record, stamp), settled=settled)
        case OnLost.STOP if event.is_container_there:
            return Move(changed(base, phase=Phase.STOPPED, is_kept=True), settled=settled)
        case OnLost.STOP | OnLost.ASK:
            return Move(changed(base, phase=Phase.FAILED), settled=settled)


def health_changed(record: SandboxRecord, event: ev.HealthChanged, stamp: Stamp) -> Move:
    """The runtime ails, or is well again; it stays the runtime."""
    known = record.ailment
    if event.code is None:
        return Move(record if known is None else changed(record, ailment=None))
    if known is not None and (known.code, known.message) == (event.code, event.message):
        return Move(record)
    ailment = Ailment(code=event.code, message=event.message, since_at=stamp.at)
    return Move(changed(record, ailment=ailment))


def _rebuild(record: SandboxRecord, *, count: int, settled: tuple[Settled, ...]) -> Move:
    if count > REBUILD_BUDGET:
        changes: dict[str, Any] = {"phase": Phase.STOPPING, "settle_to": Phase.FAILED}
    else:
        changes = {"phase": Phase.REBUILDING, "settle_to": Phase.REBUILDING}
    return begin_removal(
        record, claimed(record), request=None, settled=settled, rebuild_count=count, **changes
    )


def _rebuilds_in_a_row(record: SandboxRecord, stamp: Stamp) -> int:
    since = record.running_since_at
    is_long_lived = since is not None and (stamp.at - since).total_seconds() >= LONG_LIVED_S
    return 1 if is_long_lived else record.rebuild_count + 1


def _phase_without_snapshot(record: SandboxRecord) -> Phase:
    if record.return_to is not None and record.return_to is not Phase.STOPPING:
        return record.return_to
    if record.is_kept:
        return Phase.STOPPED
    was_frozen = isinstance(record.pending, cmd.CommitSnapshot) and record.pending.was_frozen
    return Phase.PAUSED if was_frozen else Phase.RUNNING


def _evidence(record: SandboxRecord, event: ev.LaunchFailed | ev.RuntimeLost, stamp: Stamp) -> Evidence:
    return Evidence(
        generation=record.generation,
        reason=event.reason,
        message=event.message,
        exit_code=event.exit_code,
        oom_killed=event.oom_killed,
        output_tail=event.output_tail,
        at=stamp.at,
    )


def _launch_error(record: SandboxRecord) -> SandkeeperError:
    evidence = record.evidence
    reason = evidence.reason if evidence else "launch_failed"
    details: dict[str, Any] = {"generation": record.generation}
    if evidence is not None:
        details |= {"exit_code": evidence.exit_code, "output_tail": evidence.output_tail}
    kind = DataLoss if reason in _LOST_IMAGES else Aborted
    return kind(
        evidence.message if evidence else "the launch failed",
        code=reason,
        advice="see details.output_tail and the sandbox's events; start it again, or destroy it",
        admitted="yes",
        sandbox_id=record.sandbox_id,
        details=details,
    )


def _files_lost(record: SandboxRecord) -> SandkeeperError:
    return DataLoss(
        "the container was gone when it was to be stopped, so its files are lost",
        code="state_lost",
        advice="starting it again goes back to its last valid snapshot",
        admitted="yes",
        sandbox_id=record.sandbox_id,
        details={"snapshot": record.boot.snapshot_id},
    )


def _event_error(record: SandboxRecord, event: ev.SnapshotFailed | ev.CommandFailed) -> SandkeeperError:
    error = error_from_wire(event.model_dump(include={"category", "code", "message", "advice"}))
    error.admitted = "yes"
    error.sandbox_id = record.sandbox_id
    return error
