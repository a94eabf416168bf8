"""Recovery: record plus observation gives ordinary events, for every phase and every state of the container."""

from __future__ import annotations

from typing import Any

import pytest

from sandkeeper.core import commands as cmd
from sandkeeper.core import events as ev
from sandkeeper.core.lifecycle import step
from sandkeeper.core.moves import Move
from sandkeeper.core.observation import RuntimeObservation, RuntimeState
from sandkeeper.core.record import Phase
from sandkeeper.core.recovery import NOTHING, Correction, lost_event, recover
from sandkeeper.core.sizes import NAMED_SIZES
from tests.unit.core.samples import BIRTH, COMMAND, STAMP, record


def seen(state: RuntimeState, **facts: Any) -> RuntimeObservation:
    return RuntimeObservation(birth_id=BIRTH, state=state, **facts)


EVERYTHING = [None, *(seen(state, exit_code=1) for state in RuntimeState)]


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize(
    "observation", EVERYTHING, ids=lambda value: (value and value.state.value) or "absent"
)
def test_what_recovery_feeds_is_never_stale(phase: Phase, observation: RuntimeObservation | None) -> None:
    """An event that the table drops would leave the sandbox waiting for ever."""
    before = record(phase)
    found = recover(before, observation)
    for happened in found.events:
        assert isinstance(step(before, happened, STAMP), Move)
    if before.pending is not None:
        assert found.events or found.perform == before.pending


def test_agreement_is_nothing() -> None:
    assert recover(record(), seen(RuntimeState.RUNNING, is_answering=True)) == NOTHING
    assert recover(record(Phase.PAUSED), seen(RuntimeState.FROZEN)) == NOTHING
    assert recover(record(Phase.STOPPED), None) == NOTHING


@pytest.mark.parametrize("observation", [None, seen(RuntimeState.EXITED, exit_code=137)])
@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.PAUSED])
def test_a_container_that_is_gone_is_lost(phase: Phase, observation: RuntimeObservation | None) -> None:
    (happened,) = recover(record(phase), observation).events
    assert isinstance(happened, ev.RuntimeLost)
    assert happened.generation == 1


def test_a_box_that_does_not_answer_is_lost() -> None:
    (happened,) = recover(record(), seen(RuntimeState.RUNNING, is_answering=False)).events
    assert isinstance(happened, ev.RuntimeLost)
    assert happened.reason == "box_unanswering"


@pytest.mark.parametrize(
    ("phase", "state", "correction"),
    [
        (Phase.RUNNING, RuntimeState.FROZEN, Correction.THAW),
        (Phase.PAUSED, RuntimeState.RUNNING, Correction.FREEZE),
        (Phase.STOPPED, RuntimeState.RUNNING, Correction.STOP),
        (Phase.SNAPSHOTTING, RuntimeState.FROZEN, Correction.THAW),
    ],
)
def test_a_live_container_is_brought_to_what_the_record_says(
    phase: Phase, state: RuntimeState, correction: Correction
) -> None:
    assert recover(record(phase), seen(state)).correction is correction


def test_an_interrupted_snapshot_did_not_happen() -> None:
    found = recover(record(Phase.SNAPSHOTTING), seen(RuntimeState.FROZEN))
    (happened,) = found.events
    assert isinstance(happened, ev.SnapshotFailed)
    assert happened.code == "snapshot_interrupted"
    assert found.perform is None, "a commit counts only by its record, so it is never performed again"


def test_an_interrupted_snapshot_of_a_paused_sandbox_stays_paused() -> None:
    paused = cmd.CommitSnapshot(
        command_id=COMMAND,
        birth_id=BIRTH,
        generation=1,
        snapshot_id="sn1",  # type: ignore[arg-type]
        was_frozen=True,
    )
    found = recover(record(Phase.SNAPSHOTTING, pending=paused), seen(RuntimeState.FROZEN))
    assert found.correction is None


@pytest.mark.parametrize("observation", [None, seen(RuntimeState.CREATED), seen(RuntimeState.RUNNING)])
def test_a_launch_is_performed_again(observation: RuntimeObservation | None) -> None:
    before = record(Phase.STARTING)
    assert recover(before, observation).perform == before.pending


def test_a_launch_whose_process_ended_has_failed() -> None:
    (happened,) = recover(record(Phase.STARTING), seen(RuntimeState.EXITED, exit_code=70)).events
    assert isinstance(happened, ev.LaunchFailed)
    assert happened.exit_code == 70


@pytest.mark.parametrize("phase", [Phase.STOPPING, Phase.REBUILDING, Phase.DESTROYING])
def test_a_removal_is_performed_again_whatever_is_there(phase: Phase) -> None:
    for observation in EVERYTHING:
        assert recover(record(phase), observation).perform == record(phase).pending


@pytest.mark.parametrize(
    "pending",
    [
        cmd.FreezeRuntime(command_id=COMMAND, birth_id=BIRTH, generation=1),
        cmd.UpdateRuntime(command_id=COMMAND, birth_id=BIRTH, generation=1, size=NAMED_SIZES["lite"]),
    ],
)
def test_a_verb_on_a_dead_runtime_is_a_loss(pending: cmd.Command) -> None:
    before = record(pending=pending)
    assert isinstance(recover(before, None).events[0], ev.RuntimeLost)
    assert recover(before, seen(RuntimeState.RUNNING)).perform == pending


@pytest.mark.parametrize(
    ("observation", "reason"),
    [
        (seen(RuntimeState.EXITED, exit_code=137, oom_killed=True), "oom_killed"),
        (seen(RuntimeState.EXITED, exit_code=137), "killed"),
        (seen(RuntimeState.EXITED, exit_code=3), "exited"),
    ],
)
def test_the_reason_of_a_loss(observation: RuntimeObservation, reason: str) -> None:
    assert lost_event(1, observation).reason == reason
