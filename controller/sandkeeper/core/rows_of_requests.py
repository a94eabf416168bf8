"""The rows of the lifecycle table for what callers ask for.

Each turns a record and a request into the next record and its command. Pure; called by `lifecycle.step` only,
which has matched the phase.
"""

from __future__ import annotations

from typing import Any

from sandkeeper.core import commands as cmd
from sandkeeper.core import events as ev
from sandkeeper.core.errors import FailedPrecondition
from sandkeeper.core.ids import SnapshotId
from sandkeeper.core.moves import (
    Move,
    Stamp,
    answered,
    begin_commit,
    begin_launch,
    begin_removal,
    changed,
    claimed,
    next_command_id,
    superseded,
    target,
    with_command,
)
from sandkeeper.core.record import Phase, SandboxRecord
from sandkeeper.core.spec import Keep

IDLE = "idle"
"""The reason of a stop or pause that idleness asked for."""


def launch(record: SandboxRecord, event: ev.StartRequested, stamp: Stamp) -> Move:
    """Start it for the first time, or from the last valid snapshot; what somebody asks for has the whole budget."""
    record = changed(record, rebuild_count=0)
    return begin_launch(record, stamp, phase=Phase.STARTING, request=event.request)


def wake(record: SandboxRecord, event: ev.StartRequested, stamp: Stamp) -> Move:
    """Start a stopped sandbox: the kept container if there is one, else from `boot`."""
    if not record.is_kept or record.birth_id is None:
        return launch(record, event, stamp)
    command = cmd.StartKept(
        command_id=next_command_id(record),
        birth_id=record.birth_id,
        generation=record.generation + 1,
        size=record.spec.size,
    )
    changes: dict[str, Any] = {"phase": Phase.STARTING, "generation": command.generation}
    return with_command(record, command, request=event.request, **changes)


def start_over(record: SandboxRecord, event: ev.StartRequested, stamp: Stamp) -> Move:
    """Start after a failure: what is left of the old runtime goes first."""
    if record.birth_id is None:
        return launch(record, event, stamp)
    changes: dict[str, Any] = {"phase": Phase.REBUILDING, "settle_to": Phase.REBUILDING, "rebuild_count": 0}
    return begin_removal(record, record.birth_id, request=event.request, **changes)


def freeze(record: SandboxRecord, event: ev.PauseRequested, stamp: Stamp) -> Move:
    """Freeze a running runtime."""
    command = cmd.FreezeRuntime(**target(record))
    return with_command(record, command, request=event.request, is_resting=event.reason == IDLE)


def thaw(record: SandboxRecord, event: ev.ResumeRequested, stamp: Stamp) -> Move:
    """Let a frozen runtime go on."""
    command = cmd.ThawRuntime(**target(record))
    return with_command(record, command, request=event.request)


def resize(record: SandboxRecord, event: ev.ResizeRequested, stamp: Stamp) -> Move:
    """Change the limits of a live runtime."""
    if event.size == record.spec.size:
        return Move(record)
    command = cmd.UpdateRuntime(**target(record), size=event.size)
    return with_command(record, command, request=event.request)


def resize_later(record: SandboxRecord, event: ev.ResizeRequested, stamp: Stamp) -> Move:
    """Change the limits the next launch will have."""
    if event.size == record.spec.size:
        return Move(record)
    spec = record.spec.model_copy(update={"size": event.size})
    return Move(changed(record, spec=spec), settled=answered(event.request))


def snapshot(record: SandboxRecord, event: ev.SnapshotRequested, stamp: Stamp) -> Move:
    """Take a snapshot and come back to this phase."""
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
    return begin_commit(
        record,
        snapshot_id=event.snapshot_id,
        name=event.name,
        keep_s=event.keep_s,
        return_to=record.phase,
        request=event.request,
    )


def stop(record: SandboxRecord, event: ev.StopRequested, stamp: Stamp) -> Move:
    """Stop a live runtime, keeping what the request says."""
    record = changed(record, is_resting=event.reason == IDLE)
    match event.keep:
        case Keep.FILES:
            command = cmd.StopRuntime(**target(record))
            changes: dict[str, Any] = {
                "phase": Phase.STOPPING,
                "settle_to": Phase.STOPPED,
                "return_to": record.phase,
            }
            return with_command(record, command, request=event.request, **changes)
        case Keep.SNAPSHOT:
            return begin_commit(
                record,
                snapshot_id=_wanted_snapshot(event, stamp),
                name=None,
                keep_s=None,
                return_to=Phase.STOPPING,
                request=event.request,
            )
        case Keep.NOTHING:
            return begin_removal(
                record,
                claimed(record),
                request=event.request,
                phase=Phase.STOPPING,
                settle_to=Phase.STOPPED,
            )


def stop_without_runtime(record: SandboxRecord, event: ev.StopRequested, stamp: Stamp) -> Move:
    """There is nothing to stop but the intention to run."""
    return Move(changed(record, phase=Phase.STOPPED), settled=answered(event.request))


def stop_launch(record: SandboxRecord, event: ev.StopRequested, stamp: Stamp) -> Move:
    """Give up a launch (or the removal before a rebuild) because the sandbox is wanted stopped.

    A kept container stays kept: only its start is given up.
    """
    settled = superseded(record, by="stop")
    if isinstance(record.pending, cmd.StartKept):
        command = cmd.StopRuntime(**target(record))
        changes: dict[str, Any] = {
            "phase": Phase.STOPPING,
            "settle_to": Phase.STOPPED,
            "return_to": Phase.STOPPED,
        }
        return with_command(record, command, request=event.request, settled=settled, **changes)
    changes = {"phase": Phase.STOPPING, "settle_to": Phase.STOPPED}
    return begin_removal(record, claimed(record), request=event.request, settled=settled, **changes)


def stop_stopped(record: SandboxRecord, event: ev.StopRequested, stamp: Stamp) -> Move:
    """Stop again with another `keep`: what was kept may be snapshotted or dropped."""
    if record.birth_id is None or event.keep is Keep.FILES:
        return Move(record)
    return stop(record, event, stamp)


def stop_failed(record: SandboxRecord, event: ev.StopRequested, stamp: Stamp) -> Move:
    """Leave the failed phase for stopped."""
    if record.birth_id is None:
        return stop_without_runtime(record, event, stamp)
    changes: dict[str, Any] = {"phase": Phase.STOPPING, "settle_to": Phase.STOPPED}
    return begin_removal(record, record.birth_id, request=event.request, **changes)


def destroy(record: SandboxRecord, event: ev.DestroyRequested, stamp: Stamp) -> Move:
    """Give up whatever is pending, under its name, and remove the runtime."""
    settled = superseded(record, by="destroy")
    if record.birth_id is None:
        gone = changed(record, phase=Phase.DESTROYED, pending=None, pending_request=None)
        return Move(gone, settled=(*settled, *answered(event.request)))
    changes: dict[str, Any] = {"phase": Phase.DESTROYING, "settle_to": Phase.DESTROYED}
    return begin_removal(record, record.birth_id, request=event.request, settled=settled, **changes)


def _wanted_snapshot(event: ev.StopRequested, stamp: Stamp) -> SnapshotId:
    return event.snapshot_id or SnapshotId(f"sn{stamp.token}")
