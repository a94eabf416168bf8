"""Measures the figures of docs/performance.md: `python -m tests.bench [--json] [BENCH ...]`.

Owns which benches there are and how their figures are shown. Exit status: 0 when every target is met, 1 when one is
missed, 2 when a bench did not come to its end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import sys
import traceback
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench import (
    bench_crash,
    bench_data_plane,
    bench_exec,
    bench_journal,
    bench_launch,
    bench_memory,
    bench_neighbours,
    bench_scale,
    bench_snapshot,
    bench_streams,
)
from tests.bench.figure import Bench, Figure, rounded

BENCHES: dict[str, Bench] = {
    module.BENCH.name: module.BENCH
    for module in (
        bench_exec,
        bench_data_plane,
        bench_streams,
        bench_launch,
        bench_snapshot,
        bench_neighbours,
        bench_memory,
        bench_crash,
        bench_scale,
        bench_journal,
    )
}


def main() -> None:
    """Run the named benches, or all; ends the process with its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("bench", nargs="*", help=f"one or more of {', '.join(BENCHES)}; none means all")
    given = parser.parse_args()
    unknown = set(given.bench) - set(BENCHES)
    if unknown:
        parser.error(f"there is no bench {', '.join(sorted(unknown))}")
    console = Console(stderr=given.json)
    figures: dict[str, list[Figure]] = {}
    failures: dict[str, str] = {}
    for name in given.bench or BENCHES:
        console.print(f"[bold]{name}[/bold] ...")
        try:
            figures[name] = asyncio.run(_measured(BENCHES[name]))
        except Exception as error:  # noqa: BLE001 - the other benches go on
            failures[name] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
    if given.json:
        print(json.dumps(_document(figures, failures), indent=2))
    else:
        console.print(_table(figures))
    are_met = all(figure.is_met is not False for found in figures.values() for figure in found)
    sys.exit(2 if failures else 0 if are_met else 1)


async def _measured(bench: Bench) -> list[Figure]:
    """Measure; told to end by SIGTERM, it cleans up first, as after Ctrl-C."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with asyncio.timeout(bench.limit_s):
        return await bench.measure()


def _machine() -> dict[str, Any]:
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu_count": os.cpu_count(),
        "memory_mib": memory_bytes // 2**20,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": [round(load, 2) for load in os.getloadavg()],
    }


def _document(figures: dict[str, list[Figure]], failures: dict[str, str]) -> dict[str, Any]:
    return {
        "machine": _machine(),
        "benches": {name: [figure.document() for figure in found] for name, found in figures.items()},
        "failures": failures,
    }


def _table(figures: dict[str, list[Figure]]) -> Table:
    machine = _machine()
    table = Table(
        title=f"{machine['cpu_count']} CPUs, {machine['memory_mib']} MiB, load {machine['load'][0]}",
        show_lines=True,
    )
    for heading in ("bench", "figure", "size", "measured", "reference", "ratio", "target", "met"):
        table.add_column(heading)
    for name, found in figures.items():
        for figure in found:
            table.add_row(name, *_cells(figure))
    return table


def _cells(figure: Figure) -> tuple[str, ...]:
    reference = (
        "" if figure.reference is None else f"{rounded(figure.reference):g} {figure.unit}\n{figure.against}"
    )
    target = ""
    if figure.target is not None:
        bound = f"{rounded(figure.target.most):g}"
        target = f"ratio ≤ {bound}" if figure.target.of == "ratio" else f"≤ {bound} {figure.unit}"
    verdict = {None: "", True: "[green]yes[/green]", False: "[bold red]no[/bold red]"}[figure.is_met]
    ratio = "" if figure.ratio is None else f"{rounded(figure.ratio):g}"
    measured = f"{rounded(figure.measured):g} {figure.unit}"
    return (figure.what, figure.size, measured, reference, ratio, target, verdict)


if __name__ == "__main__":
    main()
