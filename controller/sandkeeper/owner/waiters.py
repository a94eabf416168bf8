"""Callers who wait for the answer to their request, by request id.

Owns the promise that one request id has one answer, whoever asks and however often, while it is in progress.
Answers given before are the journal's.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from sandkeeper.core.errors import AlreadyExists, SandkeeperError
from sandkeeper.core.ids import RequestId
from sandkeeper.core.record import RequestRef


@dataclass(frozen=True, slots=True)
class _Waiter:
    request: RequestRef
    answer: asyncio.Future[Any]


class Waiters:
    """Requests in progress of one sandbox."""

    def __init__(self) -> None:
        self._waiting: dict[RequestId, _Waiter] = {}

    def join(self, request: RequestRef) -> asyncio.Future[Any] | None:
        """Return the future of a request in progress, or None when it is not.

        Raises:
            AlreadyExists: `request_id_conflict`: the id is in progress with other parameters.
        """
        waiter = self._waiting.get(request.request_id)
        if waiter is None:
            return None
        check_same(request, waiter.request)
        return waiter.answer

    def expect(self, request: RequestRef) -> asyncio.Future[Any]:
        """Note a request as in progress and return the future of its answer."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_look_at)
        self._waiting[request.request_id] = _Waiter(request, answer)
        return answer

    def resolve(self, request_id: RequestId, answer: Any) -> None:
        """Give everyone who waits the answer: a JSON document, or a SandkeeperError to raise."""
        waiter = self._waiting.pop(request_id, None)
        if waiter is None or waiter.answer.done():
            return
        if isinstance(answer, SandkeeperError):
            waiter.answer.set_exception(answer)
        else:
            waiter.answer.set_result(answer)

    def fail_all(self, error: SandkeeperError) -> None:
        """Answer everyone with `error`: the owner is closing."""
        for request_id in list(self._waiting):
            self.resolve(request_id, error)


def check_same(request: RequestRef, known: RequestRef) -> None:
    """Refuse a request id that was used with another verb or other parameters.

    Raises:
        AlreadyExists: `request_id_conflict`.
    """
    if request.verb == known.verb and request.fingerprint == known.fingerprint:
        return
    raise AlreadyExists(
        f"request id {request.request_id} was used for {known.verb} with other parameters",
        code="request_id_conflict",
        advice="make a new request id for every new request",
        request_id=request.request_id,
    )


def _look_at(answer: asyncio.Future[Any]) -> None:
    """Mark an error as seen: the caller may have gone, the journal has the answer."""
    if not answer.cancelled():
        answer.exception()
