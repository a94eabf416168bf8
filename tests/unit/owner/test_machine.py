"""The order of things in one machine: step, commit, answer, perform."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from sandkeeper.core import events as ev
from sandkeeper.core.errors import (
    Aborted,
    DataLoss,
    FailedPrecondition,
    ResourceExhausted,
    SandkeeperError,
    Unavailable,
)
from sandkeeper.core.ids import DEFAULT_TENANT, RequestId, SnapshotId
from sandkeeper.core.record import Phase
from sandkeeper.core.spec import Keep, OnLost
from sandkeeper.ports import Ports
from sandkeeper.virtual import EPOCH
from tests.support.virtual_time import in_virtual_time
from tests.unit.core.samples import record, request
from tests.unit.owner.stage import Stage, set_stage


async def outcome_of(stage: Stage, event: ev.Request) -> str:
    try:
        answer = await stage.machine.ask(event)
    except SandkeeperError as error:
        return error.code
    return str(answer["phase"])


@in_virtual_time
async def test_a_command_is_performed_only_when_its_record_is_durable(ports: Ports) -> None:
    stage = await set_stage(ports)
    stage.begin()
    answer = await stage.machine.ask(ev.StartRequested(request=request()))
    assert answer["phase"] == "running"
    durable = stage.runner.durable[0]
    assert durable is not None
    assert durable.pending is not None
    assert (durable.phase, durable.pending.kind) == (Phase.STARTING, "launch_runtime")
    assert await stage.kinds() == ["start_requested", "runtime_started"]


@in_virtual_time
async def test_the_answer_is_durable_before_it_is_given(ports: Ports) -> None:
    stage = await set_stage(ports)
    stage.begin()
    answer = await stage.machine.ask(ev.StartRequested(request=request()))
    kept = await stage.journal.answer(request().request_id, tenant_id=DEFAULT_TENANT)
    assert kept is not None
    assert kept.document == answer


@in_virtual_time
async def test_a_request_whose_commit_is_refused_changes_nothing_and_is_answered(ports: Ports) -> None:
    stage = await set_stage(ports)
    stage.begin()
    stage.disk.is_full = True
    before = stage.machine.record
    with pytest.raises(ResourceExhausted) as refusal:
        await stage.machine.ask(ev.StartRequested(request=request()))
    assert refusal.value.code == "disk_full"
    assert stage.machine.record is before
    assert (stage.runner.story, stage.commits) == ([], [])
    stage.disk.is_full = False
    assert await outcome_of(stage, ev.StartRequested(request=request())) == "running"


@in_virtual_time
async def test_a_fact_is_retried_until_the_journal_takes_it(ports: Ports) -> None:
    stage = await set_stage(ports)
    stage.runner.hold("launch_runtime")
    stage.begin()
    asking = ports.spawn(stage.machine.ask(ev.StartRequested(request=request())), name="ask")
    await stage.rest()
    stage.disk.is_full = True
    stage.runner.release("launch_runtime")
    await stage.rest(60)
    assert stage.machine.record.phase is Phase.STARTING
    assert not asking.done()
    stage.disk.is_full = False
    assert (await asking)["phase"] == "running"


@in_virtual_time
async def test_a_journal_closed_for_good_ends_the_loop(ports: Ports) -> None:
    stage = await set_stage(ports)
    loop = stage.start()

    async def break_down(_: str) -> None:
        raise DataLoss("the disk is gone", code="journal_unwritable", admitted="unknown")

    stage.journal.before_commit = break_down
    asking = ports.spawn(stage.machine.ask(ev.StartRequested(request=request())), name="ask")
    with pytest.raises(DataLoss):
        await loop
    assert not asking.done(), "whether it was admitted is for the next incarnation to say"
    assert stage.runner.story == []


@in_virtual_time
async def test_a_journal_closed_for_good_ends_the_loop_during_recovery_too(ports: Ports) -> None:
    stage = await set_stage(ports, record(Phase.RUNNING))

    async def break_down(_: str) -> None:
        raise DataLoss("the disk is gone", code="journal_unwritable", admitted="unknown")

    stage.journal.before_commit = break_down
    with pytest.raises(DataLoss):
        await stage.start(is_recovered=True)


@in_virtual_time
async def test_deferred_requests_keep_their_order(ports: Ports) -> None:
    stage = await set_stage(ports)
    stage.runner.hold("launch_runtime")
    stage.begin()
    asked = (
        ev.StartRequested(request=request("a")),
        ev.PauseRequested(request=request("b")),
        ev.ResumeRequested(request=request("c")),
        ev.PauseRequested(request=request("d")),
    )
    answers = [ports.spawn(outcome_of(stage, event), name="ask") for event in asked]
    await stage.rest()
    assert await stage.kinds() == ["start_requested"]
    stage.runner.release("launch_runtime")
    assert await asyncio.gather(*answers) == ["running", "paused", "running", "paused"]


@in_virtual_time
async def test_an_unforeseen_error_of_the_runner_ends_the_loop(ports: Ports) -> None:
    stage = await set_stage(ports)
    stage.runner.replies["launch_runtime"] = ZeroDivisionError("a defect")
    loop = stage.start()
    stage.machine.tell(ev.StartRequested(request=request()))
    with pytest.raises(ZeroDivisionError):
        await loop


@in_virtual_time
async def test_unavailable_is_told_but_is_no_answer_to_keep(ports: Ports) -> None:
    stage = await set_stage(ports, record(Phase.RUNNING))
    stage.runner.replies["freeze_runtime"] = lambda command: ev.CommandFailed(
        command_id=command.command_id, category="Unavailable", code="engine_unavailable", message="away"
    )
    stage.begin()
    with pytest.raises(Unavailable):
        await stage.machine.ask(ev.PauseRequested(request=request("p")))
    assert await stage.journal.answer(RequestId("p"), tenant_id=DEFAULT_TENANT) is None
    del stage.runner.replies["freeze_runtime"]
    assert await outcome_of(stage, ev.PauseRequested(request=request("p"))) == "paused"


@in_virtual_time
async def test_a_superseded_command_has_ended_before_the_next_begins(ports: Ports) -> None:
    stage = await set_stage(ports)
    stage.runner.hold("launch_runtime")
    stage.runner.cancel_takes_s = 5.0
    stage.begin()
    starting = ports.spawn(outcome_of(stage, ev.StartRequested(request=request("s"))), name="start")
    await stage.rest()
    assert await outcome_of(stage, ev.DestroyRequested(request=request("d"))) == "destroyed"
    assert await starting == "superseded"
    assert stage.runner.story == [
        "begin launch_runtime",
        "cancelled launch_runtime",
        "begin remove_runtime",
        "end remove_runtime",
    ]


@in_virtual_time
async def test_a_command_superseded_while_it_waits_for_its_predecessor_never_begins(ports: Ports) -> None:
    stage = await set_stage(ports)
    stage.runner.hold("launch_runtime")
    stage.runner.cancel_takes_s = 5.0
    stage.begin()
    asked = (
        ev.StartRequested(request=request("a")),
        ev.StopRequested(request=request("b"), keep=Keep.NOTHING),
        ev.DestroyRequested(request=request("c")),
    )
    answers = []
    for event in asked:
        answers.append(ports.spawn(outcome_of(stage, event), name="ask"))
        await stage.rest(0.1)
    assert await asyncio.gather(*answers) == ["superseded", "superseded", "destroyed"]
    assert stage.runner.story == [
        "begin launch_runtime",
        "cancelled launch_runtime",
        "begin remove_runtime",
        "end remove_runtime",
    ]


@in_virtual_time
async def test_a_late_reply_of_a_superseded_command_is_stale(ports: Ports) -> None:
    stage = await set_stage(ports, record(Phase.RUNNING))
    stage.begin()
    stage.machine.tell(ev.RuntimeStarted(command_id=record(Phase.STARTING).pending.command_id))  # type: ignore[union-attr]
    await stage.rest()
    assert stage.commits == []


@in_virtual_time
async def test_a_lifetime_ends_the_sandbox_also_after_a_restart(ports: Ports) -> None:
    spec = record().spec.model_copy(update={"lifetime_s": 100.0})
    old = record(Phase.CREATED, created_at=EPOCH - timedelta(seconds=70)).model_copy(update={"spec": spec})
    stage = await set_stage(ports, old)
    loop = stage.start(is_recovered=True)
    await stage.rest(29)
    assert not loop.done()
    await stage.rest(2)
    assert loop.done()
    assert stage.machine.record.phase is Phase.DESTROYED
    assert (await stage.journal.events())[-1].details["reason"] == "lifetime"


@in_virtual_time
async def test_a_lifetime_ends_though_the_journal_was_full_at_its_end(ports: Ports) -> None:
    spec = record().spec.model_copy(update={"lifetime_s": 10.0})
    stage = await set_stage(ports, record(Phase.CREATED, created_at=EPOCH).model_copy(update={"spec": spec}))
    loop = stage.start()
    stage.disk.is_full = True
    await stage.rest(60)
    assert stage.commits == []
    stage.disk.is_full = False
    await loop
    assert stage.machine.record.phase is Phase.DESTROYED


@in_virtual_time
async def test_a_destroyed_sandbox_retires_after_all_who_waited_are_answered(ports: Ports) -> None:
    stage = await set_stage(ports, record(Phase.RUNNING))
    stage.runner.hold("remove_runtime")
    loop = stage.start()
    asked = [ev.DestroyRequested(request=request(name)) for name in ("a", "b")]
    answers = [ports.spawn(outcome_of(stage, event), name="destroy") for event in asked]
    await stage.rest()
    stage.runner.release("remove_runtime")
    assert await asyncio.gather(*answers) == ["destroyed", "destroyed"]
    await loop


@in_virtual_time
async def test_close_changes_nothing_and_tells_who_waits(ports: Ports) -> None:
    stage = await set_stage(ports)
    stage.runner.hold("launch_runtime")
    stage.begin()
    asking = ports.spawn(stage.machine.ask(ev.StartRequested(request=request())), name="ask")
    await stage.rest()
    await stage.machine.close()
    with pytest.raises(Unavailable) as refusal:
        await asking
    assert (refusal.value.code, refusal.value.admitted) == ("owner_closing", "unknown")
    assert (await stage.journal.record(stage.machine.record.sandbox_id)) == stage.machine.record
    assert stage.machine.record.phase is Phase.STARTING


@in_virtual_time
async def test_a_recovered_command_is_performed_and_its_request_can_be_joined(ports: Ports) -> None:
    stage = await set_stage(ports, record(Phase.STARTING))
    stage.runner.hold("launch_runtime")
    stage.recover()
    await stage.rest()
    joined = stage.machine.joined(request("pending"))
    assert joined is not None
    stage.runner.release("launch_runtime")
    assert (await joined)["phase"] == "running"


@in_virtual_time
async def test_the_engine_is_waited_for_before_anything_is_decided(ports: Ports) -> None:
    stage = await set_stage(ports, record(Phase.RUNNING))
    stage.runner.sights = [Unavailable("away", code="engine_unavailable")] * 3 + [None]
    stage.recover()
    await stage.rest(0.1)
    assert stage.machine.record.phase is Phase.RUNNING
    await stage.rest(30)
    assert stage.runner.looks > 3
    assert (await stage.kinds())[0] == "runtime_lost"


@in_virtual_time
async def test_a_pending_command_is_taken_up_though_the_first_look_failed(ports: Ports) -> None:
    stage = await set_stage(ports, record(Phase.STARTING))
    stage.runner.sights = [SandkeeperError("the engine stumbled", code="engine_error"), None]
    stage.recover()
    await stage.rest(10)
    assert stage.machine.record.phase is Phase.RUNNING


@in_virtual_time
async def test_an_interrupted_snapshot_ends_though_its_thaw_was_refused_once(ports: Ports) -> None:
    from sandkeeper.core.observation import RuntimeObservation, RuntimeState

    sandbox = record(Phase.SNAPSHOTTING)
    stage = await set_stage(ports, sandbox)
    assert sandbox.birth_id is not None
    stage.runner.sights = [RuntimeObservation(birth_id=sandbox.birth_id, state=RuntimeState.FROZEN, pid=1)]
    stage.runner.refused_corrections = [FailedPrecondition("not now", code="runtime_busy")]
    stage.recover()
    await stage.rest(10)
    assert stage.runner.story[:2] == ["correct thaw", "correct thaw"]
    assert (await stage.kinds())[0] == "snapshot_failed"


@in_virtual_time
async def test_a_lost_runtime_is_noticed_by_its_watch(ports: Ports) -> None:
    stage = await set_stage(ports)
    stage.begin()
    await stage.machine.ask(ev.StartRequested(request=request()))
    stage.runner.lost.put_nowait(ev.RuntimeLost(generation=1, reason="killed", message="gone"))
    await stage.rest()
    assert stage.machine.record.generation == 2
    assert stage.machine.record.phase is Phase.RUNNING
    stage.runner.lost.put_nowait(ev.RuntimeLost(generation=1, reason="killed", message="said late"))
    await stage.rest()
    assert stage.machine.record.generation == 2


@in_virtual_time
async def test_a_request_cut_by_a_loss_is_told_so(ports: Ports) -> None:
    stage = await set_stage(ports)
    stage.begin()
    await stage.machine.ask(ev.StartRequested(request=request()))
    stage.runner.hold("commit_snapshot")
    event = ev.SnapshotRequested(request=request("sn", "take_snapshot"), snapshot_id=SnapshotId("sn9"))
    asking = ports.spawn(stage.machine.ask(event), name="snapshot")
    await stage.rest()
    stage.runner.lost.put_nowait(ev.RuntimeLost(generation=1, reason="killed", message="gone"))
    with pytest.raises(Aborted) as cut:
        await asking
    assert cut.value.code == "runtime_lost"
    kept = await stage.journal.answer(RequestId("sn"), tenant_id=DEFAULT_TENANT)
    assert kept is not None
    assert kept.is_error


@in_virtual_time
async def test_what_lost_its_command_is_performed_no_further(ports: Ports) -> None:
    stage = await set_stage(ports, record(Phase.CREATED, on_lost=OnLost.ASK))
    stage.begin()
    await stage.machine.ask(ev.StartRequested(request=request()))
    stage.runner.hold("commit_snapshot")
    event = ev.SnapshotRequested(request=request("sn", "take_snapshot"), snapshot_id=SnapshotId("sn9"))
    asking = ports.spawn(stage.machine.ask(event), name="snapshot")
    await stage.rest()
    stage.runner.lost.put_nowait(ev.RuntimeLost(generation=1, reason="killed", message="gone"))
    with pytest.raises(Aborted):
        await asking
    await stage.rest()
    assert stage.machine.record.pending is None
    assert stage.runner.story[-1] == "cancelled commit_snapshot"
