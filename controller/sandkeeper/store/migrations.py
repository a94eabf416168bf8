"""Schema versions: a new file is made at the newest one, an older file is brought there, a newer is refused.

Owns the version numbers and the one-way steps between them. Never runs a step before a backup of the whole
file is durable beside it, and never opens a newer file for writing.
"""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import MetaData
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from sandkeeper.core.errors import FailedPrecondition, Internal, SandkeeperError
from sandkeeper.store.errors import from_sqlite
from sandkeeper.store.schema import CATALOGUE_TABLES, OWNER_TABLES

APPLICATION_ID = 0x5A6E644B
"""Marks a SQLite file as ours (`PRAGMA application_id`)."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step: `statements` turn a file of version `to_version - 1` into one of `to_version`."""

    to_version: int
    statements: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """What one kind of file looks like.

    Attributes:
        tables: The tables at the newest version.
        log_table: Its append-only table, whose `seq` runs 1, 2, 3 ... without gaps.
        migrations: Steps from version 1 on, in order.
    """

    tables: MetaData
    log_table: str
    migrations: tuple[Migration, ...] = ()

    @property
    def version(self) -> int:
        """The newest version."""
        return 1 + len(self.migrations)


OWNER_LAYOUT = Layout(tables=OWNER_TABLES, log_table="events")
CATALOGUE_LAYOUT = Layout(tables=CATALOGUE_TABLES, log_table="changes")


def stored_version(connection: sqlite3.Connection) -> int:
    """Return the file's schema version; 0 for a file without tables."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def refuse_foreign(connection: sqlite3.Connection, *, path: Path, layout: Layout) -> None:
    """Raise unless the file is empty, or ours and not newer than `layout`. Reads only.

    Raises:
        FailedPrecondition: `schema_newer` or `schema_foreign`.
    """
    version = stored_version(connection)
    mark = connection.execute("PRAGMA application_id").fetchone()[0]
    is_empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
    if not is_empty and (mark != APPLICATION_ID or version < 1):
        raise FailedPrecondition(
            f"{path.name} is not a file of Sandkeeper",
            code="schema_foreign",
            advice=f"move {path} away; it was not changed",
            details={"path": str(path)},
        )
    if version > layout.version:
        raise FailedPrecondition(
            f"{path.name} has schema {version}; this build knows up to {layout.version}",
            code="schema_newer",
            advice="use the newer build that wrote it, or its backup (*.bak); the file was not changed",
            details={"path": str(path), "version": version, "known": layout.version},
        )


def bring_up(connection: sqlite3.Connection, *, path: Path, layout: Layout) -> Path | None:
    """Create the tables of an empty file, or bring an older one to the newest version.

    Everything happens in one transaction: after a crash the file is at the old version or at the new one.

    Returns:
        The backup made before the steps, or None when there was nothing to bring up.

    Raises:
        Internal: `migration_failed`, naming the step and the backup; the file is as before.
        ResourceExhausted: `disk_full`.
    """
    version = stored_version(connection)
    if version == layout.version:
        return None
    if version == 0:
        _apply(connection, statements=_creation(layout), version=layout.version)
        return None
    backup = _backup(connection, path=path, version=version)
    steps = [step for step in layout.migrations if step.to_version > version]
    try:
        statements = [statement for step in steps for statement in step.statements]
        _apply(connection, statements=statements, version=layout.version)
    except sqlite3.Error as error:
        raise _failed(error, path=path, version=version, layout=layout, backup=backup) from error
    return backup


def _creation(layout: Layout) -> list[str]:
    dialect = sqlite.dialect()
    statements = [f"PRAGMA application_id = {APPLICATION_ID}"]
    for table in layout.tables.sorted_tables:
        statements.append(str(CreateTable(table).compile(dialect=dialect)))
        indexes = sorted(table.indexes, key=lambda index: str(index.name))
        statements.extend(str(CreateIndex(index).compile(dialect=dialect)) for index in indexes)
    return statements


def _apply(connection: sqlite3.Connection, *, statements: list[str], version: int) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in statements:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _backup(connection: sqlite3.Connection, *, path: Path, version: int) -> Path:
    """Copy the file, its -wal included, to `<name>.v<version>.bak`; whole and durable, or not there."""
    backup = path.with_name(f"{path.name}.v{version}.bak")
    part = backup.with_name(f"{backup.name}.part")
    part.unlink(missing_ok=True)
    os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    target = sqlite3.connect(part)
    try:
        connection.backup(target)
    finally:
        target.close()
    sync_file(part)
    part.replace(backup)
    sync_file(backup.parent)
    return backup


def sync_file(path: Path) -> None:
    """Make a file's content, or a folder's entries, durable.

    Never for a database that is open in this process: closing any descriptor of it drops SQLite's locks.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _failed(
    error: sqlite3.Error, *, path: Path, version: int, layout: Layout, backup: Path
) -> SandkeeperError:
    mapped = from_sqlite(error, path=path, step=f"migration from schema {version} to {layout.version}")
    if not isinstance(mapped, Internal):
        return mapped
    return Internal(
        f"{mapped.message}; the file is still at schema {version}",
        code="migration_failed",
        advice=f"use the older build and report this; a backup is in {backup.name}",
        details={**mapped.details, "backup": str(backup)},
    )
