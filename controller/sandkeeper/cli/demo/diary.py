"""What the demonstration saw, in order: shown as it happens, and kept for the report.

Owns the look of the live report and the final table. Decides nothing.
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from sandkeeper.client.attempt import AttemptEvent, AttemptResult

PLAIN_WIDTH = 120
_STYLES = {"step": "bold cyan", "kill": "bold red", "seen": "yellow", "attempt": "white", "check": "green"}


class Diary:
    """Events of one run."""

    def __init__(self, *, is_quiet: bool) -> None:
        width = None if sys.stdout.isatty() else PLAIN_WIDTH
        self._console = Console(quiet=is_quiet, highlight=False, soft_wrap=True, width=width)
        self._began_s = time.monotonic()
        self.events: list[dict[str, Any]] = []

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began_s

    def note(self, kind: str, text: str, **facts: Any) -> None:
        """Keep one event and show it. `kind` is step, kill, seen, attempt or check."""
        elapsed_s = self.elapsed_s
        self.events.append(
            {
                "at": datetime.now(UTC).isoformat(),
                "elapsed_ms": round(elapsed_s * 1000),
                "kind": kind,
                "text": text,
            }
            | facts
        )
        style = _STYLES.get(kind, "white")
        self._console.print(f"[dim]{elapsed_s:6.1f} s[/dim]  [{style}]{kind:7}[/{style}]  ", end="")
        self._console.print(text, markup=False)

    def attempt(self, event: AttemptEvent) -> None:
        """Keep and show news of an attempt."""
        text = f"{event.attempt}: {event.kind.replace('_', ' ')}"
        if event.step:
            text += f": {event.step}"
        if event.result is not None:
            text += f" ({_outcome(event)})"
        facts: dict[str, Any] = {
            "attempt": event.attempt,
            "event": event.kind,
            "generation": event.generation,
        }
        if event.step:
            facts["step"] = event.step
        self.note("attempt", text, **facts)

    def table(self, attempts: tuple[AttemptResult, ...], *, winner: str | None) -> None:
        """Show the comparison."""
        table = Table(title="attempts", title_justify="left")
        for title in ("attempt", "state", "generation", "exit code", "outcome", "seconds", "tests"):
            table.add_column(
                title, justify="right" if title in ("generation", "exit code", "seconds") else "left"
            )
        for result in attempts:
            name = f"{result.name} *" if result.name == winner else result.name
            code = "-" if result.exit_code is None else str(result.exit_code)
            table.add_row(
                name,
                result.state,
                str(result.generation),
                code,
                result.outcome,
                f"{result.duration_ms / 1000:.1f}",
                last_line(result),
                style="bold green" if result.name == winner else None,
            )
        self._console.print(table)

    def text(self, text: str) -> None:
        """Show text that is part of the report and no event, such as a patch."""
        self._console.print(text, markup=False)


def last_line(result: AttemptResult) -> str:
    """Return pytest's count of tests from an attempt's last output, when it got so far."""
    lines = result.steps[-1].stdout.strip().splitlines() if result.steps else []
    return test_counts(lines[-1]) if lines and result.outcome == "exited" else "-"


def test_counts(summary: str) -> str:
    """Return the failed and passed tests of pytest's last line, without warnings, subtests and time."""
    parts = summary.strip("= ").split(" in ")[0].split(", ")
    return ", ".join(
        part for part in parts if part.endswith((" failed", " passed")) and "subtests" not in part
    )


def _outcome(event: AttemptEvent) -> str:
    assert event.result is not None
    result = event.result
    if result.outcome == "exited":
        return f"exit code {result.exit_code}"
    if result.oom_killed:
        return "killed for memory"
    return result.outcome
