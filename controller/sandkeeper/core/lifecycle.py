"""The lifecycle of one sandbox: everything that moves its phase is the table in this file.

`step(record, event, stamp)` is the only way from one record to the next. Every pair of phase and event is a
row (a function), `ALREADY` (true before it was asked), `DEFERRED` (asked again when the pending command has
been answered), `STALE` (a fact that no longer matters) or a `Refusal`. The rows are in
`rows_of_requests` and `rows_of_facts`.
The state diagram in the docs is drawn from this table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from sandkeeper.core import events as ev
from sandkeeper.core import rows_of_facts as facts
from sandkeeper.core import rows_of_requests as requests
from sandkeeper.core.errors import FailedPrecondition, NotFound, SandkeeperError
from sandkeeper.core.moves import Move, Stamp
from sandkeeper.core.record import Phase, SandboxRecord

__all__ = ["TABLE", "Move", "Quiet", "Refusal", "Stamp", "Unmoved", "step"]


class Quiet(Enum):
    """Answers of the table that move nothing."""

    ALREADY = "already"
    DEFERRED = "deferred"
    STALE = "stale"


ALREADY, DEFERRED, STALE = Quiet.ALREADY, Quiet.DEFERRED, Quiet.STALE


@dataclass(frozen=True, slots=True)
class Refusal:
    """The table says no to a request.

    Attributes:
        code: Stable code of the error the caller gets.
        advice: What the caller can do instead.
    """

    code: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Unmoved:
    """The event changed nothing: `quiet` says why, `error` is set when a request was refused."""

    quiet: Quiet | None
    error: SandkeeperError | None = None


Row = Callable[[SandboxRecord, Any, Stamp], Move]
Cell = Row | Quiet | Refusal

_GONE = Refusal("sandbox_destroyed", "create a new sandbox, or fork one of its snapshots")
_NOT_RUNNING = Refusal("sandbox_not_running", "start it first")
_PAUSED = Refusal("sandbox_paused", "resume it instead")
_NOT_PAUSED = Refusal("sandbox_not_paused", "only a paused sandbox can be resumed")
_EMPTY = Refusal("nothing_to_snapshot", "start it first, or fork its last snapshot")

_P = Phase
TABLE: dict[type[Any], dict[Phase, Cell]] = {
    ev.StartRequested: {
        _P.CREATED: requests.launch,
        _P.STARTING: DEFERRED,
        _P.RUNNING: ALREADY,
        _P.PAUSED: _PAUSED,
        _P.SNAPSHOTTING: DEFERRED,
        _P.REBUILDING: DEFERRED,
        _P.STOPPING: DEFERRED,
        _P.STOPPED: requests.wake,
        _P.FAILED: requests.start_over,
        _P.DESTROYING: _GONE,
        _P.DESTROYED: _GONE,
    },
    ev.PauseRequested: {
        _P.CREATED: _NOT_RUNNING,
        _P.STARTING: DEFERRED,
        _P.RUNNING: requests.freeze,
        _P.PAUSED: ALREADY,
        _P.SNAPSHOTTING: DEFERRED,
        _P.REBUILDING: DEFERRED,
        _P.STOPPING: DEFERRED,
        _P.STOPPED: _NOT_RUNNING,
        _P.FAILED: _NOT_RUNNING,
        _P.DESTROYING: _GONE,
        _P.DESTROYED: _GONE,
    },
    ev.ResumeRequested: {
        _P.CREATED: _NOT_PAUSED,
        _P.STARTING: DEFERRED,
        _P.RUNNING: ALREADY,
        _P.PAUSED: requests.thaw,
        _P.SNAPSHOTTING: DEFERRED,
        _P.REBUILDING: DEFERRED,
        _P.STOPPING: DEFERRED,
        _P.STOPPED: _NOT_PAUSED,
        _P.FAILED: _NOT_PAUSED,
        _P.DESTROYING: _GONE,
        _P.DESTROYED: _GONE,
    },
    ev.SnapshotRequested: {
        _P.CREATED: _EMPTY,
        _P.STARTING: DEFERRED,
        _P.RUNNING: requests.snapshot,
        _P.PAUSED: requests.snapshot,
        _P.SNAPSHOTTING: DEFERRED,
        _P.REBUILDING: DEFERRED,
        _P.STOPPING: DEFERRED,
        _P.STOPPED: requests.snapshot,
        _P.FAILED: _EMPTY,
        _P.DESTROYING: _GONE,
        _P.DESTROYED: _GONE,
    },
    ev.StopRequested: {
        _P.CREATED: requests.stop_without_runtime,
        _P.STARTING: requests.stop_launch,
        _P.RUNNING: requests.stop,
        _P.PAUSED: requests.stop,
        _P.SNAPSHOTTING: DEFERRED,
        _P.REBUILDING: requests.stop_launch,
        _P.STOPPING: DEFERRED,
        _P.STOPPED: requests.stop_stopped,
        _P.FAILED: requests.stop_failed,
        _P.DESTROYING: _GONE,
        _P.DESTROYED: _GONE,
    },
    ev.DestroyRequested: {
        **dict.fromkeys(Phase, requests.destroy),
        _P.DESTROYING: DEFERRED,
        _P.DESTROYED: ALREADY,
    },
    ev.ResizeRequested: {
        _P.CREATED: requests.resize_later,
        _P.STARTING: DEFERRED,
        _P.RUNNING: requests.resize,
        _P.PAUSED: requests.resize,
        _P.SNAPSHOTTING: DEFERRED,
        _P.REBUILDING: DEFERRED,
        _P.STOPPING: DEFERRED,
        _P.STOPPED: requests.resize_later,
        _P.FAILED: requests.resize_later,
        _P.DESTROYING: _GONE,
        _P.DESTROYED: _GONE,
    },
    ev.RuntimeStarted: {_P.STARTING: facts.started, _P.REBUILDING: facts.started},
    ev.LaunchFailed: {_P.STARTING: facts.launch_failed, _P.REBUILDING: facts.rebuild_failed},
    ev.RuntimeFrozen: {_P.RUNNING: facts.frozen},
    ev.RuntimeThawed: {_P.PAUSED: facts.thawed},
    ev.RuntimeResized: {_P.RUNNING: facts.resized, _P.PAUSED: facts.resized},
    ev.SnapshotCommitted: {_P.SNAPSHOTTING: facts.snapshot_committed},
    ev.SnapshotFailed: {_P.SNAPSHOTTING: facts.snapshot_failed},
    ev.RuntimeStopped: {_P.STOPPING: facts.stopped},
    ev.RuntimeRemoved: {
        _P.STOPPING: facts.removed,
        _P.REBUILDING: facts.removed,
        _P.DESTROYING: facts.removed,
    },
    ev.CommandFailed: {
        _P.RUNNING: facts.command_failed,
        _P.PAUSED: facts.command_failed,
        _P.STOPPING: facts.stop_refused,
    },
    ev.HealthChanged: {_P.RUNNING: facts.health_changed},
    ev.RuntimeLost: {
        _P.RUNNING: facts.lost,
        _P.PAUSED: facts.lost,
        _P.SNAPSHOTTING: facts.lost,
    },
}
"""Event class -> phase -> cell. A phase that is not listed for a fact is `STALE`."""


def cell(phase: Phase, kind: type[Any]) -> Cell:
    """Return what the table says for this phase and event class."""
    return TABLE[kind].get(phase, STALE)


def step(record: SandboxRecord, event: ev.Event, stamp: Stamp) -> Move | Unmoved:
    """Apply one event to a record.

    Args:
        record: The durable record.
        event: What has happened or is asked for.
        stamp: The moment, and a fresh token for the names a row has to make.

    Returns:
        `Move` with the next record, to be committed before its command is performed, or `Unmoved`. The same
        inputs always give the same output.
    """
    if isinstance(event, ev.REPLIES) and not _is_awaited(record, event):
        return Unmoved(STALE)
    if isinstance(event, ev.OBSERVATIONS) and event.generation != record.generation:
        return Unmoved(STALE)
    found = cell(record.phase, type(event))
    if isinstance(event, ev.REQUESTS) and callable(found) and _must_wait(record, event):
        return Unmoved(DEFERRED)
    match found:
        case Quiet():
            return Unmoved(found)
        case Refusal():
            return Unmoved(None, _refusal_error(record, event, found))
        case _:
            return _moved(record, found(record, event, stamp), stamp.at)


def _is_awaited(record: SandboxRecord, event: Any) -> bool:
    return record.pending is not None and record.pending.command_id == event.command_id


def _must_wait(record: SandboxRecord, event: Any) -> bool:
    """A pending command lets only those requests through that give it up: stop of a launch, and destroy."""
    if record.pending is None or isinstance(event, ev.DestroyRequested):
        return False
    return not (isinstance(event, ev.StopRequested) and record.phase in (Phase.STARTING, Phase.REBUILDING))


def _moved(record: SandboxRecord, move: Move, at: datetime) -> Move | Unmoved:
    if move.error is not None:
        return Unmoved(None, move.error)
    if move.record is record:
        return Unmoved(ALREADY)
    return Move(
        record=move.record.model_copy(update={"updated_at": at}),
        command=move.command,
        snapshot=move.snapshot,
        settled=move.settled,
    )


def _refusal_error(record: SandboxRecord, event: Any, refusal: Refusal) -> SandkeeperError:
    verb = str(event.kind).removesuffix("_requested")
    kind = NotFound if refusal is _GONE else FailedPrecondition
    return kind(
        f"{verb} is not possible while the sandbox is {record.phase.value}",
        code=refusal.code,
        advice=refusal.advice,
        sandbox_id=record.sandbox_id,
        details={"phase": record.phase.value},
    )
