"""Reservations inside one transaction of the catalogue.

Owns the rule which create gets a request id and a name. Never commits: the committer does.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from sandkeeper.core.errors import AlreadyExists
from sandkeeper.store import schema
from sandkeeper.store.catalogue_entries import Reservation, Reserved
from sandkeeper.store.catalogue_rows import select_one, to_row
from sandkeeper.store.statements import insert

_RESERVE = insert(schema.reservations)
_BY_REQUEST = "SELECT * FROM reservations WHERE tenant_id = :tenant_id AND request_id = :request_id"
_BY_NAME = "SELECT sandbox_id FROM reservations WHERE tenant_id = :tenant_id AND name = :name AND released_at IS NULL"
_RELEASE = "UPDATE reservations SET released_at = :at WHERE sandbox_id = :sandbox_id AND released_at IS NULL"
_RESIZE = (
    "UPDATE reservations SET memory_mib = :memory_mib WHERE sandbox_id = :sandbox_id AND released_at IS NULL"
)
_FORGET_RELEASED = (
    "DELETE FROM reservations WHERE tenant_id = :tenant_id AND request_id = :request_id"
    " AND released_at IS NOT NULL"
)
_PRUNE = "DELETE FROM reservations WHERE released_at < :before"


def reserve(connection: sqlite3.Connection, wanted: Reservation) -> Reserved:
    """Take the request id and the name, or find what the same request took before.

    Raises:
        AlreadyExists: `request_id_conflict` for another fingerprint under the id, or `name_taken`.
    """
    row = to_row(wanted)
    kept = select_one(connection, _BY_REQUEST, row, model=Reservation)
    if kept is not None:
        return _repeated(kept, wanted=wanted)
    taken = connection.execute(_BY_NAME, row).fetchone()
    if taken is not None:
        raise AlreadyExists(
            f"the name {wanted.name} is taken by sandbox {taken[0]}",
            code="name_taken",
            advice="choose another name, or destroy that sandbox",
            sandbox_id=taken[0],
            request_id=wanted.request_id,
        )
    connection.execute(_RESERVE, row)
    return Reserved(wanted, is_new=True)


def release(connection: sqlite3.Connection, wanted: dict[str, Any]) -> bool:
    """Free name and memory of `sandbox_id` as of `at`; return whether they were taken till now."""
    return connection.execute(_RELEASE, wanted).rowcount == 1


def resize(connection: sqlite3.Connection, wanted: dict[str, Any]) -> bool:
    """Set the `memory_mib` of `sandbox_id`; return whether it has an unreleased reservation."""
    return connection.execute(_RESIZE, wanted).rowcount == 1


def prune(connection: sqlite3.Connection, wanted: dict[str, Any]) -> int:
    """Forget what was released before `before`; return how many."""
    return connection.execute(_PRUNE, wanted).rowcount


def forget_released(connection: sqlite3.Connection, wanted: dict[str, Any]) -> bool:
    """Forget the released reservation of a request; return whether there was one."""
    return connection.execute(_FORGET_RELEASED, wanted).rowcount == 1


def _repeated(kept: Reservation, *, wanted: Reservation) -> Reserved:
    if kept.fingerprint != wanted.fingerprint:
        raise AlreadyExists(
            f"request {wanted.request_id} was made before with other parameters",
            code="request_id_conflict",
            advice="use a new request id for a different request",
            sandbox_id=kept.sandbox_id,
            request_id=wanted.request_id,
        )
    return Reserved(kept, is_new=False)
