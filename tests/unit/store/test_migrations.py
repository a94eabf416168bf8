from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from sandkeeper.core.errors import FailedPrecondition, Internal, Unavailable
from sandkeeper.store.committer import Committer
from sandkeeper.store.migrations import OWNER_LAYOUT, Layout, Migration
from sandkeeper.store.reading import ReadConnection
from tests.unit.store.test_damage import contents, crashed_copy

COLOUR = Migration(to_version=2, statements=("ALTER TABLE sandboxes ADD COLUMN colour TEXT DEFAULT 'red'",))
SHAPE = Migration(to_version=3, statements=("ALTER TABLE sandboxes ADD COLUMN shape TEXT",))
BROKEN = Migration(to_version=3, statements=("CREATE TABLE half (x)", "ALTER TABLE nowhere ADD COLUMN x"))


def layout(*migrations: Migration) -> Layout:
    return replace(OWNER_LAYOUT, migrations=migrations)


async def open_and_close(path: Path, wanted: Layout) -> None:
    committer = Committer(path, layout=wanted)
    await committer.open()
    await committer.close()


def version_and_columns(path: Path) -> tuple[int, set[str]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        return version, {row[1] for row in connection.execute("PRAGMA table_info(sandboxes)")}


def count(path: Path) -> int:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return int(connection.execute("SELECT count(*) FROM sandboxes").fetchone()[0])


async def test_an_older_file_is_brought_up_after_a_backup(tmp_path: Path) -> None:
    folder = await crashed_copy(tmp_path)
    path, backup = folder / "owner.db", folder / "owner.db.v1.bak"
    before = count(path)
    await open_and_close(path, layout(COLOUR, SHAPE))
    version, columns = version_and_columns(path)
    assert version == 3
    assert {"colour", "shape"} <= columns
    assert count(path) == before
    version, columns = version_and_columns(backup)
    assert version == 1
    assert "colour" not in columns
    assert count(backup) == before, "the backup holds what was only in the log, too"
    assert backup.stat().st_mode & 0o777 == 0o600


async def test_a_backup_opens_as_the_older_file(tmp_path: Path) -> None:
    folder = await crashed_copy(tmp_path)
    await open_and_close(folder / "owner.db", layout(COLOUR))
    await open_and_close(folder / "owner.db.v1.bak", OWNER_LAYOUT)


async def test_a_failing_step_leaves_the_older_file(tmp_path: Path) -> None:
    folder = await crashed_copy(tmp_path)
    path = folder / "owner.db"
    with pytest.raises(Internal) as failure:
        await open_and_close(path, layout(COLOUR, BROKEN))
    assert failure.value.code == "migration_failed"
    assert "owner.db.v1.bak" in failure.value.advice
    version, columns = version_and_columns(path)
    assert version == 1
    assert "colour" not in columns
    await open_and_close(path, layout(COLOUR, SHAPE))
    assert version_and_columns(path)[0] == 3


async def test_a_newer_file_is_refused_and_untouched(tmp_path: Path) -> None:
    folder = await crashed_copy(tmp_path)
    path = folder / "owner.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 2")
    before = contents(folder)
    with pytest.raises(FailedPrecondition) as refusal:
        await open_and_close(path, OWNER_LAYOUT)
    assert refusal.value.code == "schema_newer"
    assert refusal.value.details["version"] == 2
    assert contents(folder) == before


async def test_opening_twice_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "owner.db"
    await open_and_close(path, layout(COLOUR))
    await open_and_close(path, layout(COLOUR))
    assert [found.name for found in tmp_path.glob("*.bak")] == []


async def test_a_reader_refuses_other_versions(tmp_path: Path) -> None:
    path = tmp_path / "owner.db"
    await open_and_close(path, OWNER_LAYOUT)
    with pytest.raises(Unavailable) as older:
        await ReadConnection(path, layout=layout(COLOUR)).open()
    assert older.value.code == "schema_older"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 2")
    with pytest.raises(FailedPrecondition) as newer:
        await ReadConnection(path, layout=OWNER_LAYOUT).open()
    assert newer.value.code == "schema_newer"
