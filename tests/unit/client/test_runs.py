"""A run has an honest result through cuts, new owners, new runtimes, pauses and cancels; nothing runs twice."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sandkeeper.boxd.answers import Vitals
from sandkeeper.client.run_order import RunOrder, argv_of, checked_timeout_s
from sandkeeper.client.run_result import RunResult
from sandkeeper.client.runs import Runner
from sandkeeper.core.errors import (
    Aborted,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    SandkeeperError,
    Unavailable,
)
from sandkeeper.core.ids import RunId, SandboxId
from sandkeeper.ports import Ports
from sandkeeper.virtual import VirtualLoop, run_virtual, virtual_ports
from tests.fakes.boxd import Result
from tests.fakes.leases import FakeLeases

SANDBOX = SandboxId("sb1")


class Stage:
    """A runner over fake leases, in virtual time."""

    def __init__(self, ports: Ports) -> None:
        self.ports = ports
        self.leases = FakeLeases(ports=ports)
        self.runner = Runner(self.leases.as_boxes(), ports=ports)

    async def run(self, *argv: str, timeout_s: float = 300.0, keep_bytes: int = 1000) -> RunResult:
        order = RunOrder(
            argv=argv, run_id=RunId("r1"), timeout_s=timeout_s, keep_bytes=keep_bytes, send_bytes=keep_bytes
        )
        return await self.runner.run(SANDBOX, order)

    def later(self, after_s: float, act: Callable[[], None]) -> asyncio.Task[Any]:
        async def wait() -> None:
            await self.ports.sleep(after_s)
            act()

        return self.ports.spawn(wait(), name="later")


def played(script: Callable[[Stage], Coroutine[Any, Any, Any]]) -> Any:
    loop = VirtualLoop()
    return run_virtual(script(Stage(virtual_ports(loop, seed=1))), loop=loop)


def cut(*, admitted: Any = "yes") -> SandkeeperError:
    return Aborted("cut", code="connection_lost", admitted=admitted)


def test_an_exit_code_is_the_programs() -> None:
    result = played(lambda stage: stage.run("false"))
    assert (result.outcome, result.exit_code, result.generation) == ("exited", 1, 1)
    assert not result.is_success


def test_output_is_capped_and_its_size_true() -> None:
    result = played(lambda stage: stage.run("echo", "hello", keep_bytes=3))
    assert (result.stdout, result.stdout_size_bytes, result.truncated) == ("hel", 6, True)


def test_a_cut_stream_is_attached_again_and_nothing_runs_twice() -> None:
    async def script(stage: Stage) -> RunResult:
        stage.leases.cuts = [(1, cut()), (1, cut()), (2, cut())]
        result = await stage.run("echo", "hello")
        assert stage.leases.box.admitted == ["r1"]
        return result

    result = played(script)
    assert (result.outcome, result.exit_code, result.stdout) == ("exited", 0, "hello\n")


def test_a_new_owner_with_a_higher_epoch_changes_nothing_for_the_run() -> None:
    async def script(stage: Stage) -> RunResult:
        def restart() -> None:
            stage.leases.epoch = stage.leases.box.epoch = 2

        stage.leases.cuts = [(1, cut())]
        stage.later(0.0005, restart)
        return await stage.run("sleep", "5")

    result = played(script)
    assert (result.outcome, result.exit_code, result.generation) == ("exited", 0, 1)


def test_a_lost_runtime_is_interrupted_never_success() -> None:
    async def script(stage: Stage) -> RunResult:
        def lose() -> None:
            stage.leases.box.die()
            stage.leases.new_runtime()

        stage.later(2.0, lose)
        result = await stage.run("sleep", "5")
        assert stage.leases.box.admitted == []
        return result

    result = played(script)
    assert (result.outcome, result.exit_code, result.admitted) == ("interrupted", None, "yes")
    assert result.generation == 1


def test_a_loss_that_the_owner_has_not_noticed_yet_is_waited_for() -> None:
    async def script(stage: Stage) -> RunResult:
        stage.later(2.0, stage.leases.box.die)
        stage.later(4.0, lambda: None).add_done_callback(lambda _: stage.leases.new_runtime())
        return await stage.run("sleep", "5")

    result = played(script)
    assert (result.outcome, result.generation) == ("interrupted", 1)


def test_what_was_never_admitted_runs_in_the_next_runtime() -> None:
    async def script(stage: Stage) -> RunResult:
        stage.leases.box.die()
        stage.later(1.0, lambda: None).add_done_callback(lambda _: stage.leases.new_runtime())
        return await stage.run("true")

    result = played(script)
    assert (result.outcome, result.exit_code, result.generation) == ("exited", 0, 2)


def test_what_may_have_been_admitted_is_not_run_again_in_the_next_runtime() -> None:
    async def script(stage: Stage) -> RunResult:
        await stage.leases.renew(SANDBOX)
        stage.leases.cuts.append((0, cut(admitted="unknown")))
        stage.later(0.0001, lambda: None).add_done_callback(lambda _: stage.leases.new_runtime())
        await stage.ports.sleep(0)
        return await stage.run("true")

    result = played(script)
    assert (result.outcome, result.admitted) == ("interrupted", "unknown")


def test_a_refused_reconnect_does_not_unsay_that_it_may_have_been_admitted() -> None:
    async def script(stage: Stage) -> RunResult:
        refused = Unavailable("nobody there", code="runtime_unreachable", admitted="no")
        stage.leases.cuts = [(0, cut(admitted="unknown")), (0, refused)]
        stage.later(0.01, lambda: None).add_done_callback(lambda _: stage.leases.new_runtime())
        return await stage.run("true")

    result = played(script)
    assert (result.outcome, result.admitted) == ("interrupted", "unknown")


@pytest.mark.parametrize(
    ("refusal", "outcome"),
    [
        (FailedPrecondition("stopped", code="sandbox_not_running"), "interrupted"),
        (NotFound("destroyed", code="sandbox_destroyed"), "interrupted"),
        (Unavailable("nobody", code="owner_unreachable"), "unknown"),
    ],
)
def test_an_admitted_run_without_a_lease_has_no_exit_code(refusal: SandkeeperError, outcome: str) -> None:
    async def script(stage: Stage) -> RunResult:
        def lose() -> None:
            stage.leases.box.die()
            stage.leases.refusal = refusal

        stage.later(2.0, lose)
        return await stage.run("sleep", "5")

    result = played(script)
    assert (result.outcome, result.exit_code, result.admitted) == (outcome, None, "yes")
    assert refusal.message in result.message


def test_a_refusal_before_anything_was_sent_is_an_error_that_names_the_sandbox() -> None:
    async def script(stage: Stage) -> None:
        stage.leases.refusal = FailedPrecondition("stopped", code="sandbox_not_running")
        with pytest.raises(FailedPrecondition) as refused:
            await stage.run("true")
        assert (refused.value.sandbox_id, refused.value.admitted) == (SANDBOX, "no")

    played(script)


def test_a_pause_moves_all_deadlines() -> None:
    async def script(stage: Stage) -> RunResult:
        def pause() -> None:
            stage.leases.box.freeze()
            stage.leases.refusal = FailedPrecondition(
                "paused", code="sandbox_paused", details={"phase": "paused"}
            )

        def resume() -> None:
            stage.leases.box.thaw()
            stage.leases.refusal = None

        stage.leases.cuts = [(1, Unavailable("silent", code="runtime_silent", admitted="yes"))]
        stage.later(0.0016, pause)
        stage.later(1000.0, resume)
        return await stage.run("sleep", "5", timeout_s=20.0)

    result = played(script)
    assert (result.outcome, result.exit_code, result.generation) == ("exited", 0, 1)


def test_a_pause_before_the_start_was_seen_is_told_as_such() -> None:
    async def script(stage: Stage) -> None:
        await stage.leases.renew(SANDBOX)
        stage.leases.cuts.append((0, Unavailable("silent", code="runtime_silent", admitted="unknown")))
        stage.leases.refusal = FailedPrecondition(
            "paused", code="sandbox_paused", details={"phase": "paused"}
        )
        with pytest.raises(FailedPrecondition) as refused:
            await stage.run("true")
        assert (refused.value.code, refused.value.admitted) == ("sandbox_paused", "unknown")

    played(script)


def test_a_long_silence_before_a_cut_does_not_count_as_no_word() -> None:
    async def script(stage: Stage) -> RunResult:
        stage.leases.silences_s = [200.0]
        return await stage.run("sleep", "250")

    assert played(script).outcome == "exited"


def test_a_run_that_can_never_be_attached_again_is_unknown() -> None:
    async def script(stage: Stage) -> RunResult:
        stage.later(2.0, stage.leases.box.die)
        return await stage.run("sleep", "5")

    result = played(script)
    assert (result.outcome, result.exit_code, result.admitted) == ("unknown", None, "yes")


def test_a_timeout_is_boxds_word() -> None:
    result = played(lambda stage: stage.run("sleep", "50", timeout_s=3.0))
    assert (result.outcome, result.exit_code) == ("timeout", None)


def test_a_box_that_is_frozen_by_nobody_answers_timeout_two_seconds_after_the_timeout() -> None:
    async def script(stage: Stage) -> tuple[RunResult, float]:
        stage.later(1.0, stage.leases.box.freeze)
        began_s = stage.ports.clock.monotonic_s()
        result = await stage.run("sleep", "50", timeout_s=3.0)
        return result, stage.ports.clock.monotonic_s() - began_s

    result, waited_s = played(script)
    assert (result.outcome, result.exit_code, result.reason) == ("timeout", None, "host_deadline")
    assert "not known to be stopped" in result.message
    assert 3.0 < waited_s <= 5.0


def test_a_paused_box_is_not_overdue() -> None:
    async def script(stage: Stage) -> RunResult:
        def pause() -> None:
            stage.leases.box.freeze()
            stage.leases.refusal = FailedPrecondition(
                "paused", code="sandbox_paused", details={"phase": "paused"}
            )

        def resume() -> None:
            stage.leases.box.thaw()
            stage.leases.refusal = None

        stage.later(1.0, pause)
        stage.later(1000.0, resume)
        return await stage.run("sleep", "2", timeout_s=3.0)

    assert played(script).outcome == "exited"


def test_a_box_that_answers_is_waited_for_beyond_its_timeout() -> None:
    async def script(stage: Stage) -> RunResult:
        stage.later(1.0, stage.leases.box.freeze)
        stage.later(3.5, stage.leases.box.thaw)
        return await stage.run("sleep", "50", timeout_s=3.0)

    result = played(script)
    assert (result.outcome, result.reason) == ("timeout", "")


@pytest.mark.parametrize(
    ("shell", "can_fork", "code"),
    [
        (False, True, "sandbox_unhealthy"),
        (True, False, "sandbox_unhealthy"),
        (True, True, "exec_not_found"),
    ],
)
def test_a_start_that_failed_is_explained_by_the_boxs_health(shell: bool, can_fork: bool, code: str) -> None:
    async def script(stage: Stage) -> str:
        stage.leases.box.vitals = Vitals(state="running", shell=shell, can_fork=can_fork)
        with pytest.raises(SandkeeperError) as failed:
            await stage.run("nowhere")
        assert (failed.value.sandbox_id, failed.value.admitted) == (SANDBOX, "no")
        return failed.value.code

    assert played(script) == code


def test_a_memory_kill_is_a_result() -> None:
    async def script(stage: Stage) -> RunResult:
        stage.leases.box.programs["eat"] = lambda box, argv: Result(oom_killed=True)
        return await stage.run("eat")

    result = played(script)
    assert (result.outcome, result.oom_killed, result.signal, result.exit_code) == ("signaled", True, 9, None)


def test_a_cancel_kills_the_tree_before_it_goes_on() -> None:
    async def script(stage: Stage) -> None:
        running = stage.ports.spawn(stage.run("sleep", "50"), name="run")
        await stage.ports.sleep(1.0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        run = stage.leases.box.runs[RunId("r1")]
        assert run.ended is not None
        assert run.ended.outcome == "signaled"

    played(script)


def test_a_cancel_that_could_not_kill_says_so() -> None:
    async def script(stage: Stage) -> None:
        running = stage.ports.spawn(stage.run("sleep", "50"), name="run")
        await stage.ports.sleep(1.0)
        stage.leases.box.has_listener = False
        running.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await running
        assert "not known to be stopped" in cancelled.value.__notes__[0]

    played(script)


def test_a_text_is_a_shell_line_and_a_list_an_argv() -> None:
    assert argv_of("a && b") == ("/bin/sh", "-c", "a && b")
    assert argv_of(["a", "&&"]) == ("a", "&&")
    for nothing in ([], [1]):
        with pytest.raises(InvalidArgument):
            argv_of(nothing)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [0, -1, math.nan, math.inf, True, "5", None, 1e9])
def test_a_timeout_must_be_a_time(wrong: Any) -> None:
    with pytest.raises(InvalidArgument):
        checked_timeout_s(wrong)
