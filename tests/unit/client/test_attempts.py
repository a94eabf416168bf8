"""Attempts: parallel forks, honest states, another pass after a lost runtime, and nothing left after a cancel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandkeeper.client.attempt import Attempt, AttemptEvent, AttemptReport, AttemptResult, Step
from sandkeeper.client.attempts import AttemptSet
from sandkeeper.client.run_result import RunResult
from sandkeeper.core.errors import InvalidArgument, NotFound, ResourceExhausted, SandkeeperError
from sandkeeper.core.ids import RunId
from sandkeeper.ports import Ports
from sandkeeper.virtual import VirtualLoop, run_virtual, virtual_ports

OK = {"exit_code": 0, "outcome": "exited"}


def result(generation: int = 1, **facts: Any) -> RunResult:
    base: dict[str, Any] = {
        "exit_code": None,
        "outcome": "exited",
        "signal": 0,
        "oom_killed": False,
        "stdout_bytes": b"",
        "stderr_bytes": b"",
        "truncated": False,
        "stdout_size_bytes": 0,
        "stderr_size_bytes": 0,
        "duration_ms": 1.0,
        "generation": generation,
        "run_id": RunId("r"),
    }
    return RunResult(**(base | facts))


@dataclass
class PlayedSandbox:
    """A sandbox whose commands come to what the test wrote down: by command text, used one after the other."""

    id: str
    ports: Ports
    script: dict[str, list[Any]]
    generation: int = 1
    is_destroyed: bool = False
    ran: list[str] = field(default_factory=list)
    env: list[dict[str, str]] = field(default_factory=list)
    destroy_error: SandkeeperError | None = None

    async def describe(self) -> Any:
        return SimpleNamespace(generation=self.generation)

    async def run(self, command: str | Sequence[str], **options: Any) -> RunResult:
        text = command if isinstance(command, str) else " ".join(command)
        self.ran.append(text)
        self.env.append(dict(options.get("env") or {}))
        await self.ports.sleep(1.0)
        said = self.script.get(text, [OK])
        fact = said.pop(0) if len(said) > 1 else said[0]
        if isinstance(fact, Exception):
            raise fact
        if fact == "lost":
            lost, self.generation = self.generation, self.generation + 1
            return result(lost, outcome="interrupted")
        if fact == "hang":
            await self.ports.sleep(1e9)
        return result(self.generation, **fact)

    async def destroy(self) -> None:
        await self.ports.sleep(0.1)
        if self.destroy_error is not None:
            raise self.destroy_error
        self.is_destroyed = True


class PlayedKeeper:
    """Makes played sandboxes, one script per attempt."""

    def __init__(self, ports: Ports, scripts: dict[str, dict[str, list[Any]]]) -> None:
        self.ports = ports
        self.scripts = scripts
        self.made: dict[str, PlayedSandbox] = {}
        self.asked: list[dict[str, Any]] = []
        self.failures: dict[str, SandkeeperError] = {}
        self.at_once = 0
        self.snapshots = SimpleNamespace(get=self._get)

    async def _get(self, snapshot_id: str) -> None:
        if snapshot_id != "sn1":
            raise NotFound("no such snapshot", code="snapshot_not_found")

    async def create(self, **asked: Any) -> PlayedSandbox:
        self.asked.append(asked)
        await self.ports.sleep(0.5)
        name = asked["labels"]["attempt"]
        if name in self.failures:
            raise self.failures[name]
        made = PlayedSandbox(f"sb-{name}", self.ports, self.scripts.get(name, {}))
        self.made[name] = made
        return made


class Stage:
    def __init__(self, ports: Ports) -> None:
        self.ports = ports
        self.keeper = PlayedKeeper(ports, {})
        self.events: list[AttemptEvent] = []

    def set(self, *attempts: Attempt, snapshot: str = "sn1", **options: Any) -> AttemptSet:
        given: dict[str, Any] = {
            "name": "set",
            "concurrency": None,
            "score": None,
            "keep": "winner",
            "on_progress": self.events.append,
            "overrides": {},
        }
        return AttemptSet(
            cast("Any", self.keeper),
            snapshot=snapshot,
            attempts=attempts,
            ports=self.ports,
            **(given | options),
        )


def played(script: Callable[[Stage], Coroutine[Any, Any, Any]]) -> Any:
    loop = VirtualLoop()
    return run_virtual(script(Stage(virtual_ports(loop, seed=1))), loop=loop)


def attempt(name: str, *steps: str) -> Attempt:
    return Attempt(name, steps or ("work",))


@pytest.mark.parametrize(
    ("fact", "state", "code"),
    [
        (OK, "succeeded", 0),
        ({"exit_code": 2}, "failed", 2),
        ({"outcome": "signaled", "signal": 11}, "failed", None),
        ({"outcome": "signaled", "signal": 9, "oom_killed": True}, "oom_killed", None),
        ({"outcome": "timeout"}, "timeout", None),
        ({"outcome": "unknown"}, "unknown", None),
    ],
)
def test_what_came_of_the_last_step_is_the_state(fact: dict[str, Any], state: str, code: int | None) -> None:
    async def script(stage: Stage) -> AttemptReport:
        stage.keeper.scripts = {"a": {"work": [fact]}}
        return await stage.set(attempt("a")).run()

    found = played(script)["a"]
    assert (found.state, found.exit_code, found.generation) == (state, code, 1)


def test_the_first_failing_step_ends_the_attempt() -> None:
    async def script(stage: Stage) -> list[str]:
        stage.keeper.scripts = {"a": {"one": [{"exit_code": 1}]}}
        await stage.set(attempt("a", "one", "two")).run()
        return stage.keeper.made["a"].ran

    assert played(script) == ["one"]


def test_attempts_run_side_by_side_up_to_the_concurrency() -> None:
    async def script(stage: Stage, concurrency: int) -> float:
        began_s = stage.ports.clock.monotonic_s()
        names = [attempt(str(number)) for number in range(4)]
        await stage.set(*names, concurrency=concurrency, keep="all").run()
        return stage.ports.clock.monotonic_s() - began_s

    assert played(lambda stage: script(stage, 4)) == pytest.approx(1.5)
    assert played(lambda stage: script(stage, 2)) == pytest.approx(3.0)


def test_the_quickest_success_wins_and_the_losers_are_destroyed() -> None:
    async def script(stage: Stage) -> AttemptReport:
        stage.keeper.scripts = {"bad": {"work": [{"exit_code": 1}]}}
        report = await stage.set(attempt("bad"), attempt("slow", "work", "more"), attempt("quick")).run()
        assert {name for name, made in stage.keeper.made.items() if not made.is_destroyed} == {"quick"}
        assert {event.attempt for event in stage.events if event.kind == "destroyed"} == {"bad", "slow"}
        return cast("AttemptReport", report)

    report = played(script)
    assert (report.winner, report["quick"].sandbox is not None) == ("quick", True)
    assert report["bad"].sandbox is None
    assert report["bad"].score is None
    with pytest.raises(KeyError):
        report["nobody"]


@pytest.mark.parametrize(("keep", "left"), [("all", {"a", "b"}), ("none", set()), ("winner", {"b"})])
def test_keep_says_what_stays(keep: str, left: set[str]) -> None:
    async def script(stage: Stage) -> None:
        async def score(found: AttemptResult) -> float | None:
            return {"a": 1.0, "b": 2.0}[found.name]

        await stage.set(attempt("a"), attempt("b"), keep=keep, score=score).run()
        assert {name for name, made in stage.keeper.made.items() if not made.is_destroyed} == left

    played(script)


def test_a_lost_runtime_means_all_steps_again_in_the_rebuilt_one() -> None:
    async def script(stage: Stage) -> AttemptReport:
        stage.keeper.scripts = {"a": {"two": ["lost", OK]}}
        report = await stage.set(attempt("a", "one", "two")).run()
        assert stage.keeper.made["a"].ran == ["one", "two", "true", "one", "two"]
        kinds = [event.kind for event in stage.events]
        assert kinds.index("runtime_lost") < kinds.index("rebuilt")
        return cast("AttemptReport", report)

    found = played(script)["a"]
    assert (found.state, found.generation, found.passes, len(found.steps)) == ("succeeded", 2, 2, 2)


def test_a_step_that_ran_in_a_newer_runtime_without_the_steps_before_does_not_count() -> None:
    async def script(stage: Stage) -> AttemptReport:
        stage.keeper.scripts = {"a": {"two": [{"exit_code": 1}, OK]}}

        def told(event: AttemptEvent) -> None:
            if event.kind == "step_finished" and event.step == "one":
                stage.keeper.made["a"].generation = 2

        report = await stage.set(attempt("a", "one", "two"), on_progress=told).run()
        assert stage.keeper.made["a"].ran == ["one", "two", "true", "one", "two"]
        return cast("AttemptReport", report)

    found = played(script)["a"]
    assert (found.state, found.passes, found.generation) == ("succeeded", 2, 2)


def test_a_runtime_that_is_lost_again_and_again_is_given_up_as_interrupted() -> None:
    async def script(stage: Stage) -> AttemptReport:
        stage.keeper.scripts = {"a": {"work": ["lost"]}}
        return await stage.set(attempt("a")).run()

    found = played(script)["a"]
    assert (found.state, found.exit_code, found.passes) == ("interrupted", None, 4)


def test_a_fork_that_could_not_be_made_is_a_result() -> None:
    async def script(stage: Stage) -> AttemptReport:
        stage.keeper.failures = {"a": ResourceExhausted("full", code="quota_sandboxes")}
        return await stage.set(attempt("a"), attempt("b")).run()

    report = played(script)
    assert (report["a"].state, report.winner) == ("error", "b")
    assert report["a"].error.code == "quota_sandboxes"


def test_a_cancel_destroys_everything_made() -> None:
    async def script(stage: Stage) -> None:
        stage.keeper.scripts = {"a": {"work": ["hang"]}, "b": {"work": ["hang"]}}
        running = stage.ports.spawn(stage.set(attempt("a"), attempt("b")).run(), name="set")
        await stage.ports.sleep(5.0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert all(made.is_destroyed for made in stage.keeper.made.values())
        assert len(stage.keeper.made) == 2

    played(script)


def test_a_broken_callback_destroys_everything_made_and_tells_what_is_left() -> None:
    async def script(stage: Stage) -> None:
        def broken(event: AttemptEvent) -> None:
            if event.kind == "step_finished":
                stage.keeper.made["a"].destroy_error = ResourceExhausted("stuck")
                raise ZeroDivisionError

        with pytest.raises(ExceptionGroup) as failed:
            await stage.set(attempt("a"), attempt("b"), on_progress=broken).run()
        assert "stuck" in failed.value.__notes__[0]
        assert stage.keeper.made["b"].is_destroyed

    played(script)


def test_parameters_reach_every_step_and_overrides_every_fork() -> None:
    async def script(stage: Stage) -> None:
        steps = (Step("one", env={"A": "b"}), ["two", "words"])
        sized = {"size": "lite", "labels": {"own": "x"}}
        await stage.set(Attempt("a", steps, params={"seed": 7}), overrides=sized, keep="all").run()
        assert stage.keeper.made["a"].env == [{"PARAM_SEED": "7", "A": "b"}, {"PARAM_SEED": "7"}]
        assert stage.keeper.asked[0]["labels"] == {"attempt-set": "set", "attempt": "a", "own": "x"}
        assert stage.keeper.asked[0]["size"] == "lite"

    played(script)


def test_a_title_is_short() -> None:
    assert Step("x" * 100).title == "x" * 59 + "…"
    assert Step(["a", "b"]).title == "a b"
    assert Step("x", name="y").title == "y"


def test_an_unknown_snapshot_makes_nothing() -> None:
    async def script(stage: Stage) -> None:
        with pytest.raises(NotFound):
            await stage.set(attempt("a"), snapshot="sn2").run()
        assert stage.keeper.asked == []

    played(script)


@pytest.mark.parametrize(
    ("attempts", "options"),
    [
        ((), {}),
        ((attempt("a"), attempt("a")), {}),
        ((Attempt("a", ()),), {}),
        ((attempt("a"),), {"concurrency": 0}),
        ((attempt("a"),), {"keep": "some"}),
    ],
)
def test_what_makes_no_sense_is_refused(attempts: tuple[Attempt, ...], options: dict[str, Any]) -> None:
    async def script(stage: Stage) -> None:
        with pytest.raises(InvalidArgument):
            stage.set(*attempts, **options)

    played(script)
