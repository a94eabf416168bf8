"""Opening one database file for writing: looked at first, then brought up, then trusted.

Owns the connection's settings and the checks before the first write. Never opens a file for writing that is
damaged, foreign, newer, or holds less than was acknowledged: such a file, and its -wal, stay as they are.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from sandkeeper.store.errors import damaged, mapped
from sandkeeper.store.mark import HighWaterMark
from sandkeeper.store.migrations import Layout, bring_up, refuse_foreign, sync_file

_BUSY_TIMEOUT_S = 5.0
_SETTINGS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    # The committer moves the log into the database itself, between two groups.
    "PRAGMA wal_autocheckpoint = 0",
    "PRAGMA journal_size_limit = 67108864",
    "PRAGMA trusted_schema = OFF",
)


def open_for_writing(path: Path, *, layout: Layout, mark: HighWaterMark) -> sqlite3.Connection:
    """Return a connection in autocommit mode, usable by the calling thread only.

    Raises:
        DataLoss: `journal_damaged` or `journal_unwritable`.
        FailedPrecondition: `schema_newer` or `schema_foreign`.
        ResourceExhausted: `disk_full`.
    """
    with mapped(path, step="opening"):
        _make_file(path)
        if path.stat().st_size > 0 or path.with_name(f"{path.name}-wal").exists():
            _check(path, layout=layout, mark=mark)
        elif mark.read() > 0:
            raise damaged(path, problem="it is empty, yet entries were acknowledged")
        connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None)
        try:
            for setting in _SETTINGS:
                connection.execute(setting).fetchall()
            bring_up(connection, path=path, layout=layout)
            mark.open()
        except BaseException:
            connection.close()
            raise
        return connection


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Return a read-only connection; its close never touches the -wal file."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT_S, isolation_level=None)


def last_seq(connection: sqlite3.Connection, *, layout: Layout) -> int:
    """Return the newest seq of the file's log table; 0 when it is empty."""
    return int(connection.execute(f"SELECT coalesce(max(seq), 0) FROM {layout.log_table}").fetchone()[0])


def _make_file(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return
    os.close(fd)
    sync_file(path.parent)
    sync_file(path.parent.parent)


def _check(path: Path, *, layout: Layout, mark: HighWaterMark) -> None:
    """Raise unless the file is whole, ours, and holds everything acknowledged. Reads only."""
    with closing(open_for_reading(path)) as connection:
        refuse_foreign(connection, path=path, layout=layout)
        problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise damaged(path, problem=str(problem))
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        first, last, count = (0, 0, 0) if not tables else _log_extent(connection, layout=layout)
        if count and last - first + 1 != count:
            raise damaged(
                path, problem=f"{last - first + 1 - count} entries are missing among {first}-{last}"
            )
        acknowledged = mark.read()
        if last < acknowledged:
            raise damaged(
                path, problem=f"entries {last + 1} to {acknowledged} were acknowledged and are gone"
            )


def _log_extent(connection: sqlite3.Connection, *, layout: Layout) -> tuple[int, int, int]:
    row = connection.execute(
        f"SELECT coalesce(min(seq), 0), coalesce(max(seq), 0), count(*) FROM {layout.log_table}"
    ).fetchone()
    return int(row[0]), int(row[1]), int(row[2])
