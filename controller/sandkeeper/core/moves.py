"""What a row of the lifecycle table is made of: the stamp, the move, and the steps rows share.

Pure. Rows are in `rows_of_requests` and `rows_of_facts`; only `lifecycle.step` calls them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sandkeeper.core import commands as cmd
from sandkeeper.core.errors import Aborted, SandkeeperError
from sandkeeper.core.ids import BirthId, CommandId, SnapshotId, command_id, new_birth_id
from sandkeeper.core.record import Phase, RequestRef, SandboxRecord, SnapshotRecord

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


def begin_launch(
    record: SandboxRecord, stamp: Stamp, *, phase: Phase, request: RequestRef | None, delay_s: float = 0.0
) -> Move:
    """Begin a launch under a fresh birth id, as the next generation."""
    birth_id = new_birth_id(stamp.token)
    command = cmd.LaunchRuntime(
        command_id=next_command_id(record),
        birth_id=birth_id,
        generation=record.generation + 1,
        boot=record.boot,
        size=record.spec.size,
        delay_s=delay_s,
    )
    return with_command(
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


def begin_commit(
    record: SandboxRecord,
    *,
    snapshot_id: SnapshotId,
    name: str | None,
    keep_s: float | None,
    return_to: Phase,
    request: RequestRef | None,
) -> Move:
    """Begin a snapshot."""
    command = cmd.CommitSnapshot(
        **target(record),
        snapshot_id=snapshot_id,
        name=name,
        keep_s=keep_s,
        was_frozen=record.phase is not Phase.RUNNING,
    )
    return with_command(record, command, request=request, phase=Phase.SNAPSHOTTING, return_to=return_to)


def begin_removal(
    record: SandboxRecord,
    birth_id: BirthId,
    *,
    request: RequestRef | None,
    settled: tuple[Settled, ...] = (),
    **changes: Any,
) -> Move:
    """Begin the removal of a runtime whose birth id is given up."""
    base = give_up_image(record) if isinstance(record.pending, cmd.CommitSnapshot) else record
    base = given_up(base, birth_id)
    command = cmd.RemoveRuntime(
        command_id=next_command_id(base), birth_id=birth_id, generation=base.generation
    )
    return with_command(base, command, request=request, settled=settled, return_to=None, **changes)


def with_command(
    record: SandboxRecord,
    command: cmd.Command,
    *,
    request: RequestRef | None,
    settled: tuple[Settled, ...] = (),
    **changes: Any,
) -> Move:
    """Set the pending command and the request it answers."""
    moved = changed(
        record,
        pending=command,
        pending_request=request,
        command_count=record.command_count + 1,
        **changes,
    )
    return Move(moved, command, settled=settled)


def done(record: SandboxRecord, **changes: Any) -> Move:
    """Clear the pending command and answer its request."""
    moved = changed(record, pending=None, pending_request=None, **changes)
    return Move(moved, settled=answered(record.pending_request))


def failed_request(record: SandboxRecord, error: SandkeeperError, **changes: Any) -> Move:
    """Clear the pending command and answer its request with an error."""
    moved = changed(record, pending=None, pending_request=None, **changes)
    return Move(moved, settled=answered(record.pending_request, error))


def answered(request: RequestRef | None, error: SandkeeperError | None = None) -> tuple[Settled, ...]:
    """Return the answer of a request, if there was one."""
    if request is None:
        return ()
    if error is not None:
        error.request_id = request.request_id
    return (Settled(request, error),)


def superseded(record: SandboxRecord, *, by: str) -> tuple[Settled, ...]:
    """Return the answer of a request whose command is given up for another request."""
    if record.pending is None:
        return ()
    return answered(
        record.pending_request,
        Aborted(
            f"{record.pending.kind} was given up because of a {by} request",
            code="superseded",
            admitted="yes",
            sandbox_id=record.sandbox_id,
        ),
    )


def interrupted(record: SandboxRecord) -> tuple[Settled, ...]:
    """Return the answer of a request whose command was cut by the loss of the runtime."""
    if record.pending is None:
        return ()
    return answered(
        record.pending_request,
        Aborted(
            f"the runtime was lost during {record.pending.kind}",
            code="runtime_lost",
            advice="the sandbox is being recovered as its on_lost setting says; ask again afterwards",
            admitted="yes",
            sandbox_id=record.sandbox_id,
        ),
    )


def give_up_image(record: SandboxRecord) -> SandboxRecord:
    """Give up the pending image name of a snapshot's commit."""
    if not isinstance(record.pending, cmd.CommitSnapshot):
        return record
    return given_up(record, f"pending-{record.pending.command_id}")


def given_up(record: SandboxRecord, name: str) -> SandboxRecord:
    """Note an engine name as given up."""
    kept = tuple(known for known in record.given_up if known != name)
    return changed(record, given_up=(*kept, name)[-GIVEN_UP_KEPT:])


def claimed(record: SandboxRecord) -> BirthId:
    """Return the claimed birth id."""
    if record.birth_id is None:
        raise AssertionError(f"{record.sandbox_id} is {record.phase} without a runtime")
    return record.birth_id


def target(record: SandboxRecord) -> dict[str, Any]:
    """Return the fields every command on the present runtime has."""
    return {
        "command_id": next_command_id(record),
        "birth_id": claimed(record),
        "generation": record.generation,
    }


def next_command_id(record: SandboxRecord) -> CommandId:
    """Return the id of the record's next command."""
    return command_id(record.sandbox_id, record.command_count + 1)


def changed(record: SandboxRecord, **changes: Any) -> SandboxRecord:
    """Return the record with changes."""
    return record.model_copy(update=changes)
