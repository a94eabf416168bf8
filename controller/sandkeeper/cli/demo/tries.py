"""The four ways to mend the fault: one that is right, one that is wrong, one that hangs, one that hoards memory.

Owns their patches and what each must come to. Runs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from sandkeeper.cli.demo.project import SOUND, Project, patch_for
from sandkeeper.client.attempt import Attempt, Step

PROJECT_DIR = "/home/user/project"
PYTHON = "/home/user/venv/bin/python"
SUITE = "the test suite"
SUITE_COMMAND = (PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider")
SUITE_ENV = {"PYTHONDONTWRITEBYTECODE": "1"}
SUITE_TIMEOUT_S = 240.0
HANG_TIMEOUT_S = 30.0

RIGHT, WRONG, HANGING, HOARDING = "right", "wrong", "hanging", "hoarding"

_REPLACEMENTS = {
    RIGHT: SOUND,
    # Sound for a step of one, so most tests pass.
    WRONG: "    for _ in islice(filler, 0, None, step):\n",
    # The window never empties, so this never ends once the filler has.
    HANGING: "    while window:\n      for _ in islice(filler, step - 1, None, step):\n",
    # "All windows at once": a list without an end.
    HOARDING: "    ahead = list(repeat(tuple(window)))\n" + SOUND,
}


@dataclass(frozen=True, slots=True)
class Expected:
    """What an attempt must come to, or the demonstration has failed."""

    state: str
    outcome: str
    exit_code: int | None


EXPECTED = {
    RIGHT: Expected("succeeded", "exited", 0),
    WRONG: Expected("failed", "exited", 1),
    HANGING: Expected("timeout", "timeout", None),
    HOARDING: Expected("oom_killed", "signaled", None),
}


def the_attempts(project: Project) -> list[Attempt]:
    """Return the four attempts: each applies its patch and runs the whole test suite."""
    return [_attempt(name, patch_for(project, text)) for name, text in _REPLACEMENTS.items()]


def suite_step(*, timeout_s: float = SUITE_TIMEOUT_S) -> Step:
    """Return the step that runs the package's own tests."""
    return Step(SUITE_COMMAND, name=SUITE, cwd=PROJECT_DIR, env=SUITE_ENV, timeout_s=timeout_s)


def _attempt(name: str, patch: str) -> Attempt:
    apply = Step(["git", "apply", "-"], name="apply the patch", cwd=PROJECT_DIR, stdin=patch, timeout_s=60.0)
    timeout_s = HANG_TIMEOUT_S if name == HANGING else SUITE_TIMEOUT_S
    return Attempt(name=name, steps=(apply, suite_step(timeout_s=timeout_s)))
