"""JSON documents to keep: whatever is one comes back equal, whatever is none is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkeeper.core.alarms import MAX_AHEAD_S, due_at
from sandkeeper.core.documents import MAX_DEPTH, DocumentRule, document_text
from sandkeeper.core.errors import InvalidArgument

RULE = DocumentRule(name="d", limit_bytes=1000, not_json_code="d_not_json", too_large_code="d_too_large")
NOW = datetime(2030, 1, 1, tzinfo=UTC)

_leaf = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
documents = st.recursive(
    _leaf, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


@given(documents)
def test_a_document_comes_back_equal(value: Any) -> None:
    assert json.loads(document_text(value, RULE)) == value


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("-inf"), b"x", {1: 2}, {None: 1}, {1, 2}, object(), [["\udcff"]], {"\ud800": 1}],
)
def test_what_json_has_no_form_for_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        document_text(value, RULE)
    assert refusal.value.code == "d_not_json"


def test_depth_and_size_are_bounded() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH - 1):
        value = {"a": value}
    document_text(value, RULE)
    with pytest.raises(InvalidArgument):
        document_text([value], RULE)
    document_text("x" * 998, RULE)
    with pytest.raises(InvalidArgument) as refusal:
        document_text("x" * 999, RULE)
    assert refusal.value.code == "d_too_large"


def due_or_code(at: datetime | None, in_s: float | None) -> datetime | str:
    try:
        return due_at(at, in_s=in_s, now=NOW)
    except InvalidArgument as refusal:
        return refusal.code


@given(st.datetimes(timezones=st.timezones()))
def test_a_moment_is_taken_in_utc_or_refused(at: datetime) -> None:
    due = due_or_code(at, None)
    if isinstance(due, datetime):
        # Compared in UTC: a local time that a clock change skips or repeats equals no moment of another zone.
        assert (due, due.tzinfo) == (at.astimezone(UTC), UTC)
    else:
        assert due == "alarm_time_invalid"
        assert at.year <= 1970 or at - NOW > timedelta(seconds=MAX_AHEAD_S - 1)


@given(st.floats())
def test_seconds_from_now_are_taken_or_refused(in_s: float) -> None:
    due = due_or_code(None, in_s)
    if isinstance(due, datetime):
        assert NOW <= due <= NOW + timedelta(seconds=MAX_AHEAD_S)
    else:
        assert due == "alarm_time_invalid"
        assert not 0 <= in_s <= MAX_AHEAD_S
