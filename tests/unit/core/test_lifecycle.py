"""The lifecycle table: every pair of phase and event is walked, and every row is exercised."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from sandkeeper.core import commands as cmd
from sandkeeper.core import events as ev
from sandkeeper.core import rows_of_facts
from sandkeeper.core.lifecycle import TABLE, Quiet, Refusal, Unmoved, cell, step
from sandkeeper.core.moves import Move, Stamp
from sandkeeper.core.record import Phase
from sandkeeper.core.sizes import NAMED_SIZES
from sandkeeper.core.spec import Keep, OnLost
from tests.unit.core.samples import (
    AT,
    BASE,
    BIRTH,
    COMMAND,
    SNAPSHOT,
    STAMP,
    all_events,
    event,
    pending_of,
    record,
    request,
)

PAIRS = [(phase, kind) for phase in Phase for kind in ev.EVENTS]


def moved(before: Any, happened: Any, stamp: Stamp = STAMP) -> Move:
    outcome = step(before, happened, stamp)
    assert isinstance(outcome, Move), outcome
    return outcome


@pytest.mark.parametrize(("phase", "kind"), PAIRS, ids=lambda value: getattr(value, "__name__", value))
def test_every_pair_has_an_answer(phase: Phase, kind: type[Any]) -> None:
    found = cell(phase, kind)
    assert callable(found) or isinstance(found, Quiet | Refusal)
    if kind in ev.REQUESTS:
        assert phase in TABLE[kind], "a request must be answered in every phase"
        assert found is not Quiet.STALE


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("happened", all_events(), ids=lambda happened: happened.kind)
def test_no_pair_raises_and_a_move_is_whole(phase: Phase, happened: Any) -> None:
    before = record(phase)
    outcome = step(before, happened, STAMP)
    if isinstance(outcome, Unmoved):
        assert (outcome.quiet is None) == (outcome.error is not None)
        return
    after = outcome.record
    assert after.pending == (outcome.command or after.pending)
    assert outcome.command is None or after.command_count == before.command_count + 1
    if after.phase is Phase.DESTROYED:
        assert after.birth_id is None
    assert outcome == step(before, happened, STAMP), "a step is a function of its inputs"


def test_every_row_is_exercised() -> None:
    """A row that no test reaches would be a row nobody has thought about."""
    wanted = {row for cells in TABLE.values() for row in cells.values() if callable(row)}
    reached: set[Callable[..., Any]] = set()
    for phase in Phase:
        for happened in all_events():
            found = cell(phase, type(happened))
            before = record(phase, pending=_pending_for(phase, happened), pending_request=request("p"))
            if callable(found):
                reached.add(found)
                found(before, happened, STAMP)
    assert wanted == reached


def _pending_for(phase: Phase, happened: Any) -> cmd.Command | None:
    if isinstance(happened, ev.RuntimeResized):
        return cmd.UpdateRuntime(command_id=COMMAND, birth_id=BIRTH, generation=1, size=NAMED_SIZES["lite"])
    return pending_of(phase)


@pytest.mark.parametrize("phase", list(Phase))
def test_stop_and_destroy_are_accepted_in_every_phase(phase: Phase) -> None:
    for kind in (ev.StopRequested, ev.DestroyRequested):
        found = cell(phase, kind)
        is_gone = phase in (Phase.DESTROYING, Phase.DESTROYED) and kind is ev.StopRequested
        assert isinstance(found, Refusal) == is_gone


def test_start_claims_a_birth_id_and_a_generation() -> None:
    move = moved(record(Phase.CREATED), event(ev.StartRequested))
    assert move.record.phase is Phase.STARTING
    assert move.record.generation == 1
    assert move.record.birth_id == "sk-" + "f" * 16
    assert isinstance(move.command, cmd.LaunchRuntime)
    assert move.command.boot == BASE


def test_started_answers_the_create() -> None:
    move = moved(record(Phase.STARTING), event(ev.RuntimeStarted))
    assert move.record.phase is Phase.RUNNING
    assert move.record.pending is None
    assert [settled.request.request_id for settled in move.settled] == ["pending"]
    assert move.settled[0].error is None


def test_a_reply_of_another_command_is_stale() -> None:
    other = ev.RuntimeStarted(command_id=COMMAND + "x")  # type: ignore[arg-type]
    outcome = step(record(Phase.STARTING), other, STAMP)
    assert isinstance(outcome, Unmoved)
    assert outcome.quiet is Quiet.STALE


def test_a_loss_of_another_generation_is_stale() -> None:
    outcome = step(record(), ev.RuntimeLost(generation=7, reason="killed"), STAMP)
    assert isinstance(outcome, Unmoved)
    assert outcome.quiet is Quiet.STALE


def test_requests_wait_for_the_pending_command_but_destroy_does_not() -> None:
    busy = record(Phase.RUNNING, pending=cmd.FreezeRuntime(command_id=COMMAND, birth_id=BIRTH, generation=1))
    outcome = step(busy, event(ev.SnapshotRequested), STAMP)
    assert isinstance(outcome, Unmoved)
    assert outcome.quiet is Quiet.DEFERRED
    assert moved(busy, event(ev.DestroyRequested)).record.phase is Phase.DESTROYING


def test_destroy_during_start_gives_the_launch_up_by_name() -> None:
    move = moved(record(Phase.STARTING), event(ev.DestroyRequested))
    assert move.record.phase is Phase.DESTROYING
    assert BIRTH in move.record.given_up
    assert isinstance(move.command, cmd.RemoveRuntime)
    assert move.settled[0].request.request_id == "pending"
    assert move.settled[0].error is not None
    assert move.settled[0].error.code == "superseded"
    gone = moved(move.record, ev.RuntimeRemoved(command_id=move.command.command_id))
    assert gone.record.phase is Phase.DESTROYED
    assert gone.record.birth_id is None


def test_destroy_during_a_snapshot_gives_its_image_up() -> None:
    move = moved(record(Phase.SNAPSHOTTING), event(ev.DestroyRequested))
    assert f"pending-{COMMAND}" in move.record.given_up


def test_loss_rebuilds_from_the_last_snapshot_as_the_next_generation() -> None:
    lost = moved(record(boot=SNAPSHOT), ev.RuntimeLost(generation=1, reason="killed", exit_code=137))
    assert lost.record.phase is Phase.REBUILDING
    assert lost.record.evidence is not None
    assert lost.record.evidence.exit_code == 137
    assert isinstance(lost.command, cmd.RemoveRuntime)
    again = moved(lost.record, ev.RuntimeRemoved(command_id=lost.command.command_id))
    assert isinstance(again.command, cmd.LaunchRuntime)
    assert again.command.boot == SNAPSHOT
    assert again.command.delay_s == 0
    assert again.record.generation == 2
    assert again.record.birth_id != BIRTH


def test_rebuilds_in_a_row_back_off_and_end() -> None:
    at = record(rebuild_count=0)
    delays: list[float] = []
    for _ in range(rows_of_facts.REBUILD_BUDGET):
        lost = moved(at, ev.RuntimeLost(generation=at.generation, reason="exited"))
        again = moved(lost.record, ev.RuntimeRemoved(command_id=lost.record.pending.command_id))
        assert isinstance(again.command, cmd.LaunchRuntime)
        delays.append(again.command.delay_s)
        at = moved(again.record, ev.RuntimeStarted(command_id=again.command.command_id)).record
    assert delays == [0, 1, 2, 4, 8]
    last = moved(at, ev.RuntimeLost(generation=at.generation, reason="exited"))
    assert moved(last.record, ev.RuntimeRemoved(command_id=last.record.pending.command_id)).record.phase is (
        Phase.FAILED
    )


def test_a_long_life_renews_the_rebuild_budget() -> None:
    old = record(rebuild_count=5, running_since_at=AT - timedelta(seconds=61))
    lost = moved(old, ev.RuntimeLost(generation=1, reason="exited"))
    assert lost.record.rebuild_count == 1


@pytest.mark.parametrize(
    ("on_lost", "is_there", "phase", "is_kept"),
    [
        (OnLost.STOP, True, Phase.STOPPED, True),
        (OnLost.STOP, False, Phase.FAILED, False),
        (OnLost.ASK, True, Phase.FAILED, False),
    ],
)
def test_on_lost_without_rebuild(on_lost: OnLost, is_there: bool, phase: Phase, is_kept: bool) -> None:
    lost = ev.RuntimeLost(generation=1, reason="killed", is_container_there=is_there)
    move = moved(record(on_lost=on_lost), lost)
    assert (move.record.phase, move.record.is_kept) == (phase, is_kept)
    assert move.command is None


def test_loss_during_a_snapshot_means_it_did_not_happen() -> None:
    move = moved(record(Phase.SNAPSHOTTING, boot=SNAPSHOT), ev.RuntimeLost(generation=1, reason="killed"))
    assert move.snapshot is None
    assert move.record.boot == SNAPSHOT
    assert move.settled[0].error is not None
    assert move.settled[0].error.code == "runtime_lost"
    assert f"pending-{COMMAND}" in move.record.given_up


def test_a_committed_snapshot_is_where_the_next_launch_starts() -> None:
    move = moved(record(Phase.SNAPSHOTTING, runtime_boot=SNAPSHOT), event(ev.SnapshotCommitted))
    assert move.record.phase is Phase.RUNNING
    assert move.snapshot is not None
    assert move.record.boot == move.snapshot.boot
    assert (move.snapshot.parent, move.snapshot.boot.depth) == ("sn0", 2)
    assert move.snapshot.boot.base_digest == "sha256:base"


def test_a_failed_snapshot_changes_nothing_but_is_told() -> None:
    before = record(Phase.SNAPSHOTTING, boot=SNAPSHOT, return_to=Phase.PAUSED)
    move = moved(before, event(ev.SnapshotFailed))
    assert (move.record.phase, move.record.boot) == (Phase.PAUSED, SNAPSHOT)
    assert move.settled[0].error is not None


def test_stop_keeping_files_comes_back_with_the_same_container() -> None:
    stopping = moved(record(), ev.StopRequested(keep=Keep.FILES))
    assert isinstance(stopping.command, cmd.StopRuntime)
    stopped = moved(stopping.record, ev.RuntimeStopped(command_id=stopping.command.command_id)).record
    assert (stopped.phase, stopped.is_kept, stopped.birth_id) == (Phase.STOPPED, True, BIRTH)
    woken = moved(stopped, ev.StartRequested())
    assert isinstance(woken.command, cmd.StartKept)
    assert (woken.record.birth_id, woken.record.generation) == (BIRTH, 2)


def test_stop_keeping_files_of_a_vanished_container_is_state_lost() -> None:
    stopping = moved(record(), ev.StopRequested(keep=Keep.FILES, request=request()))
    gone = moved(stopping.record, ev.RuntimeRemoved(command_id=stopping.command.command_id))
    assert gone.record.phase is Phase.STOPPED
    assert not gone.record.is_kept
    assert gone.settled[0].error is not None
    assert gone.settled[0].error.code == "state_lost"


def test_stop_keeping_a_snapshot_removes_only_after_the_snapshot() -> None:
    stopping = moved(record(), ev.StopRequested(keep=Keep.SNAPSHOT, request=request()))
    assert isinstance(stopping.command, cmd.CommitSnapshot)
    committed = event(ev.SnapshotCommitted).model_copy(update={"command_id": stopping.command.command_id})
    removing = moved(stopping.record, committed)
    assert isinstance(removing.command, cmd.RemoveRuntime)
    assert removing.settled == ()
    stopped = moved(removing.record, ev.RuntimeRemoved(command_id=removing.command.command_id))
    assert stopped.record.phase is Phase.STOPPED
    assert stopped.record.boot.snapshot_id is not None
    assert stopped.settled[0].error is None


def test_stop_whose_snapshot_fails_leaves_it_running() -> None:
    stopping = moved(record(), ev.StopRequested(keep=Keep.SNAPSHOT, request=request()))
    failed = event(ev.SnapshotFailed).model_copy(update={"command_id": stopping.command.command_id})
    move = moved(stopping.record, failed)
    assert move.record.phase is Phase.RUNNING
    assert move.settled[0].error is not None


def test_a_failed_start_is_removed_before_it_is_answered() -> None:
    failed = moved(record(Phase.STARTING), event(ev.LaunchFailed))
    assert failed.settled == ()
    assert isinstance(failed.command, cmd.RemoveRuntime)
    answered = moved(failed.record, ev.RuntimeRemoved(command_id=failed.command.command_id))
    assert answered.record.phase is Phase.FAILED
    assert answered.settled[0].error is not None
    assert answered.settled[0].error.code == "some_reason"


def test_a_start_that_failed_for_want_of_an_engine_is_answered_at_once() -> None:
    gone = ev.LaunchFailed(command_id=COMMAND, reason="engine_unavailable", message="no engine")
    failed = moved(record(Phase.STARTING), gone)
    assert failed.settled[0].error is not None
    assert failed.settled[0].error.code == "engine_unavailable"


def test_a_failed_wake_keeps_the_container() -> None:
    kept = record(Phase.STOPPED, birth_id=BIRTH, is_kept=True, generation=1, command_count=0)
    starting = moved(kept, ev.StartRequested(request=request()))
    failed = ev.LaunchFailed(command_id=starting.command.command_id, reason="start_timeout", message="slow")
    back = moved(starting.record, failed)
    assert (back.record.phase, back.record.is_kept, back.record.birth_id) == (Phase.STOPPED, True, BIRTH)


def test_resize_of_a_stopped_sandbox_is_for_the_next_launch() -> None:
    move = moved(record(Phase.STOPPED), event(ev.ResizeRequested))
    assert move.command is None
    assert move.record.spec.size == NAMED_SIZES["lite"]


def test_pause_and_resume_come_and_go() -> None:
    pausing = moved(record(), event(ev.PauseRequested))
    paused = moved(pausing.record, ev.RuntimeFrozen(command_id=pausing.command.command_id)).record
    assert paused.phase is Phase.PAUSED
    resuming = moved(paused, event(ev.ResumeRequested))
    running = moved(resuming.record, ev.RuntimeThawed(command_id=resuming.command.command_id)).record
    assert running.phase is Phase.RUNNING
