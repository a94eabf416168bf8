"""What every write to an owner's file shares, inside its transaction: the journal line, the answer, the repeat.

Owns the promise that one request id has one answer. Never commits: the committer does.
"""

from __future__ import annotations

import sqlite3

from sandkeeper.core.errors import AlreadyExists, Internal, NotFound
from sandkeeper.core.ids import SandboxId, TenantId
from sandkeeper.core.record import Phase, RequestRef
from sandkeeper.store import schema
from sandkeeper.store.entries import Answer
from sandkeeper.store.journal_rows import Parameters
from sandkeeper.store.statements import insert, insert_first

_PUT_EVENT = insert(schema.events)
_PUT_ANSWER = insert_first(schema.answers)
_ANSWERED_AS = "SELECT fingerprint FROM answers WHERE tenant_id = :tenant_id AND request_id = :request_id"
_ANSWER = "SELECT document FROM answers WHERE tenant_id = :tenant_id AND request_id = :request_id"
_PHASE = "SELECT phase FROM sandboxes WHERE sandbox_id = :sandbox_id"


def put_line(connection: sqlite3.Connection, row: Parameters) -> int:
    """Append a journal line and return its seq."""
    seq = connection.execute(_PUT_EVENT, row).lastrowid
    if seq is None:
        raise Internal("an insert into the journal got no seq", code="journal_error")
    return seq


def put_answer(connection: sqlite3.Connection, row: Parameters) -> None:
    """Keep an answer; the first one of a request stays.

    Raises:
        AlreadyExists: `request_id_conflict`.
    """
    if connection.execute(_PUT_ANSWER, row).rowcount == 1:
        return
    kept = connection.execute(_ANSWERED_AS, row).fetchone()
    if kept is not None and kept[0] != row["fingerprint"]:
        raise conflict(row["request_id"])


def repeated(connection: sqlite3.Connection, request: RequestRef, *, tenant_id: TenantId) -> Answer | None:
    """Return the answer a request got before, or None when it is new.

    Raises:
        AlreadyExists: `request_id_conflict`.
    """
    wanted = {"tenant_id": tenant_id, "request_id": request.request_id}
    row = connection.execute(_ANSWER, wanted).fetchone()
    return None if row is None else same_request(Answer.model_validate_json(row[0]), request)


def same_request(answer: Answer, request: RequestRef) -> Answer:
    """Return the answer when it was given to this very request.

    Raises:
        AlreadyExists: `request_id_conflict`.
    """
    if (answer.verb, answer.fingerprint) != (request.verb, request.fingerprint):
        raise conflict(request.request_id)
    return answer


def refuse_gone(connection: sqlite3.Connection, sandbox_id: SandboxId) -> None:
    """Refuse a write for a sandbox that is destroyed or was never stored.

    Raises:
        NotFound: `sandbox_not_found` or `sandbox_destroyed`.
    """
    row = connection.execute(_PHASE, {"sandbox_id": sandbox_id}).fetchone()
    check_alive(sandbox_id, phase=None if row is None else row[0])


def check_alive(sandbox_id: SandboxId, *, phase: str | None) -> None:
    """Refuse a write for a sandbox in that stored phase; None is one that was never stored.

    Raises:
        NotFound: `sandbox_not_found` or `sandbox_destroyed`.
    """
    if phase is None:
        raise NotFound(f"there is no sandbox {sandbox_id}", code="sandbox_not_found", sandbox_id=sandbox_id)
    if phase == Phase.DESTROYED:
        raise NotFound(
            "the sandbox was destroyed; what it kept can be read, not changed",
            code="sandbox_destroyed",
            sandbox_id=sandbox_id,
        )


def conflict(request_id: str) -> AlreadyExists:
    """Return the error of a request id that was answered for another request."""
    return AlreadyExists(
        f"request {request_id} was answered for other parameters",
        code="request_id_conflict",
        advice="use a new request id for a different request",
        request_id=request_id,
    )
