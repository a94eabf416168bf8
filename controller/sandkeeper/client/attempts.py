"""Runs a set of attempts in parallel, each in a fork of one snapshot, and compares them.

Owns the fan-out: when a runtime is lost under a step, the attempt waits for the rebuild and runs its steps again from
the first, because the workspace is the snapshot's again. Whatever ends the set early, also a cancel, what it made is
destroyed. It never turns a missing result into a success.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from sandkeeper.client.attempt import (
    Attempt,
    AttemptEvent,
    AttemptEventKind,
    AttemptReport,
    AttemptResult,
    OnProgress,
    Score,
    Step,
    default_score,
)
from sandkeeper.client.comparison import best_of, check_attempts, state_of
from sandkeeper.client.results import RunResult, Snapshot
from sandkeeper.core.errors import NotFound, SandkeeperError
from sandkeeper.core.ids import SnapshotId
from sandkeeper.ports import Ports

if TYPE_CHECKING:
    from sandkeeper.client.keeper import Keeper
    from sandkeeper.client.sandbox import Sandbox

DEFAULT_CONCURRENCY = 8
MOST_PASSES = 4


@dataclass(slots=True)
class _Run:
    """One attempt under way."""

    attempt: Attempt
    began_s: float
    sandbox: Sandbox | None = None
    results: list[RunResult] = field(default_factory=list)
    passes: int = 0
    error: SandkeeperError | None = None


class AttemptSet:
    """One call of `keeper.attempts`."""

    def __init__(
        self,
        keeper: Keeper,
        *,
        snapshot: str | Snapshot,
        attempts: Sequence[Attempt],
        name: str | None,
        concurrency: int | None,
        score: Score | None,
        keep: str,
        on_progress: OnProgress | None,
        overrides: dict[str, Any],
        ports: Ports,
    ) -> None:
        check_attempts(attempts, concurrency=concurrency, keep=keep)
        self._keeper = keeper
        self._snapshot_id = SnapshotId(snapshot.id if isinstance(snapshot, Snapshot) else snapshot)
        self._attempts = tuple(attempts)
        self._name = name or f"set-{ports.new_token()[:8]}"
        self._places = asyncio.Semaphore(concurrency or DEFAULT_CONCURRENCY)
        self._score = score or default_score
        self._keep = keep
        self._on_progress = on_progress
        self._overrides = overrides
        self._ports = ports
        self._made: list[Sandbox] = []

    async def run(self) -> AttemptReport:
        """Run all attempts, compare, destroy what is not kept.

        Raises:
            NotFound: There is no such snapshot.
            SandkeeperError: A loser could not be destroyed.
        """
        began_s = self._ports.clock.monotonic_s()
        await self._keeper.snapshots.get(self._snapshot_id)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._one(attempt)) for attempt in self._attempts]
            results = [await self._scored(task.result()) for task in tasks]
            winner = best_of(results)
            results = await self._settle(results, winner=winner)
        except BaseException as error:
            # A cancel, or a defect in a callback: nothing of this set may outlive it.
            for left in await self._destroy_made():
                error.add_note(f"left behind: {left}")
            raise
        return AttemptReport(
            name=self._name,
            snapshot_id=self._snapshot_id,
            attempts=tuple(results),
            winner=winner,
            duration_ms=self._elapsed_ms(began_s),
        )

    async def _one(self, attempt: Attempt) -> AttemptResult:
        async with self._places:
            run = _Run(attempt, began_s=self._ports.clock.monotonic_s())
            try:
                run.sandbox = await self._forked(attempt)
                self._tell("attempt_started", run)
                await self._passes(run)
            except SandkeeperError as error:
                run.error = error
            result = self._result(run)
            self._tell("attempt_finished", run, result=run.results[-1] if run.results else None)
            return result

    async def _forked(self, attempt: Attempt) -> Sandbox:
        labels = {"attempt-set": self._name, "attempt": attempt.name} | dict(
            self._overrides.get("labels", {})
        )
        overrides = {key: value for key, value in self._overrides.items() if key != "labels"}
        sandbox = await self._keeper.create(snapshot=self._snapshot_id, labels=labels, **overrides)
        self._made.append(sandbox)
        return sandbox

    async def _passes(self, run: _Run) -> None:
        """Run the steps; again from the first whenever the workspace under them became another one."""
        assert run.sandbox is not None
        while run.passes < MOST_PASSES:
            run.passes += 1
            run.results.clear()
            generation = (await run.sandbox.describe()).generation
            for step in run.attempt.ordered():
                self._tell("step_started", run, step=step, generation=generation)
                result = await self._step(run.sandbox, step)
                run.results.append(result)
                if result.generation != generation or result.outcome == "interrupted":
                    self._tell("runtime_lost", run, step=step, result=result)
                    break
                self._tell("step_finished", run, step=step, result=result)
                if not result.is_success:
                    return
            else:
                return
            if not await self._is_rebuilt(run, lost=generation):
                return

    async def _step(self, sandbox: Sandbox, step: Step) -> RunResult:
        return await sandbox.run(
            step.command,
            cwd=step.cwd,
            env=step.env,
            user=step.user,
            stdin=step.stdin,
            timeout_s=step.timeout_s,
            max_output_bytes=step.max_output_bytes,
        )

    async def _is_rebuilt(self, run: _Run, *, lost: int) -> bool:
        """Wait until a newer runtime takes work; False when there will be none."""
        assert run.sandbox is not None
        try:
            probe = await run.sandbox.run(["true"], timeout_s=30.0)
        except SandkeeperError:
            # The last result of the steps says `interrupted`, which is what came of the attempt.
            return False
        if not probe.is_success or probe.generation <= lost:
            return False
        self._tell("rebuilt", run, generation=probe.generation)
        return True

    def _result(self, run: _Run) -> AttemptResult:
        last = run.results[-1] if run.results else None
        return AttemptResult(
            name=run.attempt.name,
            state="error" if run.error is not None or last is None else state_of(last),
            sandbox_id=run.sandbox.id if run.sandbox else None,
            generation=last.generation if last else 0,
            exit_code=last.exit_code if last else None,
            outcome=last.outcome if last else "",
            duration_ms=self._elapsed_ms(run.began_s),
            steps=tuple(run.results),
            passes=run.passes,
            error=run.error,
            sandbox=run.sandbox,
        )

    async def _scored(self, result: AttemptResult) -> AttemptResult:
        said = self._score(result)
        score = await said if inspect.isawaitable(said) else said
        return replace(result, score=score)

    async def _settle(self, results: list[AttemptResult], *, winner: str | None) -> list[AttemptResult]:
        kept: set[str | None] = set()
        if self._keep == "all":
            kept = {result.name for result in results}
        elif self._keep == "winner":
            kept = {winner}
        losers = [result.sandbox for result in results if result.sandbox and result.name not in kept]
        failures = await self._destroy(losers)
        if failures:
            raise failures[0]
        for result in results:
            if result.sandbox is not None and result.name not in kept:
                self._say(
                    "destroyed", result.name, sandbox_id=result.sandbox_id, generation=result.generation
                )
        return [result if result.name in kept else replace(result, sandbox=None) for result in results]

    async def _destroy_made(self) -> list[SandkeeperError]:
        """Destroy everything made so far; a cancel that comes again does not keep it from being done."""
        ending = self._ports.spawn(self._destroy(list(self._made)), name=f"destroy {self._name}")
        return cast("list[SandkeeperError]", await asyncio.shield(ending))

    async def _destroy(self, sandboxes: Sequence[Sandbox]) -> list[SandkeeperError]:
        answers = await asyncio.gather(*(self._destroy_one(sandbox) for sandbox in sandboxes))
        return [failure for failure in answers if failure is not None]

    async def _destroy_one(self, sandbox: Sandbox) -> SandkeeperError | None:
        try:
            await sandbox.destroy()
        except NotFound:
            return None
        except SandkeeperError as error:
            return error
        return None

    def _tell(
        self,
        kind: AttemptEventKind,
        run: _Run,
        *,
        step: Step | None = None,
        generation: int = 0,
        result: RunResult | None = None,
    ) -> None:
        self._say(
            kind,
            run.attempt.name,
            sandbox_id=run.sandbox.id if run.sandbox else None,
            generation=result.generation if result else generation,
            step=step.title if step else None,
            result=result,
        )

    def _say(self, kind: AttemptEventKind, attempt: str, **facts: Any) -> None:
        if self._on_progress is not None:
            self._on_progress(AttemptEvent(kind=kind, attempt=attempt, at=self._ports.clock.now(), **facts))

    def _elapsed_ms(self, began_s: float) -> float:
        return round((self._ports.clock.monotonic_s() - began_s) * 1000, 3)
