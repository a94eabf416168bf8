"""One request id has one answer, whoever waits for it."""

from __future__ import annotations

import asyncio

import pytest

from sandkeeper.core.errors import AlreadyExists, FailedPrecondition, Unavailable
from sandkeeper.core.ids import RequestId
from sandkeeper.core.record import RequestRef
from sandkeeper.owner.waiters import Waiters

R1 = RequestId("r1")


def ref(*, verb: str = "start", fingerprint: str = "f") -> RequestRef:
    return RequestRef(request_id=R1, verb=verb, fingerprint=fingerprint)


async def test_nobody_is_joined_before_a_request_is_in_progress() -> None:
    assert Waiters().join(ref()) is None


async def test_all_who_join_get_the_one_answer() -> None:
    waiters = Waiters()
    first = waiters.expect(ref())
    joined = waiters.join(ref())
    assert joined is first
    waiters.resolve(R1, {"phase": "running"})
    assert await first == {"phase": "running"}


@pytest.mark.parametrize("other", [ref(verb="stop"), ref(fingerprint="g")])
async def test_the_same_id_for_something_else_is_a_conflict(other: RequestRef) -> None:
    waiters = Waiters()
    _ = waiters.expect(ref())
    with pytest.raises(AlreadyExists) as conflict:
        waiters.join(other)
    assert (conflict.value.code, conflict.value.request_id) == ("request_id_conflict", R1)


async def test_an_error_is_raised_in_who_waits() -> None:
    waiters = Waiters()
    answer = waiters.expect(ref())
    waiters.resolve(R1, FailedPrecondition("no", code="sandbox_paused"))
    with pytest.raises(FailedPrecondition):
        await answer


async def test_an_answered_request_is_in_progress_no_more() -> None:
    waiters = Waiters()
    _ = waiters.expect(ref())
    waiters.resolve(R1, {})
    assert waiters.join(ref()) is None
    waiters.resolve(R1, {"late": True})


async def test_fail_all_answers_everybody_once() -> None:
    waiters = Waiters()
    waiting = [
        waiters.expect(RequestRef(request_id=RequestId(name), verb="start", fingerprint="f"))
        for name in ("a", "b")
    ]
    waiters.fail_all(Unavailable("closing", code="owner_closing"))
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [getattr(answer, "code", None) for answer in answers] == ["owner_closing", "owner_closing"]


async def test_who_went_away_does_not_hinder_the_answer() -> None:
    waiters = Waiters()
    answer = waiters.expect(ref())
    answer.cancel()
    waiters.resolve(R1, {})
    assert waiters.join(ref()) is None
