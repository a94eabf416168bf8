"""What one durable journal entry costs, alone and in company.

All figures of a run come from the same disk and minute, so that the ratios mean something elsewhere too:
    bare            the same rows by plain sqlite3 in the calling thread, one transaction each: the floor
    single          one writer through the committer
    grouped         a hundred writers through the committer
    aiosqlite       the same rows by aiosqlite, a hop to its thread per statement: what the append path avoids
"""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import aiosqlite

from sandkeeper.core.events import StartRequested
from sandkeeper.store import journal_rows, schema
from sandkeeper.store.database import open_for_writing
from sandkeeper.store.entries import JournalEntry
from sandkeeper.store.journal import OwnerJournal
from sandkeeper.store.mark import HighWaterMark
from sandkeeper.store.migrations import OWNER_LAYOUT
from sandkeeper.store.statements import insert, upsert
from tests.bench.figure import Bench, Figure
from tests.support.store_samples import START, held_lock, owner_journal, sample_entry, sample_record

PUT_RECORD = upsert(schema.sandboxes)
PUT_EVENT = insert(schema.events)

ROUNDS = 3
SINGLE_COUNT = 400
GROUPED_COUNT = 6000
WRITERS = 100
SANDBOXES = 64


def entry(number: int) -> JournalEntry:
    """Return an ordinary entry: a record of a sandbox and a lifecycle event."""
    record = sample_record(number % SANDBOXES)
    return sample_entry(record, kind="start_requested", at=START, event=StartRequested())


def figures(count: int, *, wall_s: float, cpu_s: float, waits_s: list[float]) -> dict[str, float]:
    waits = sorted(waits_s)
    return {
        "commits_per_s": round(count / wall_s),
        "cpu_us_per_commit": round(cpu_s / count * 1e6, 1),
        "p50_ms": round(statistics.median(waits) * 1e3, 3),
        "p99_ms": round(waits[int(len(waits) * 0.99)] * 1e3, 3),
    }


async def measured(count: int, *, writers: int, one: Callable[[int], Awaitable[object]]) -> dict[str, float]:
    waits_s: list[float] = []

    async def write(first: int) -> None:
        for number in range(first, count, writers):
            began_s = time.perf_counter()
            await one(number)
            waits_s.append(time.perf_counter() - began_s)

    began_s, cpu_s = time.perf_counter(), time.process_time()
    await asyncio.gather(*(write(first) for first in range(writers)))
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    return figures(count, wall_s=wall_s, cpu_s=cpu_s, waits_s=waits_s)


async def bare(folder: Path) -> dict[str, float]:
    path = folder / "bare.db"
    with closing(open_for_writing(path, layout=OWNER_LAYOUT, mark=HighWaterMark(path))) as connection:

        async def one(number: int) -> None:
            _write_bare(connection, entry(number))

        return await measured(SINGLE_COUNT, writers=1, one=one)


def _write_bare(connection: sqlite3.Connection, written: JournalEntry) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(PUT_RECORD, journal_rows.record_row(written.record))
    connection.execute(PUT_EVENT, journal_rows.event_row(written))
    connection.execute("COMMIT")


async def through_journal(opened: OwnerJournal, *, count: int, writers: int) -> dict[str, float]:
    return await measured(count, writers=writers, one=lambda number: opened.commit(entry(number)))


async def through_aiosqlite(folder: Path) -> dict[str, float]:
    path = folder / "aio.db"
    open_for_writing(path, layout=OWNER_LAYOUT, mark=HighWaterMark(path)).close()
    async with aiosqlite.connect(path, isolation_level=None) as connection:
        await connection.execute("PRAGMA synchronous = FULL")

        async def one(number: int) -> None:
            written = entry(number)
            await connection.execute("BEGIN IMMEDIATE")
            await connection.execute(PUT_RECORD, journal_rows.record_row(written.record))
            await connection.execute(PUT_EVENT, journal_rows.event_row(written))
            await connection.commit()

        return await measured(SINGLE_COUNT, writers=1, one=one)


async def one_round(folder: Path) -> dict[str, dict[str, float]]:
    lock = held_lock(folder)
    found = {"bare": await bare(folder)}
    async with owner_journal(folder, lock) as opened:
        await through_journal(opened, count=50, writers=1)
        found["single"] = await through_journal(opened, count=SINGLE_COUNT, writers=1)
        found["grouped"] = await through_journal(opened, count=GROUPED_COUNT, writers=WRITERS)
    found["aiosqlite"] = await through_aiosqlite(folder)
    lock.release()
    return found


async def measure() -> list[Figure]:
    """Measure in rounds of their own files and return the medians."""
    rounds = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory(prefix="sk-bench-") as folder:
            rounds.append(await one_round(Path(folder)))
    middle = {
        kind: {name: statistics.median(each[kind][name] for each in rounds) for name in rounds[0][kind]}
        for kind in rounds[0]
    }

    def compared(what: str, size: str, over: str, under: str, *, figure: str, unit: str) -> Figure:
        return Figure(what, size, unit, middle[over][figure], middle[under][figure], under)

    single, company = f"{SINGLE_COUNT} entries", f"{GROUPED_COUNT} entries, {WRITERS} writers"
    cpu, rate = "cpu_us_per_commit", "commits_per_s"
    return [
        compared("one entry, p50", single, "single", "bare", figure="p50_ms", unit="ms"),
        compared("CPU of one entry", single, "single", "bare", figure=cpu, unit="us"),
        compared("CPU of one entry by aiosqlite", single, "aiosqlite", "single", figure=cpu, unit="us"),
        compared("CPU of one entry in company", company, "grouped", "single", figure=cpu, unit="us"),
        compared("entries in company", company, "grouped", "single", figure=rate, unit="per s"),
    ]


BENCH = Bench("journal", 60.0, measure)
