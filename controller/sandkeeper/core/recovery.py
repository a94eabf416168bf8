"""Record plus observation gives ordinary events: there is no second way through the lifecycle.

Used at an owner's start, after an engine's return, and by the periodic check of a quiet sandbox. Pure: the
caller looks at the engine, performs what is asked for, and feeds the events to `lifecycle.step`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sandkeeper.core import commands as cmd
from sandkeeper.core import events as ev
from sandkeeper.core.observation import RuntimeObservation, RuntimeState
from sandkeeper.core.record import Phase, SandboxRecord


class Correction(Enum):
    """An engine call that brings a live container back to what the record says it is."""

    FREEZE = "freeze"
    THAW = "thaw"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Recovery:
    """What to do about one sandbox.

    Attributes:
        correction: Engine call to make first, idempotent; None when reality fits.
        events: Events to feed, in order.
        perform: The record's pending command, to be performed again; idempotent by its names.
    """

    correction: Correction | None = None
    events: tuple[ev.Event, ...] = ()
    perform: cmd.Command | None = None


NOTHING = Recovery()
_ALIVE = (RuntimeState.RUNNING, RuntimeState.FROZEN)


def recover(record: SandboxRecord, seen: RuntimeObservation | None) -> Recovery:
    """Compare what is recorded with what the engine shows.

    Args:
        record: The durable record.
        seen: The container of `record.birth_id`, or None when there is none at the engine. An engine that
            cannot be asked is not None: the caller must wait instead.

    Returns:
        What to do; `NOTHING` when record and reality agree.
    """
    if record.pending is None:
        return _recover_quiet(record, seen)
    match record.pending:
        case cmd.LaunchRuntime():
            return _recover_launch(record.pending, seen)
        case cmd.StartKept() | cmd.StopRuntime() | cmd.RemoveRuntime():
            return Recovery(perform=record.pending)
        case cmd.FreezeRuntime() | cmd.ThawRuntime() | cmd.UpdateRuntime():
            if _is_alive(seen):
                return Recovery(perform=record.pending)
            return Recovery(events=(_lost(record, seen),))
        case cmd.CommitSnapshot():
            return _recover_snapshot(record, record.pending, seen)


def _recover_quiet(record: SandboxRecord, seen: RuntimeObservation | None) -> Recovery:
    match record.phase:
        case Phase.RUNNING | Phase.PAUSED:
            if not _is_alive(seen) or (seen is not None and seen.is_answering is False):
                return Recovery(events=(_lost(record, seen),))
            return Recovery(correction=_correction(record.phase is Phase.PAUSED, seen))
        case Phase.STOPPED if _is_alive(seen):
            return Recovery(correction=Correction.STOP)
        case _:
            return NOTHING


def _recover_launch(pending: cmd.LaunchRuntime, seen: RuntimeObservation | None) -> Recovery:
    if seen is None or seen.state is not RuntimeState.EXITED:
        return Recovery(perform=pending)
    failed = ev.LaunchFailed(
        command_id=pending.command_id,
        reason="launch_died",
        message="process 1 ended before the launch was completed",
        exit_code=seen.exit_code,
        oom_killed=seen.oom_killed,
    )
    return Recovery(events=(failed,))


def _recover_snapshot(
    record: SandboxRecord, pending: cmd.CommitSnapshot, seen: RuntimeObservation | None
) -> Recovery:
    if not record.is_kept and not _is_alive(seen):
        return Recovery(events=(_lost(record, seen),))
    failed = ev.SnapshotFailed(
        command_id=pending.command_id,
        code="snapshot_interrupted",
        message="the owner ended while the snapshot was being taken, so it did not happen",
        advice="take it again under a new request id; the last valid snapshot is unchanged",
    )
    correction = None if record.is_kept else _correction(pending.was_frozen, seen)
    return Recovery(correction=correction, events=(failed,))


def _correction(is_to_be_frozen: bool, seen: RuntimeObservation | None) -> Correction | None:
    if seen is None:
        return None
    is_frozen = seen.state is RuntimeState.FROZEN
    if is_frozen == is_to_be_frozen:
        return None
    return Correction.FREEZE if is_to_be_frozen else Correction.THAW


def _is_alive(seen: RuntimeObservation | None) -> bool:
    return seen is not None and seen.state in _ALIVE


def _lost(record: SandboxRecord, seen: RuntimeObservation | None) -> ev.RuntimeLost:
    if seen is None:
        return ev.RuntimeLost(
            generation=record.generation,
            reason="vanished",
            message="the engine knows no such container",
        )
    return lost_event(record.generation, seen)


def lost_event(generation: int, seen: RuntimeObservation, *, output_tail: str = "") -> ev.RuntimeLost:
    """Return the event for a container that is there but no longer runs, or runs without answering."""
    if seen.oom_killed:
        reason = "oom_killed"
    elif seen.state in _ALIVE:
        reason = "box_unanswering"
    elif seen.exit_code is not None and seen.exit_code > 128:
        reason = "killed"
    else:
        reason = "exited"
    return ev.RuntimeLost(
        generation=generation,
        reason=reason,
        message=f"container {seen.state.value}, exit code {seen.exit_code}, oom_killed {seen.oom_killed}",
        exit_code=seen.exit_code,
        oom_killed=seen.oom_killed,
        output_tail=output_tail,
        is_container_there=True,
    )
