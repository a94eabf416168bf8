from __future__ import annotations

import asyncio
import resource
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import pytest

from sandkeeper.core.errors import AlreadyExists, DataLoss, FailedPrecondition, Internal
from sandkeeper.store import committer as subject
from sandkeeper.store.committer import Committer
from sandkeeper.store.migrations import OWNER_LAYOUT

LINE = (
    "INSERT INTO events (tenant_id, machine_id, sandbox_id, kind, at, details)"
    " VALUES ('t', 'm', 's', 'k', 'a', ?)"
)


def line(details: str = "{}") -> Callable[[sqlite3.Connection], int]:
    return lambda connection: connection.execute(LINE, (details,)).lastrowid or 0


def lines(path: Path) -> list[int]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return [row[0] for row in connection.execute("SELECT seq FROM events ORDER BY seq")]


@asynccontextmanager
async def held_up(committer: Committer) -> AsyncIterator[None]:
    """Keep the committer's thread inside a transaction while the body queues entries behind it."""
    entered, leave = threading.Event(), threading.Event()

    def work(connection: sqlite3.Connection) -> None:
        connection.execute(LINE, ("{}",))
        entered.set()
        leave.wait()

    task = asyncio.ensure_future(committer.commit(work))
    await asyncio.to_thread(entered.wait)
    try:
        yield
    finally:
        leave.set()
    await task


@pytest.fixture
async def committer(tmp_path: Path) -> AsyncIterator[Committer]:
    committer = Committer(tmp_path / "owner.db", layout=OWNER_LAYOUT)
    await committer.open()
    yield committer
    await committer.close()


async def test_it_syncs_every_commit(committer: Committer) -> None:
    def settings(connection: sqlite3.Connection) -> tuple[str, int]:
        mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
        return mode, connection.execute("PRAGMA synchronous").fetchone()[0]

    full = 2
    assert await committer.commit(settings) == ("wal", full)


async def test_what_waits_shares_one_transaction(committer: Committer) -> None:
    counts: list[int] = []

    def work(connection: sqlite3.Connection) -> None:
        connection.execute(LINE, ("{}",))
        with closing(sqlite3.connect(committer.path)) as other:
            counts.append(other.execute("SELECT count(*) FROM events").fetchone()[0])

    async with held_up(committer):
        waiting = [asyncio.ensure_future(committer.commit(work)) for _ in range(5)]
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    assert counts == [1] * 5, "nobody outside sees an entry before the whole group is durable"
    assert lines(committer.path) == [1, 2, 3, 4, 5, 6]


async def test_a_defect_in_one_entry_spares_its_group(committer: Committer) -> None:
    def defect(connection: sqlite3.Connection) -> None:
        connection.execute(LINE, ("{}",))
        raise ZeroDivisionError

    def wrong(connection: sqlite3.Connection) -> None:
        connection.execute(LINE, ("{}",))
        connection.execute("INSERT INTO events (seq) VALUES (1)")

    async with held_up(committer):
        works = [line(), defect, line(), wrong, line()]
        waiting = [asyncio.ensure_future(committer.commit(work)) for work in works]
        await asyncio.sleep(0)
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [outcomes[0], outcomes[2], outcomes[4]] == [2, 3, 4]
    assert isinstance(outcomes[1], ZeroDivisionError)
    assert isinstance(outcomes[3], AlreadyExists)
    assert lines(committer.path) == [1, 2, 3, 4]


async def test_a_single_failing_entry_leaves_nothing(committer: Committer) -> None:
    def wrong(connection: sqlite3.Connection) -> None:
        connection.execute(LINE, ("{}",))
        connection.execute("SELECT * FROM nowhere")

    with pytest.raises(Internal) as failure:
        await committer.commit(wrong)
    assert failure.value.code == "journal_error"
    assert await committer.commit(line()) == 1


async def test_closing_finishes_what_was_asked_for(tmp_path: Path) -> None:
    committer = Committer(tmp_path / "owner.db", layout=OWNER_LAYOUT)
    await committer.open()
    async with held_up(committer):
        waiting = [asyncio.ensure_future(committer.commit(line())) for _ in range(300)]
        await asyncio.sleep(0)
        closing_it = asyncio.ensure_future(committer.close())
        await asyncio.sleep(0)
    await closing_it
    assert sorted(await asyncio.gather(*waiting)) == list(range(2, 302))
    with pytest.raises(FailedPrecondition) as refusal:
        await committer.commit(line())
    assert refusal.value.code == "journal_closed"
    assert not tmp_path.joinpath("owner.db-wal").exists(), "a clean close moves the whole log"


async def test_readers_and_checkpoints_are_no_second_writer(
    committer: Committer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "CHECKPOINT_AFTER", 3)
    for number in range(40):
        with closing(sqlite3.connect(f"file:{committer.path}?mode=ro", uri=True)) as reader:
            assert reader.execute("SELECT count(*) FROM events").fetchone()[0] == number
            assert await committer.commit(line()) == number + 1


@contextmanager
def file_size_limit(limit_bytes: int) -> Iterator[None]:
    """Make writes past `limit_bytes` of any file fail (EFBIG), as a broken disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_after_a_write_error_nothing_more_is_written(tmp_path: Path) -> None:
    path = tmp_path / "owner.db"
    committer = Committer(path, layout=OWNER_LAYOUT)
    await committer.open()
    assert await committer.commit(line()) == 1
    with file_size_limit(path.with_name("owner.db-wal").stat().st_size), pytest.raises(DataLoss) as failure:
        await committer.commit(line("x" * 10_000))
    assert (failure.value.code, failure.value.admitted) == ("journal_unwritable", "unknown")
    with pytest.raises(DataLoss) as refusal:
        await committer.commit(line())
    assert (refusal.value.code, refusal.value.admitted) == ("journal_unwritable", "no")
    await committer.close()

    again = Committer(path, layout=OWNER_LAYOUT)
    await again.open()
    assert lines(path) == [1]
    assert await again.commit(line()) == 2
    await again.close()


async def test_a_cancelled_open_leaves_no_thread(tmp_path: Path) -> None:
    opening = asyncio.ensure_future(Committer(tmp_path / "owner.db", layout=OWNER_LAYOUT).open())
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    for thread in threading.enumerate():
        if thread.name == "commit owner.db":
            await asyncio.to_thread(thread.join, 10)
            assert not thread.is_alive()


async def test_the_file_is_for_its_user_only(committer: Committer) -> None:
    await committer.commit(line())
    for suffix in ("", "-wal", "-shm", ".mark"):
        path = committer.path.with_name(f"owner.db{suffix}")
        assert path.stat().st_mode & 0o777 == 0o600, path
