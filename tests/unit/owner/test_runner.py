"""Commands on a fake engine: each step failing, and what is left afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from sandkeeper.core import commands as cmd
from sandkeeper.core import events as ev
from sandkeeper.core.errors import FailedPrecondition, Internal, NotFound, SandkeeperError, Unavailable
from sandkeeper.core.ids import BirthId
from sandkeeper.core.observation import RuntimeState
from sandkeeper.core.record import Phase, SandboxRecord
from sandkeeper.core.recovery import Correction
from sandkeeper.core.sizes import NAMED_SIZES
from sandkeeper.ports import Ports
from tests.support.virtual_time import in_virtual_time
from tests.unit.core.samples import BIRTH, COMMAND, SNAPSHOT, record
from tests.unit.owner.house import House, open_house

TARGET: dict[str, Any] = {"command_id": COMMAND, "birth_id": BIRTH, "generation": 1}
SIZE = NAMED_SIZES["basic"]
LAUNCH = cmd.LaunchRuntime(**TARGET, boot=record().boot, size=SIZE)
KEPT = cmd.StartKept(**(TARGET | {"generation": 2}), size=NAMED_SIZES["lite"])
STARTING = record(Phase.STARTING)
RUNNING = record(Phase.RUNNING)
RESTARTING = record(Phase.STARTING, pending=KEPT, generation=2, is_kept=True)
AWAY = Unavailable("the engine is away", code="engine_unavailable", admitted="unknown")


async def launched(house: House) -> House:
    assert isinstance(await house.runner.perform(STARTING, LAUNCH), ev.RuntimeStarted)
    house.engine.calls.clear()
    return house


def state(house: House) -> RuntimeState | None:
    runtime = house.world.runtimes.get(BIRTH)
    return runtime.state if runtime else None


@in_virtual_time
async def test_a_launch_makes_a_working_box(ports: Ports) -> None:
    house = await open_house(ports)
    await launched(house)
    assert state(house) is RuntimeState.RUNNING
    assert house.yard.boxes[BIRTH].generation == 1


@in_virtual_time
async def test_a_repeated_launch_goes_on_with_what_is_there(ports: Ports) -> None:
    house = await launched(await open_house(ports))
    assert isinstance(await house.runner.perform(STARTING, LAUNCH), ev.RuntimeStarted)
    assert len(house.world.runtimes) == 1
    assert "start" not in house.sent()


@in_virtual_time
@pytest.mark.parametrize("verb", ["create", "start", "inspect"])
async def test_a_launch_that_fails_at_a_step_names_it_and_removes_nothing(ports: Ports, verb: str) -> None:
    house = await open_house(ports)
    house.engine.fail_next(verb, Internal("it broke", code="engine_error"), after_effect=True)
    reply = await house.runner.perform(STARTING, LAUNCH)
    assert isinstance(reply, ev.LaunchFailed)
    assert (reply.reason, reply.is_final) == ("engine_error", False)
    assert reply.message.startswith("launch_runtime: ")
    assert state(house) is not None, "the command that follows removes it"


@in_virtual_time
async def test_a_launch_of_a_missing_image_is_final(ports: Ports) -> None:
    house = await open_house(ports)
    house.world.images.clear()
    reply = await house.runner.perform(STARTING, LAUNCH)
    assert isinstance(reply, ev.LaunchFailed)
    assert (reply.reason, reply.is_final) == ("image_missing", True)


@in_virtual_time
async def test_a_box_that_dies_while_it_starts_leaves_its_last_words(ports: Ports) -> None:
    house = await open_house(ports)
    dying = []

    def die(runtime: Any) -> None:
        runtime.log = "no such file"
        dying.append(ports.spawn(_die(house, runtime.birth_id), name="die"))

    house.world.boot = die
    reply = await house.runner.perform(STARTING, LAUNCH)
    assert isinstance(reply, ev.LaunchFailed)
    assert (reply.reason, reply.exit_code, reply.output_tail) == ("launch_died", 3, "no such file")


async def _die(house: House, birth_id: BirthId) -> None:
    await house.ports.sleep(0.2)
    house.world.kill_container(birth_id, 3)


@in_virtual_time
async def test_a_box_that_never_gets_ready_is_given_up_in_its_time(ports: Ports) -> None:
    house = await open_house(ports)
    house.world.boot = None
    short = STARTING.model_copy(update={"spec": STARTING.spec.model_copy(update={"start_timeout_s": 5.0})})
    began_s = ports.clock.monotonic_s()
    reply = await house.runner.perform(short, LAUNCH)
    assert isinstance(reply, ev.LaunchFailed)
    assert reply.reason == "start_timeout"
    assert ports.clock.monotonic_s() - began_s == pytest.approx(5, abs=0.1)


@in_virtual_time
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(28, "No space left on device"), "disk_full"),
        (PermissionError(13, "Permission denied"), "box_folder_failed"),
    ],
)
async def test_folders_that_cannot_be_made_fail_the_launch_not_the_owner(
    ports: Ports, error: OSError, code: str
) -> None:
    house = await open_house(ports)

    def refuse(birth_id: BirthId, *, is_fresh: bool) -> None:
        raise error

    house.boxes.prepare = refuse  # type: ignore[method-assign]
    reply = await house.runner.perform(STARTING, LAUNCH)
    assert isinstance(reply, ev.LaunchFailed)
    assert reply.reason == code
    assert house.sent() == []


@in_virtual_time
async def test_an_engine_that_goes_away_in_the_middle_of_a_launch(ports: Ports) -> None:
    house = await open_house(ports)
    house.engine.latency_s["start"] = 2.0
    launching = ports.spawn(house.runner.perform(STARTING, LAUNCH), name="launch")
    await ports.sleep(1)
    house.world.stop_engine()
    reply = await launching
    assert isinstance(reply, ev.LaunchFailed)
    assert (reply.reason, reply.is_final) == ("engine_unavailable", False)
    assert "no evidence" in reply.message


@in_virtual_time
async def test_back_off_comes_before_anything_else(ports: Ports) -> None:
    house = await open_house(ports)
    delayed = LAUNCH.model_copy(update={"delay_s": 10.0})
    launching = ports.spawn(house.runner.perform(STARTING, delayed), name="launch")
    await ports.sleep(9)
    assert house.sent() == []
    assert isinstance(await launching, ev.RuntimeStarted)


# ---------------------------------------------------------------- a kept container


async def kept(ports: Ports) -> House:
    house = await launched(await open_house(ports))
    house.world.runtimes[BIRTH].files["/work"] = b"mine"
    reply = await house.runner.perform(RUNNING, cmd.StopRuntime(**TARGET))
    assert isinstance(reply, ev.RuntimeStopped)
    house.engine.calls.clear()
    return house


@in_virtual_time
async def test_a_kept_container_starts_with_its_files_and_the_new_size(ports: Ports) -> None:
    house = await kept(ports)
    assert isinstance(await house.runner.perform(RESTARTING, KEPT), ev.RuntimeStarted)
    runtime = house.world.runtimes[BIRTH]
    assert (runtime.files["/work"], runtime.size.name) == (b"mine", "lite")
    assert house.yard.boxes[BIRTH].generation == 2


@in_virtual_time
@pytest.mark.parametrize("verb", ["update", "start"])
async def test_a_kept_container_that_does_not_start_is_stopped_again(ports: Ports, verb: str) -> None:
    house = await kept(ports)
    house.engine.fail_next(verb, Internal("it broke", code="engine_error"), after_effect=True)
    reply = await house.runner.perform(RESTARTING, KEPT)
    assert isinstance(reply, ev.LaunchFailed)
    assert not reply.is_final
    assert state(house) is RuntimeState.EXITED
    assert house.world.runtimes[BIRTH].files["/work"] == b"mine"


@in_virtual_time
async def test_a_kept_container_that_is_gone_is_state_lost(ports: Ports) -> None:
    house = await kept(ports)
    del house.world.runtimes[BIRTH]
    known = RESTARTING.model_copy(update={"boot": SNAPSHOT})
    reply = await house.runner.perform(known, KEPT)
    assert isinstance(reply, ev.LaunchFailed)
    assert (reply.reason, reply.is_final) == ("state_lost", True)
    assert "sn0" in reply.message


@in_virtual_time
async def test_an_engine_that_stays_away_leaves_the_kept_container_to_the_next_check(ports: Ports) -> None:
    house = await kept(ports)
    house.world.stop_engine()
    reply = await house.runner.perform(RESTARTING, KEPT)
    assert isinstance(reply, ev.LaunchFailed)
    assert reply.reason == "engine_unavailable"


# ---------------------------------------------------------------- freeze, thaw, update, stop, remove


@in_virtual_time
async def test_a_pause_drains_the_box_before_it_freezes(ports: Ports) -> None:
    house = await launched(await open_house(ports))
    reply = await house.runner.perform(RUNNING, cmd.FreezeRuntime(**TARGET))
    assert isinstance(reply, ev.RuntimeFrozen)
    assert (state(house), house.yard.boxes[BIRTH].is_draining) == (RuntimeState.FROZEN, True)
    reply = await house.runner.perform(record(Phase.PAUSED), cmd.ThawRuntime(**TARGET))
    assert isinstance(reply, ev.RuntimeThawed)
    assert (state(house), house.yard.boxes[BIRTH].is_draining) == (RuntimeState.RUNNING, False)


@in_virtual_time
async def test_a_pause_that_fails_leaves_a_box_that_works(ports: Ports) -> None:
    house = await launched(await open_house(ports))
    house.engine.fail_next("freeze", FailedPrecondition("no", code="runtime_not_running"))
    reply = await house.runner.perform(RUNNING, cmd.FreezeRuntime(**TARGET))
    assert isinstance(reply, ev.CommandFailed)
    assert (reply.category, reply.code) == ("FailedPrecondition", "runtime_not_running")
    assert (state(house), house.yard.boxes[BIRTH].is_draining) == (RuntimeState.RUNNING, False)


@in_virtual_time
@pytest.mark.parametrize(
    ("verb", "command"),
    [
        ("freeze", cmd.FreezeRuntime(**TARGET)),
        ("thaw", cmd.ThawRuntime(**TARGET)),
        ("update", cmd.UpdateRuntime(**TARGET, size=SIZE)),
        ("stop", cmd.StopRuntime(**TARGET)),
    ],
)
async def test_an_engine_that_is_away_is_a_reply_like_any_other(
    ports: Ports, verb: str, command: cmd.Command
) -> None:
    house = await launched(await open_house(ports))
    house.engine.fail_next(verb, AWAY)
    reply = await house.runner.perform(RUNNING, command)
    assert isinstance(reply, ev.CommandFailed)
    assert (reply.category, reply.code) == ("Unavailable", "engine_unavailable")
    assert reply.message.startswith(f"{command.kind}: ")


@in_virtual_time
async def test_a_stop_of_a_container_that_is_gone_says_so(ports: Ports) -> None:
    house = await open_house(ports)
    reply = await house.runner.perform(RUNNING, cmd.StopRuntime(**TARGET))
    assert isinstance(reply, ev.RuntimeRemoved)


@in_virtual_time
async def test_a_removal_is_tried_until_the_engine_has_done_it(ports: Ports) -> None:
    house = await launched(await open_house(ports))
    house.engine.fail_next("remove", AWAY, times=3)
    reply = await house.runner.perform(RUNNING, cmd.RemoveRuntime(**TARGET))
    assert isinstance(reply, ev.RuntimeRemoved)
    assert house.world.runtimes == {}
    assert BIRTH not in house.yard.boxes
    again = await house.runner.perform(RUNNING, cmd.RemoveRuntime(**TARGET))
    assert isinstance(again, ev.RuntimeRemoved)


# ---------------------------------------------------------------- looking and watching


def live(sandbox: SandboxRecord = RUNNING) -> SandboxRecord:
    return sandbox.model_copy(update={"running_since_at": sandbox.created_at})


@in_virtual_time
async def test_a_look_adopts_a_box_that_answers(ports: Ports) -> None:
    house = await launched(await open_house(ports))
    seen = await house.runner.observe(live())
    assert seen is not None
    assert (seen.state, seen.is_answering) == (RuntimeState.RUNNING, True)


@in_virtual_time
async def test_a_look_sees_a_box_that_works_for_another_generation(ports: Ports) -> None:
    house = await launched(await open_house(ports))
    house.yard.boxes[BIRTH].generation = 7
    seen = await house.runner.observe(live())
    assert seen is not None
    assert seen.is_answering is False


@in_virtual_time
async def test_a_look_at_nothing(ports: Ports) -> None:
    house = await open_house(ports)
    assert await house.runner.observe(live()) is None


@in_virtual_time
@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        (Correction.FREEZE, RuntimeState.FROZEN),
        (Correction.THAW, RuntimeState.RUNNING),
        (Correction.STOP, RuntimeState.EXITED),
    ],
)
async def test_corrections(ports: Ports, correction: Correction, expected: RuntimeState) -> None:
    house = await launched(await open_house(ports))
    if correction is Correction.THAW:
        house.world.freeze(BIRTH)
        house.yard.boxes[BIRTH].is_draining = True
    await house.runner.correct(live(), correction)
    assert state(house) is expected
    if correction is Correction.THAW:
        assert not house.yard.boxes[BIRTH].is_draining


@in_virtual_time
async def test_a_killed_container_is_told_with_its_evidence(ports: Ports) -> None:
    house = await launched(await open_house(ports))
    house.world.runtimes[BIRTH].log = "the end"
    watching = ports.spawn(house.runner.wait_lost(live()), name="watch")
    await ports.sleep(1)
    house.world.kill_container(BIRTH, oom=True)
    lost = await watching
    assert (lost.reason, lost.exit_code, lost.oom_killed) == ("oom_killed", 137, True)
    assert lost.output_tail == "the end"
    assert lost.is_container_there


@in_virtual_time
async def test_a_container_removed_by_force_from_outside_is_lost_not_a_defect(ports: Ports) -> None:
    house = await launched(await open_house(ports))
    watching = ports.spawn(house.runner.wait_lost(live()), name="watch")
    await ports.sleep(1)
    house.engine.fail_next("output_tail", NotFound("gone", code="runtime_missing"))
    house.world.kill_container(BIRTH)
    lost = await watching
    assert (lost.reason, lost.output_tail) == ("killed", "")


@in_virtual_time
async def test_a_container_that_vanished(ports: Ports) -> None:
    house = await open_house(ports)
    lost = await house.runner.wait_lost(live())
    assert (lost.reason, lost.is_container_there) == ("vanished", False)


@in_virtual_time
@pytest.mark.parametrize("error", [AWAY, Internal("it stumbled", code="engine_error")])
async def test_a_watch_outlives_an_engine_that_fails(ports: Ports, error: SandkeeperError) -> None:
    house = await launched(await open_house(ports))
    house.engine.fail_next("inspect", error, times=2)
    watching = ports.spawn(house.runner.wait_lost(live()), name="watch")
    await ports.sleep(10)
    assert not watching.done()
    house.world.kill_container(BIRTH)
    assert (await watching).reason == "killed"


@in_virtual_time
async def test_a_box_that_is_frozen_while_it_is_asked_is_seen_frozen_not_dead(ports: Ports) -> None:
    """A freeze that a dead owner asked for lands between the look and the question."""
    house = await launched(await open_house(ports))
    inspect = house.engine.inspect

    async def late_freeze(birth_id: BirthId) -> Any:
        seen = await inspect(birth_id)
        if state(house) is RuntimeState.RUNNING:
            house.world.freeze(birth_id)
        return seen

    house.engine.inspect = late_freeze  # type: ignore[method-assign]
    seen = await house.runner.observe(live())
    assert seen is not None
    assert (seen.state, seen.is_answering) == (RuntimeState.FROZEN, None)
