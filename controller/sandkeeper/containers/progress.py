"""What long set-up work reports while it runs.

Owns the one shape of such a report. It never prints: a command line or a log decides how it looks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """One line of news about a long piece of work.

    Attributes:
        step: Constant name of the step, such as `engine` or `image:base`.
        message: What is being done now, for a person.
        done: True with the last report of a step.
    """

    step: str
    message: str
    done: bool = False


OnProgress = Callable[[Progress], None]


def no_progress(_report: Progress) -> None:
    """Take a report and do nothing with it."""
