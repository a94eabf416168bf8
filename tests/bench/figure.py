"""What a bench hands in: one figure, what it was held against in the same run, and what it should be."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Target:
    """The most a figure may be: as a ratio to its reference, or as it was measured."""

    most: float
    of: Literal["ratio", "measured"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure.

    Attributes:
        what: What was measured.
        size: How much of it: rounds, sandboxes, bytes.
        unit: Unit of `measured` and `reference`.
        measured: The figure, a median unless `what` says otherwise.
        reference: The same of what it is held against, from the same run.
        against: What that is.
        target: None for a figure that is only worth knowing.
    """

    what: str
    size: str
    unit: str
    measured: float
    reference: float | None = None
    against: str = ""
    target: Target | None = None

    @property
    def ratio(self) -> float | None:
        """Measured divided by reference."""
        return None if not self.reference else self.measured / self.reference

    @property
    def is_met(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        if self.target is None:
            return None
        value = self.measured if self.target.of == "measured" else self.ratio
        return value is not None and value <= self.target.most

    def document(self) -> dict[str, Any]:
        """Return the figure as JSON."""
        return {
            "what": self.what,
            "size": self.size,
            "unit": self.unit,
            "measured": rounded(self.measured),
            "reference": None if self.reference is None else rounded(self.reference),
            "against": self.against,
            "ratio": None if self.ratio is None else rounded(self.ratio),
            "target": None if self.target is None else {"most": self.target.most, "of": self.target.of},
            "is_met": self.is_met,
        }


@dataclass(frozen=True, slots=True)
class Bench:
    """A group of figures measured together.

    Attributes:
        name: As given on the command line.
        limit_s: After this it is broken off and counts as failed.
        measure: Measures them; leaves nothing behind.
    """

    name: str
    limit_s: float
    measure: Callable[[], Awaitable[list[Figure]]]


def median(values: Sequence[float]) -> float:
    """Return the middle of `values`."""
    return float(statistics.median(values))


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value that `percent` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def rounded(value: float) -> float:
    """Return `value` to three figures that count."""
    return float(f"{value:.3g}") if abs(value) < 1000 else float(round(value))
