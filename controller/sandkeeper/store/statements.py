"""SQL text made once from the schema, for the append path.

Owns compiling; SQLAlchemy is asked at import, never per commit (it costs ten times the commit itself).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Table
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql.elements import ClauseElement


def compiled(statement: ClauseElement) -> str:
    """Return the statement as SQLite text with `:name` parameters."""
    return str(statement.compile(dialect=sqlite.dialect(paramstyle="named")))


def insert(table: Table) -> str:
    """Return an insert of every column but an automatic `seq`; each parameter is named as its column."""
    return compiled(sqlite.insert(table).values(_placeholders(table)))


def insert_first(table: Table) -> str:
    """Return an insert that leaves a row with the same key as it is."""
    return compiled(sqlite.insert(table).values(_placeholders(table)).on_conflict_do_nothing())


def upsert(table: Table) -> str:
    """Return an insert that replaces every other column of a row with the same key."""
    statement = sqlite.insert(table).values(_placeholders(table))
    keys = [column.name for column in table.primary_key]
    others = {
        column.name: statement.excluded[column.name] for column in table.columns if column.name not in keys
    }
    return compiled(statement.on_conflict_do_update(index_elements=keys, set_=others))


def _placeholders(table: Table) -> dict[str, Any]:
    return {column.name: None for column in table.columns if column.name != "seq"}
