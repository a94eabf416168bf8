"""The rows of the lifecycle table: each turns a record and an event into the next record and its command.

Pure functions without conditions on the phase beyond what their row needs. They are called by
`lifecycle.step` only, which has already matched phase, command id and generation.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sandkeeper.core import commands as cmd
from sandkeeper.core import events as ev
from sandkeeper.core.errors import Aborted, DataLoss, FailedPrecondition, SandkeeperError, error_from_wire
from sandkeeper.core.ids import BirthId, CommandId, SnapshotId, command_id, new_birth_id
from sandkeeper.core.record import Evidence, Phase, RequestRef, SandboxRecord, SnapshotRecord
from sandkeeper.core.spec import BootImage, Keep, OnLost

REBUILD_BUDGET = 5
LONG_LIVED_S = 60.0
MAX_BACKOFF_S = 30.0
GIVEN_UP_KEPT = 32


@dataclass(frozen=True, slots=True)
class Stamp:
    """The moment of a step, and a fresh random token for the names it makes."""

    at: datetime
    token: str


@dataclass(frozen=True, slots=True)
class Settled:
    """A request that has its answer now: `error` is None when it was done."""

    request: RequestRef
    error: SandkeeperError | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """The outcome of a row.

    Attributes:
        record: The next record; the same object when nothing had to change.
        command: The command to perform after the commit; also the record's `pending`.
        snapshot: A snapshot that became valid with this step.
        settled: Requests answered by this step.
        error: The row refuses the request; nothing changes.
    """

    record: SandboxRecord
    command: cmd.Command | None = None
    snapshot: SnapshotRecord | None = None
    settled: tuple[Settled, ...] = ()
    error: SandkeeperError | None = None


def launch(record: SandboxRecord, event: ev.StartRequested, stamp: Stamp) -> Move:
    return _launch(record, stamp, phase=Phase.STARTING, request=event.request)


def wake(record: SandboxRecord, event: ev.StartRequested, stamp: Stamp) -> Move:
    if not record.is_kept or record.birth_id is None:
        return launch(record, event, stamp)
    command = cmd.StartKept(
        command_id=_next_command_id(record),
        birth_id=record.birth_id,
        generation=record.generation + 1,
        size=record.spec.size,
    )
    changes: dict[str, Any] = {"phase": Phase.STARTING, "generation": command.generation}
    return _with_command(record, command, request=event.request, **changes)


def start_over(record: SandboxRecord, event: ev.StartRequested, stamp: Stamp) -> Move:
    if record.birth_id is None:
        return launch(record, event, stamp)
    changes: dict[str, Any] = {"phase": Phase.REBUILDING, "settle_to": Phase.REBUILDING, "rebuild_count": 0}
    return _remove(record, record.birth_id, request=event.request, **changes)


def freeze(record: SandboxRecord, event: ev.PauseRequested, stamp: Stamp) -> Move:
    command = cmd.FreezeRuntime(**_target(record))
    return _with_command(record, command, request=event.request)


def thaw(record: SandboxRecord, event: ev.ResumeRequested, stamp: Stamp) -> Move:
    command = cmd.ThawRuntime(**_target(record))
    return _with_command(record, command, request=event.request)


def resize(record: SandboxRecord, event: ev.ResizeRequested, stamp: Stamp) -> Move:
    if event.size == record.spec.size:
        return Move(record)
    command = cmd.UpdateRuntime(**_target(record), size=event.size)
    return _with_command(record, command, request=event.request)


def resize_later(record: SandboxRecord, event: ev.ResizeRequested, stamp: Stamp) -> Move:
    if event.size == record.spec.size:
        return Move(record)
    spec = record.spec.model_copy(update={"size": event.size})
    return Move(_changed(record, spec=spec), settled=_answered(event.request))


def snapshot(record: SandboxRecord, event: ev.SnapshotRequested, stamp: Stamp) -> Move:
    if record.birth_id is None:
        return Move(
            record,
            error=FailedPrecondition(
                "the stopped sandbox keeps no files to take a snapshot of",
                code="nothing_to_snapshot",
                advice="start it first, or fork its last snapshot",
                sandbox_id=record.sandbox_id,
            ),
        )
    return _commit(
        record,
        snapshot_id=event.snapshot_id,
        name=event.name,
        keep_s=event.keep_s,
        return_to=record.phase,
        request=event.request,
    )


def stop(record: SandboxRecord, event: ev.StopRequested, stamp: Stamp) -> Move:
    match event.keep:
        case Keep.FILES:
            command = cmd.StopRuntime(**_target(record))
            changes: dict[str, Any] = {"phase": Phase.STOPPING, "settle_to": Phase.STOPPED}
            return _with_command(record, command, request=event.request, **changes)
        case Keep.SNAPSHOT:
            return _commit(
                record,
                snapshot_id=_wanted_snapshot(event, stamp),
                name=None,
                keep_s=None,
                return_to=Phase.STOPPING,
                request=event.request,
            )
        case Keep.NOTHING:
            return _remove(
                record,
                _claimed(record),
                request=event.request,
                phase=Phase.STOPPING,
                settle_to=Phase.STOPPED,
            )


def stop_without_runtime(record: SandboxRecord, event: ev.StopRequested, stamp: Stamp) -> Move:
    return Move(_changed(record, phase=Phase.STOPPED), settled=_answered(event.request))


def stop_launch(record: SandboxRecord, event: ev.StopRequested, stamp: Stamp) -> Move:
    """Give up a launch (or the removal before a rebuild) because the sandbox is wanted stopped.

    A kept container stays kept: only its start is given up.
    """
    settled = _superseded(record, by="stop")
    if isinstance(record.pending, cmd.StartKept):
        command = cmd.StopRuntime(**_target(record))
        changes: dict[str, Any] = {"phase": Phase.STOPPING, "settle_to": Phase.STOPPED}
        return _with_command(record, command, request=event.request, settled=settled, **changes)
    changes = {"phase": Phase.STOPPING, "settle_to": Phase.STOPPED}
    return _remove(record, _claimed(record), request=event.request, settled=settled, **changes)


def stop_stopped(record: SandboxRecord, event: ev.StopRequested, stamp: Stamp) -> Move:
    if record.birth_id is None or event.keep is Keep.FILES:
        return Move(record)
    return stop(record, event, stamp)


def stop_failed(record: SandboxRecord, event: ev.StopRequested, stamp: Stamp) -> Move:
    if record.birth_id is None:
        return stop_without_runtime(record, event, stamp)
    changes: dict[str, Any] = {"phase": Phase.STOPPING, "settle_to": Phase.STOPPED}
    return _remove(record, record.birth_id, request=event.request, **changes)


def destroy(record: SandboxRecord, event: ev.DestroyRequested, stamp: Stamp) -> Move:
    settled = _superseded(record, by="destroy")
    if record.birth_id is None:
        gone = _changed(record, phase=Phase.DESTROYED, pending=None, pending_request=None)
        return Move(gone, settled=(*settled, *_answered(event.request)))
    changes: dict[str, Any] = {"phase": Phase.DESTROYING, "settle_to": Phase.DESTROYED}
    return _remove(record, record.birth_id, request=event.request, settled=settled, **changes)


def started(record: SandboxRecord, event: ev.RuntimeStarted, stamp: Stamp) -> Move:
    changes: dict[str, Any] = {
        "phase": Phase.RUNNING,
        "is_kept": False,
        "running_since_at": stamp.at,
        "settle_to": None,
    }
    return _done(record, **changes)


def launch_failed(record: SandboxRecord, event: ev.LaunchFailed, stamp: Stamp) -> Move:
    failed = _changed(record, evidence=_evidence(record, event, stamp))
    if isinstance(record.pending, cmd.StartKept) and not event.is_final:
        return _failed_request(failed, _launch_error(failed), phase=Phase.STOPPED)
    return _remove(
        failed,
        _claimed(record),
        request=record.pending_request,
        phase=Phase.STOPPING,
        settle_to=Phase.FAILED,
        is_kept=False,
    )


def rebuild_failed(record: SandboxRecord, event: ev.LaunchFailed, stamp: Stamp) -> Move:
    failed = _changed(record, evidence=_evidence(record, event, stamp))
    if event.is_final or record.rebuild_count >= REBUILD_BUDGET:
        changes: dict[str, Any] = {"phase": Phase.STOPPING, "settle_to": Phase.FAILED}
        return _remove(failed, _claimed(record), request=record.pending_request, **changes)
    changes = {"settle_to": Phase.REBUILDING, "rebuild_count": record.rebuild_count + 1}
    return _remove(failed, _claimed(record), request=record.pending_request, **changes)


def frozen(record: SandboxRecord, event: ev.RuntimeFrozen, stamp: Stamp) -> Move:
    return _done(record, phase=Phase.PAUSED)


def thawed(record: SandboxRecord, event: ev.RuntimeThawed, stamp: Stamp) -> Move:
    return _done(record, phase=Phase.RUNNING)


def resized(record: SandboxRecord, event: ev.RuntimeResized, stamp: Stamp) -> Move:
    if not isinstance(record.pending, cmd.UpdateRuntime):
        return Move(record)
    return _done(record, spec=record.spec.model_copy(update={"size": record.pending.size}))


def snapshot_committed(record: SandboxRecord, event: ev.SnapshotCommitted, stamp: Stamp) -> Move:
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
            depth=parent.depth + 1,
        ),
        parent=parent.snapshot_id,
        size_bytes=event.size_bytes,
        delta_bytes=event.delta_bytes,
        freeze_ms=event.freeze_ms,
        created_at=stamp.at,
        expires_at=None if pending.keep_s is None else stamp.at + timedelta(seconds=pending.keep_s),
    )
    changes: dict[str, Any] = {"boot": taken.boot, "last_snapshot_at": stamp.at, "return_to": None}
    kept = _changed(record, **changes)
    if record.return_to is Phase.STOPPING:
        goal: dict[str, Any] = {"phase": Phase.STOPPING, "settle_to": Phase.STOPPED}
        move = _remove(kept, _claimed(record), request=record.pending_request, **goal)
    else:
        move = _done(kept, phase=record.return_to or Phase.RUNNING)
    return Move(move.record, move.command, taken, move.settled)


def snapshot_failed(record: SandboxRecord, event: ev.SnapshotFailed, stamp: Stamp) -> Move:
    error = _event_error(record, event)
    failed = _give_up_image(record)
    return _failed_request(failed, error, phase=_phase_without_snapshot(record), return_to=None)


def stopped(record: SandboxRecord, event: ev.RuntimeStopped, stamp: Stamp) -> Move:
    return _done(record, phase=Phase.STOPPED, is_kept=True, settle_to=None, running_since_at=None)


def removed(record: SandboxRecord, event: ev.RuntimeRemoved, stamp: Stamp) -> Move:
    bare = _changed(record, birth_id=None, is_kept=False, running_since_at=None)
    if record.settle_to is Phase.REBUILDING:
        delay_s = 0.0 if bare.rebuild_count <= 1 else min(MAX_BACKOFF_S, 2.0 ** (bare.rebuild_count - 2))
        return _launch(bare, stamp, phase=Phase.REBUILDING, request=bare.pending_request, delay_s=delay_s)
    if record.settle_to is Phase.FAILED:
        return _failed_request(bare, _launch_error(bare), phase=Phase.FAILED, settle_to=None)
    if isinstance(record.pending, cmd.StopRuntime):
        return _failed_request(bare, _files_lost(record), phase=Phase.STOPPED, settle_to=None)
    return _done(bare, phase=record.settle_to or Phase.STOPPED, settle_to=None)


def command_failed(record: SandboxRecord, event: ev.CommandFailed, stamp: Stamp) -> Move:
    return _failed_request(record, _event_error(record, event))


def stop_refused(record: SandboxRecord, event: ev.CommandFailed, stamp: Stamp) -> Move:
    """A stop that keeps files could not be done: the runtime is still there."""
    return _failed_request(record, _event_error(record, event), phase=Phase.RUNNING, settle_to=None)


def lost(record: SandboxRecord, event: ev.RuntimeLost, stamp: Stamp) -> Move:
    if record.phase is Phase.SNAPSHOTTING and record.is_kept:
        return Move(record)
    settled = _interrupted(record)
    base = record if record.phase is not Phase.SNAPSHOTTING else _give_up_image(record)
    base = _changed(
        base,
        evidence=_evidence(record, event, stamp),
        pending=None,
        pending_request=None,
        return_to=None,
        running_since_at=None,
    )
    match record.spec.on_lost:
        case OnLost.REBUILD:
            return _rebuild(base, count=_rebuilds_in_a_row(record, stamp), settled=settled)
        case OnLost.STOP if event.is_container_there:
            return Move(_changed(base, phase=Phase.STOPPED, is_kept=True), settled=settled)
        case OnLost.STOP | OnLost.ASK:
            return Move(_changed(base, phase=Phase.FAILED), settled=settled)


def _rebuild(record: SandboxRecord, *, count: int, settled: tuple[Settled, ...]) -> Move:
    if count > REBUILD_BUDGET:
        changes: dict[str, Any] = {"phase": Phase.STOPPING, "settle_to": Phase.FAILED}
    else:
        changes = {"phase": Phase.REBUILDING, "settle_to": Phase.REBUILDING}
    return _remove(record, _claimed(record), request=None, settled=settled, rebuild_count=count, **changes)


def _rebuilds_in_a_row(record: SandboxRecord, stamp: Stamp) -> int:
    since = record.running_since_at
    is_long_lived = since is not None and (stamp.at - since).total_seconds() >= LONG_LIVED_S
    return 1 if is_long_lived else record.rebuild_count + 1


def _launch(
    record: SandboxRecord, stamp: Stamp, *, phase: Phase, request: RequestRef | None, delay_s: float = 0.0
) -> Move:
    birth_id = new_birth_id(stamp.token)
    command = cmd.LaunchRuntime(
        command_id=_next_command_id(record),
        birth_id=birth_id,
        generation=record.generation + 1,
        boot=record.boot,
        size=record.spec.size,
        delay_s=delay_s,
    )
    return _with_command(
        record,
        command,
        request=request,
        phase=phase,
        generation=command.generation,
        birth_id=birth_id,
        is_kept=False,
        settle_to=None,
        runtime_boot=record.boot,
    )


def _commit(
    record: SandboxRecord,
    *,
    snapshot_id: SnapshotId,
    name: str | None,
    keep_s: float | None,
    return_to: Phase,
    request: RequestRef | None,
) -> Move:
    command = cmd.CommitSnapshot(
        **_target(record),
        snapshot_id=snapshot_id,
        name=name,
        keep_s=keep_s,
        was_frozen=record.phase is not Phase.RUNNING,
    )
    return _with_command(record, command, request=request, phase=Phase.SNAPSHOTTING, return_to=return_to)


def _remove(
    record: SandboxRecord,
    birth_id: BirthId,
    *,
    request: RequestRef | None,
    settled: tuple[Settled, ...] = (),
    **changes: Any,
) -> Move:
    base = _give_up_image(record) if isinstance(record.pending, cmd.CommitSnapshot) else record
    base = _given_up(base, birth_id)
    command = cmd.RemoveRuntime(
        command_id=_next_command_id(base), birth_id=birth_id, generation=base.generation
    )
    return _with_command(base, command, request=request, settled=settled, return_to=None, **changes)


def _with_command(
    record: SandboxRecord,
    command: cmd.Command,
    *,
    request: RequestRef | None,
    settled: tuple[Settled, ...] = (),
    **changes: Any,
) -> Move:
    moved = _changed(
        record,
        pending=command,
        pending_request=request,
        command_count=record.command_count + 1,
        **changes,
    )
    return Move(moved, command, settled=settled)


def _done(record: SandboxRecord, **changes: Any) -> Move:
    moved = _changed(record, pending=None, pending_request=None, **changes)
    return Move(moved, settled=_answered(record.pending_request))


def _failed_request(record: SandboxRecord, error: SandkeeperError, **changes: Any) -> Move:
    moved = _changed(record, pending=None, pending_request=None, **changes)
    return Move(moved, settled=_answered(record.pending_request, error))


def _answered(request: RequestRef | None, error: SandkeeperError | None = None) -> tuple[Settled, ...]:
    if request is None:
        return ()
    if error is not None:
        error.request_id = request.request_id
    return (Settled(request, error),)


def _superseded(record: SandboxRecord, *, by: str) -> tuple[Settled, ...]:
    if record.pending is None:
        return ()
    return _answered(
        record.pending_request,
        Aborted(
            f"{record.pending.kind} was given up because of a {by} request",
            code="superseded",
            admitted="yes",
            sandbox_id=record.sandbox_id,
        ),
    )


def _interrupted(record: SandboxRecord) -> tuple[Settled, ...]:
    if record.pending is None:
        return ()
    return _answered(
        record.pending_request,
        Aborted(
            f"the runtime was lost during {record.pending.kind}",
            code="runtime_lost",
            advice="the sandbox is being recovered as its on_lost setting says; ask again afterwards",
            admitted="yes",
            sandbox_id=record.sandbox_id,
        ),
    )


def _phase_without_snapshot(record: SandboxRecord) -> Phase:
    if record.return_to is not None and record.return_to is not Phase.STOPPING:
        return record.return_to
    if record.is_kept:
        return Phase.STOPPED
    was_frozen = isinstance(record.pending, cmd.CommitSnapshot) and record.pending.was_frozen
    return Phase.PAUSED if was_frozen else Phase.RUNNING


def _give_up_image(record: SandboxRecord) -> SandboxRecord:
    if not isinstance(record.pending, cmd.CommitSnapshot):
        return record
    return _given_up(record, f"pending-{record.pending.command_id}")


def _given_up(record: SandboxRecord, name: str) -> SandboxRecord:
    kept = tuple(known for known in record.given_up if known != name)
    return _changed(record, given_up=(*kept, name)[-GIVEN_UP_KEPT:])


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
    return Aborted(
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


def _wanted_snapshot(event: ev.StopRequested, stamp: Stamp) -> SnapshotId:
    return event.snapshot_id or SnapshotId(f"sn{stamp.token}")


def _claimed(record: SandboxRecord) -> BirthId:
    if record.birth_id is None:
        raise AssertionError(f"{record.sandbox_id} is {record.phase} without a runtime")
    return record.birth_id


def _target(record: SandboxRecord) -> dict[str, Any]:
    return {
        "command_id": _next_command_id(record),
        "birth_id": _claimed(record),
        "generation": record.generation,
    }


def _next_command_id(record: SandboxRecord) -> CommandId:
    return command_id(record.sandbox_id, record.command_count + 1)


def _changed(record: SandboxRecord, **changes: Any) -> SandboxRecord:
    return record.model_copy(update=changes)
