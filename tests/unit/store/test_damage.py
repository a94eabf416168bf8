"""What opening does with a file that does not hold what was acknowledged: it says so and touches nothing."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from sandkeeper.core.errors import DataLoss, FailedPrecondition
from tests.support.store_samples import held_lock, owner_journal, sample_entry, sample_record

ENTRY_COUNT = 12


async def crashed_copy(tmp_path: Path, *, marked: int = ENTRY_COUNT) -> Path:
    """Return a folder as a crash leaves it: all entries in the log, the last `marked` of them acknowledged."""
    live, dead = tmp_path / "live", tmp_path / "dead"
    live.mkdir()
    dead.mkdir()
    lock = held_lock(live)
    async with owner_journal(live, lock) as journal:
        for number in range(ENTRY_COUNT):
            if number == marked:
                shutil.copy(live / "owner.db.mark", dead / "owner.db.mark")
            await journal.commit(sample_entry(sample_record(number)))
        for name in ("owner.db", "owner.db-wal", "owner.db.mark"):
            if not (dead / name).exists():
                # Never open and close a live database in its own process: read it through another one.
                assert os.spawnlp(os.P_WAIT, "cp", "cp", str(live / name), str(dead / name)) == 0
    lock.release()
    return dead


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files that hold something; any reader may make an empty log and an index of the log."""
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if not path.name.endswith(("-shm", ".lock"))
        and not (path.name.endswith("-wal") and not path.stat().st_size)
    }


async def opened_lines(folder: Path) -> list[int]:
    lock = held_lock(folder)
    try:
        async with owner_journal(folder, lock) as journal:
            return [line.seq for line in await journal.events()]
    finally:
        lock.release()


def cut(path: Path, *, cut_bytes: int) -> None:
    os.truncate(path, path.stat().st_size - cut_bytes)


async def test_a_crash_loses_nothing(tmp_path: Path) -> None:
    assert await opened_lines(await crashed_copy(tmp_path)) == list(range(1, ENTRY_COUNT + 1))


async def test_a_torn_tail_that_was_never_acknowledged_is_dropped(tmp_path: Path) -> None:
    folder = await crashed_copy(tmp_path, marked=ENTRY_COUNT - 1)
    cut(folder / "owner.db-wal", cut_bytes=100)
    assert await opened_lines(folder) == list(range(1, ENTRY_COUNT))


@pytest.mark.parametrize("cut_bytes", [100, 30_000])
async def test_a_cut_through_acknowledged_entries_is_reported(tmp_path: Path, cut_bytes: int) -> None:
    folder = await crashed_copy(tmp_path)
    cut(folder / "owner.db-wal", cut_bytes=cut_bytes)
    before = contents(folder)
    with pytest.raises(DataLoss) as damage:
        await opened_lines(folder)
    assert damage.value.code == "journal_damaged"
    assert f"to {ENTRY_COUNT} were acknowledged and are gone" in damage.value.message
    assert "owner.db" in damage.value.advice
    assert contents(folder) == before

    (folder / "owner.db.mark").unlink()
    kept = await opened_lines(folder)
    assert kept == list(range(1, len(kept) + 1)), "what is left is a prefix"
    assert len(kept) < ENTRY_COUNT


def _move_log(folder: Path) -> None:
    """Move the log into the database, where it no longer hides what happens to the database's own pages."""
    with closing(sqlite3.connect(folder / "owner.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _garbage(folder: Path) -> None:
    _move_log(folder)
    with (folder / "owner.db").open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096)


def _not_a_database(folder: Path) -> None:
    _move_log(folder)
    (folder / "owner.db").write_bytes(b"not a database at all" * 400)


def _empty(folder: Path) -> None:
    (folder / "owner.db-wal").unlink()
    os.truncate(folder / "owner.db", 0)


def _missing(folder: Path) -> None:
    (folder / "owner.db-wal").unlink()
    (folder / "owner.db").unlink()
    (folder / "owner.db").touch()


def _hole(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "owner.db")) as connection:
        connection.execute("DELETE FROM events WHERE seq BETWEEN 3 AND 4")
        connection.commit()


def _bad_mark(folder: Path) -> None:
    (folder / "owner.db.mark").write_text("twelve")


@pytest.mark.parametrize("damage", [_garbage, _not_a_database, _empty, _missing, _hole, _bad_mark])
async def test_damage_is_reported_and_left_alone(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    folder = await crashed_copy(tmp_path)
    damage(folder)
    before = contents(folder)
    with pytest.raises(DataLoss) as raised:
        await opened_lines(folder)
    assert raised.value.code == "journal_damaged"
    assert contents(folder) == before


async def test_a_mark_the_disk_never_got_knows_nothing(tmp_path: Path) -> None:
    folder = await crashed_copy(tmp_path)
    (folder / "owner.db.mark").write_bytes(b"\0" * 21)
    assert len(await opened_lines(folder)) == ENTRY_COUNT


async def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "owner.db")) as connection:
        connection.execute("CREATE TABLE theirs (x)")
        connection.commit()
    before = contents(tmp_path)
    with pytest.raises(FailedPrecondition) as refusal:
        await opened_lines(tmp_path)
    assert refusal.value.code == "schema_foreign"
    assert contents(tmp_path) == before
