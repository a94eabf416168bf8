"""Progress of long work, on stderr: a bar on a terminal, a line per step elsewhere, nothing with `--json`.

Owns the look. What is going on is told by whoever does it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sandkeeper.cli.speech import note


@contextmanager
def bytes_bar(title: str, *, total_bytes: int | None, is_json: bool) -> Iterator[Callable[[int], None]]:
    """Show how many bytes have gone; yields the function to tell the count so far."""
    if is_json or not sys.stderr.isatty():
        yield lambda _done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total_bytes)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def count_bar(title: str, *, total: int, is_json: bool) -> Iterator[Callable[[], None]]:
    """Show how many of `total` are done; yields the function to call after each."""
    if is_json or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)


@contextmanager
def steps_shown(*, is_json: bool) -> Iterator[Callable[[str, str], None]]:
    """Show named steps; yields a function of step and message. On a terminal the running one spins."""
    if is_json:
        yield lambda _step, _message: None
        return
    if not sys.stderr.isatty():
        yield lambda step, message: note(f"{step}: {message}")
        return
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True)
    with console.status("working") as status:

        def show(step: str, message: str) -> None:
            console.print(f"{step}: {message}", highlight=False, markup=False)
            status.update(escape(f"{step}: {message}"))

        yield show
