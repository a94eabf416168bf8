"""Judging attempts: whether a set makes sense, what a result amounts to, which one is best.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from sandkeeper.client.attempt import Attempt, AttemptResult, AttemptState
from sandkeeper.client.run_result import RunResult
from sandkeeper.core.errors import InvalidArgument

KEEPS = ("winner", "all", "none")


def check_attempts(attempts: Sequence[Attempt], *, concurrency: int | None, keep: str) -> None:
    """Refuse a set that makes no sense.

    Raises:
        InvalidArgument: `attempts_invalid`, `keep_invalid`.
    """
    names = [attempt.name for attempt in attempts]
    if not names or len(set(names)) != len(names):
        raise InvalidArgument("attempts need names, each its own, and at least one", code="attempts_invalid")
    if any(not attempt.steps for attempt in attempts):
        raise InvalidArgument("an attempt needs at least one step", code="attempts_invalid")
    if concurrency is not None and concurrency < 1:
        raise InvalidArgument(f"concurrency must be 1 or more, not {concurrency}", code="attempts_invalid")
    if keep not in KEEPS:
        raise InvalidArgument(f"keep is one of {', '.join(KEEPS)}, not {keep!r:.40}", code="keep_invalid")


def state_of(last: RunResult) -> AttemptState:
    """Return what the last step's result makes of its attempt."""
    if last.oom_killed:
        return "oom_killed"
    match last.outcome:
        case "exited":
            return "succeeded" if last.exit_code == 0 else "failed"
        case "signaled":
            return "failed"
        case _:
            return last.outcome


def best_of(results: Sequence[AttemptResult]) -> str | None:
    """Return the name of the result with the highest score; None when none has one."""
    scored = [(result.score, result.name) for result in results if result.score is not None]
    return max(scored, key=lambda pair: pair[0])[1] if scored else None
