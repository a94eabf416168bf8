"""What an attempt is made of, and what is told of it: plain values.

Owns the vocabulary of `keeper.attempts`. Runs nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from sandkeeper.client.results import RunResult
from sandkeeper.client.run_order import DEFAULT_TIMEOUT_S, MAX_OUTPUT_BYTES
from sandkeeper.core.errors import SandkeeperError
from sandkeeper.core.ids import SandboxId, SnapshotId

if TYPE_CHECKING:
    from sandkeeper.client.sandbox import Sandbox

AttemptState = Literal["succeeded", "failed", "timeout", "oom_killed", "interrupted", "unknown", "error"]
AttemptEventKind = Literal[
    "attempt_started",
    "step_started",
    "step_finished",
    "runtime_lost",
    "rebuilt",
    "attempt_finished",
    "destroyed",
]


@dataclass(frozen=True, slots=True)
class Step:
    """One command of an attempt.

    Attributes:
        command: Argv, or a line for `/bin/sh -c`.
        name: For reports; empty = the command's first words.
        cwd: Folder; None = the sandbox's default.
        env: Variables beside the sandbox's and the attempt's parameters.
        user: User name; None = the default.
        stdin: Input; None = none.
        timeout_s: The tree is killed after this time: the attempt's state is then `timeout`.
        max_output_bytes: Output kept, per stream.
    """

    command: str | Sequence[str]
    name: str = ""
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    stdin: bytes | str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S
    max_output_bytes: int = MAX_OUTPUT_BYTES

    @property
    def title(self) -> str:
        """What to call the step in a report."""
        if self.name:
            return self.name
        text = self.command if isinstance(self.command, str) else " ".join(self.command)
        return text if len(text) <= 60 else text[:59] + "…"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One way to try: steps run one after the other in a fork of its own; the first that fails ends it.

    Attributes:
        name: Unique in its set.
        steps: Commands; a text or an argv stands for a `Step` with defaults.
        params: Given to every step as environment variables `PARAM_<NAME>`.
    """

    name: str
    steps: Sequence[Step | str | Sequence[str]]
    params: Mapping[str, Any] = field(default_factory=dict)

    def ordered(self) -> tuple[Step, ...]:
        """Return the steps, all as `Step`, with the parameters in their environment."""
        given = {f"PARAM_{key.upper()}": str(value) for key, value in self.params.items()}
        steps = (step if isinstance(step, Step) else Step(step) for step in self.steps)
        return tuple(
            Step(
                command=step.command,
                name=step.name,
                cwd=step.cwd,
                env=given | dict(step.env),
                user=step.user,
                stdin=step.stdin,
                timeout_s=step.timeout_s,
                max_output_bytes=step.max_output_bytes,
            )
            for step in steps
        )


@dataclass(frozen=True, slots=True)
class AttemptEvent:
    """News of one attempt, as it happens.

    Attributes:
        kind: What happened.
        attempt: Whose.
        at: When it was seen here.
        sandbox_id: Its sandbox, once there is one.
        generation: Number of the runtime concerned.
        step: Title of the step concerned, if one is.
        result: The step's result, with `step_finished` and `runtime_lost`.
    """

    kind: AttemptEventKind
    attempt: str
    at: datetime
    sandbox_id: SandboxId | None = None
    generation: int = 0
    step: str | None = None
    result: RunResult | None = None


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """What came of one attempt. A timeout, a memory kill and a lost runtime are results too.

    Attributes:
        name: Its name.
        state: `succeeded` when every step exited 0.
        sandbox_id: Its sandbox; None when it could not be made.
        generation: The runtime its last step ran in; 2 and more after a rebuild.
        exit_code: Of the last step, None unless that exited.
        outcome: Of the last step; empty when none ran.
        duration_ms: From its start to its end, rebuilds included.
        steps: Results of the steps of the last pass.
        passes: How often its steps were begun; 2 and more after a lost runtime.
        score: What the score function said; None when the attempt is out of the race.
        error: What kept it from running, with state `error`.
        sandbox: Its sandbox, while it is kept.
    """

    name: str
    state: AttemptState
    sandbox_id: SandboxId | None
    generation: int
    exit_code: int | None
    outcome: str
    duration_ms: float
    steps: tuple[RunResult, ...]
    passes: int = 1
    score: float | None = None
    error: SandkeeperError | None = None
    sandbox: Sandbox | None = None


@dataclass(frozen=True, slots=True)
class AttemptReport:
    """A compared set of attempts.

    Attributes:
        name: The set's name.
        snapshot_id: What all forks started from.
        attempts: Results, in the order given.
        winner: Name of the best one; None when none has a score.
        duration_ms: From the first fork to the comparison.
    """

    name: str
    snapshot_id: SnapshotId
    attempts: tuple[AttemptResult, ...]
    winner: str | None
    duration_ms: float

    def __getitem__(self, name: str) -> AttemptResult:
        for result in self.attempts:
            if result.name == name:
                return result
        raise KeyError(name)


Score = Callable[[AttemptResult], "float | Awaitable[float | None] | None"]
"""Says how good a result is; more is better, None is out. May be a coroutine function."""

OnProgress = Callable[[AttemptEvent], None]


def default_score(result: AttemptResult) -> float | None:
    """Succeeded attempts only; the quicker the better."""
    return -result.duration_ms if result.state == "succeeded" else None
