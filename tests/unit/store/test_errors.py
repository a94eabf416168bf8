from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

import pytest

from sandkeeper.core.errors import SandkeeperError
from sandkeeper.store.errors import from_os, from_sqlite, is_entry_fault, mapped

PATH = Path("/state/owners/o/owner.db")


def sqlite_error(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("it says so")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("code", "category", "expected"),
    [
        (sqlite3.SQLITE_FULL, "ResourceExhausted", "disk_full"),
        (sqlite3.SQLITE_IOERR_SHMSIZE, "ResourceExhausted", "disk_full"),
        (sqlite3.SQLITE_IOERR_FSYNC, "DataLoss", "journal_unwritable"),
        (sqlite3.SQLITE_IOERR_WRITE, "DataLoss", "journal_unwritable"),
        (sqlite3.SQLITE_READONLY, "DataLoss", "journal_unwritable"),
        (sqlite3.SQLITE_CANTOPEN, "DataLoss", "journal_unwritable"),
        (sqlite3.SQLITE_CORRUPT, "DataLoss", "journal_damaged"),
        (sqlite3.SQLITE_NOTADB, "DataLoss", "journal_damaged"),
        (sqlite3.SQLITE_BUSY, "Unavailable", "journal_busy"),
        (sqlite3.SQLITE_CONSTRAINT_UNIQUE, "AlreadyExists", "row_conflict"),
        (sqlite3.SQLITE_ERROR, "Internal", "journal_error"),
    ],
)
def test_each_result_code_has_one_meaning(code: int, category: str, expected: str) -> None:
    error = from_sqlite(sqlite_error(code), path=PATH, step="commit")
    assert (error.category, error.code) == (category, expected)
    assert "owner.db" in error.message


def test_a_python_layer_error_is_our_defect() -> None:
    error = from_sqlite(sqlite3.ProgrammingError("wrong thread"), path=PATH, step="commit")
    assert (error.category, error.code) == ("Internal", "journal_error")


@pytest.mark.parametrize(
    ("number", "expected"),
    [(errno.ENOSPC, "disk_full"), (errno.EDQUOT, "disk_full"), (errno.EIO, "journal_unwritable")],
)
def test_each_errno_has_one_meaning(number: int, expected: str) -> None:
    assert from_os(OSError(number, "it says so"), path=PATH, step="opening").code == expected


def test_only_a_statement_s_own_fault_spares_the_group() -> None:
    assert is_entry_fault(sqlite_error(sqlite3.SQLITE_CONSTRAINT_UNIQUE))
    assert is_entry_fault(sqlite3.ProgrammingError("binding 1 has no value"))
    assert not is_entry_fault(sqlite_error(sqlite3.SQLITE_FULL))
    assert not is_entry_fault(sqlite_error(sqlite3.SQLITE_IOERR_WRITE))
    assert not is_entry_fault(sqlite_error(sqlite3.SQLITE_CORRUPT))


def test_the_cause_is_kept() -> None:
    cause = sqlite_error(sqlite3.SQLITE_CORRUPT)
    with pytest.raises(SandkeeperError) as raised, mapped(PATH, step="reading"):
        raise cause
    assert raised.value.__cause__ is cause
    assert "copy" in raised.value.advice
