"""A read-only connection to one database file, for the rooms' readers.

Owns opening, closing and the error mapping of reads. Never writes, and never delays a writer: no call keeps a
read transaction open when it returns, so the log can always be moved.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import aiosqlite
from pydantic import BaseModel, ValidationError

from sandkeeper.core.errors import FailedPrecondition, NotFound, Unavailable
from sandkeeper.store.errors import closed, damaged, mapped
from sandkeeper.store.migrations import Layout

M = TypeVar("M", bound=BaseModel)
Row = tuple[Any, ...]


class ReadConnection:
    """One aiosqlite connection in read-only mode.

    It has a thread that keeps the process from exiting: whoever opens it closes it, on the way of an error too.
    """

    def __init__(self, path: Path, *, layout: Layout) -> None:
        self.path = path
        self._layout = layout
        self._connection: aiosqlite.Connection | None = None

    async def open(self) -> None:
        """Connect.

        Raises:
            NotFound: `journal_missing`; its writer has never been there.
            FailedPrecondition: `schema_newer`.
            Unavailable: `schema_older`; its writer has not brought it up yet.
        """
        if not self.path.exists():
            raise NotFound(
                f"there is no {self.path}", code="journal_missing", details={"path": str(self.path)}
            )
        with mapped(self.path, step="opening to read"):
            connection = await aiosqlite.connect(
                f"{self.path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None
            )
        connection.row_factory = sqlite3.Row
        self._connection = connection
        try:
            await self._refuse_other_versions()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Disconnect; safe to repeat."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()

    async def rows(self, statement: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """Run one query and return all of its rows."""
        return (await self.table(statement, parameters))[1]

    async def table(
        self, statement: str, parameters: Mapping[str, Any] | None = None
    ) -> tuple[list[str], list[Row]]:
        """Run one query and return its column names (none without rows) and all of its rows."""
        if self._connection is None:
            raise closed(self.path)
        with mapped(self.path, step="reading"):
            found = list(await self._connection.execute_fetchall(statement, parameters or {}))
        return (found[0].keys() if found else []), [tuple(row) for row in found]

    async def documents(
        self, statement: str, parameters: Mapping[str, Any] | None = None, *, model: type[M]
    ) -> list[M]:
        """Run one query whose first column is the JSON of a `model`, and return the models.

        Raises:
            DataLoss: `journal_damaged` for a document that is not one.
        """
        return [self.parsed(row[0], model=model) for row in await self.rows(statement, parameters)]

    def parsed(self, document: str, *, model: type[M]) -> M:
        """Return the model in `document`.

        Raises:
            DataLoss: `journal_damaged`.
        """
        try:
            return model.model_validate_json(document)
        except ValidationError as error:
            problem = f"a stored {model.__name__} cannot be read ({error.error_count()} faults)"
            raise damaged(self.path, problem=problem) from error

    async def _refuse_other_versions(self) -> None:
        version = (await self.rows("PRAGMA user_version"))[0][0]
        if version > self._layout.version:
            raise FailedPrecondition(
                f"{self.path.name} has schema {version}; this build knows up to {self._layout.version}",
                code="schema_newer",
                advice="use the newer build that wrote it",
            )
        if version < self._layout.version:
            raise Unavailable(
                f"{self.path.name} has schema {version}; its writer has not brought it to {self._layout.version}",
                code="schema_older",
                retry_after_s=1.0,
            )
