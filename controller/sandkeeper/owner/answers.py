"""The answers a journal keeps: a repeat of an answered request gets its answer, whatever has happened since."""

from __future__ import annotations

from typing import Any

from sandkeeper.core.errors import error_from_wire
from sandkeeper.core.ids import DEFAULT_TENANT
from sandkeeper.core.record import RequestRef
from sandkeeper.owner.waiters import check_same
from sandkeeper.store.contract import Journal


async def known_answer(journal: Journal, request: RequestRef) -> Any:
    """Return the kept answer of a request, or None. Reads only, so it works when nothing can be written too.

    Raises:
        AlreadyExists: `request_id_conflict`.
        SandkeeperError: The answer was an error.
    """
    answer = await journal.answer(request.request_id, tenant_id=DEFAULT_TENANT)
    if answer is None:
        return None
    known = RequestRef(request_id=answer.request_id, verb=answer.verb, fingerprint=answer.fingerprint)
    check_same(request, known)
    if answer.is_error:
        raise error_from_wire(answer.document)
    return answer.document
