"""The edge of the store: what sqlite3 and the operating system raise, mapped once to our errors.

Owns the meaning of SQLite's result codes for us. Never decides whether a write is repeated.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandkeeper.core.errors import (
    Admitted,
    AlreadyExists,
    DataLoss,
    FailedPrecondition,
    Internal,
    ResourceExhausted,
    SandkeeperError,
    Unavailable,
)

_PRIMARY_MASK = 0xFF
_NO_SPACE = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE})
_UNWRITABLE = frozenset(
    {
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_NOLFS,
        sqlite3.SQLITE_PROTOCOL,
    }
)
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


def result_code(error: sqlite3.Error) -> int:
    """Return SQLite's extended result code of `error`; 0 when the error came from the Python layer."""
    return getattr(error, "sqlite_errorcode", None) or 0


def primary_code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code of `error`; 0 when the error came from the Python layer."""
    return result_code(error) & _PRIMARY_MASK


def is_entry_fault(error: sqlite3.Error) -> bool:
    """Return whether `error` concerns one statement only, so that the transaction around it is still good."""
    good = (
        0,
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_TOOBIG,
    )
    return primary_code(error) in (*good, sqlite3.SQLITE_RANGE)


def damaged(path: Path, *, problem: str) -> DataLoss:
    """Return the error for a file that does not hold what was acknowledged."""
    return DataLoss(
        f"{path.name} is damaged: {problem}",
        code="journal_damaged",
        advice=(
            f"nothing was changed or deleted; copy {path} with its -wal and .mark files aside, then put a"
            " backup (*.bak) or `sqlite3 .recover` output in its place, and remove the .mark file to accept"
            " what is missing"
        ),
        details={"path": str(path), "problem": problem},
    )


def from_sqlite(error: sqlite3.Error, *, path: Path, step: str, admitted: Admitted = "no") -> SandkeeperError:
    """Return our error for one of SQLite's.

    Args:
        error: What was raised.
        path: The database file.
        step: What was being done, for the message.
        admitted: Whether the write may have become durable all the same.
    """
    code, primary = result_code(error), primary_code(error)
    text = f"{step} on {path.name}: {error}"
    details = {"path": str(path), "sqlite_code": code}
    if primary in _NO_SPACE or code in _NO_SPACE:
        return disk_full(path, step=step)
    if primary in _DAMAGED:
        return damaged(path, problem=str(error))
    if primary in _UNWRITABLE:
        return unwritable(path, problem=text, admitted=admitted)
    if primary in _BUSY:
        return Unavailable(text, code="journal_busy", retry_after_s=1.0, admitted=admitted, details=details)
    if primary == sqlite3.SQLITE_CONSTRAINT:
        return AlreadyExists(text, code="row_conflict", details=details)
    return Internal(text, code="journal_error", admitted=admitted, details=details)


def disk_full(path: Path, *, step: str) -> ResourceExhausted:
    """Return the error for a write refused because the file system has no room; nothing was changed."""
    return ResourceExhausted(
        f"{step} on {path.name}: no space left on its file system; nothing was changed",
        code="disk_full",
        advice=f"free space on the file system of {path.parent}, then repeat with the same request id",
        retry_after_s=5.0,
        details={"path": str(path)},
    )


def unwritable(path: Path, *, problem: str, admitted: Admitted = "unknown") -> DataLoss:
    """Return the error for a file whose writes cannot be trusted any more."""
    return DataLoss(
        problem,
        code="journal_unwritable",
        advice=f"check the disk under {path.parent}; what was acknowledged is read again when it is reopened",
        admitted=admitted,
        details={"path": str(path)},
    )


def from_os(error: OSError, *, path: Path, step: str) -> SandkeeperError:
    """Return our error for an operating system error on a file of the store."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_full(path, step=step)
    return unwritable(path, problem=f"{step} on {path.name}: {error.strerror or error}", admitted="no")


def closed(path: Path) -> FailedPrecondition:
    """Return the error for a use after close."""
    return FailedPrecondition(f"{path.name} is closed", code="journal_closed", details={"path": str(path)})


@contextmanager
def mapped(path: Path, *, step: str) -> Iterator[None]:
    """Map what the body raises from SQLite or the operating system; ours passes through."""
    try:
        yield
    except sqlite3.Error as error:
        raise from_sqlite(error, path=path, step=step) from error
    except OSError as error:
        raise from_os(error, path=path, step=step) from error
