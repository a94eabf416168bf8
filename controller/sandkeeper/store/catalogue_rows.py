"""A catalogue model as a row of its table, and back: columns are the model's fields.

Owns the two directions. Never writes.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeVar

from pydantic import BaseModel

from sandkeeper.store.entries import moment_text

M = TypeVar("M", bound=BaseModel)

_JSON_FIELDS = frozenset({"facts", "document", "parameters"})


def to_row(model: BaseModel) -> dict[str, Any]:
    """Return the model's fields as column values: moments as text, documents as JSON, the rest as it is."""
    return {name: _column(name, value) for name, value in model}


def from_row(names: Sequence[str], values: Sequence[Any], *, model: type[M]) -> M:
    """Return the model of a row; raises pydantic's ValidationError for a row that is none."""
    fields = {
        name: json.loads(value) if name in _JSON_FIELDS and value is not None else value
        for name, value in zip(names, values, strict=True)
    }
    return model.model_validate(fields)


def select_one(
    connection: sqlite3.Connection, statement: str, parameters: dict[str, Any], *, model: type[M]
) -> M | None:
    """Return the one row a query finds, as its model."""
    cursor = connection.execute(statement, parameters)
    row = cursor.fetchone()
    return None if row is None else from_row([column[0] for column in cursor.description], row, model=model)


def _column(name: str, value: Any) -> Any:
    if name in _JSON_FIELDS and value is not None:
        return json.dumps(value)
    if isinstance(value, datetime):
        return moment_text(value)
    return value
