from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkeeper.core.errors import InvalidArgument
from sandkeeper.store.entries import moment_text

moments = st.datetimes(timezones=st.just(UTC))


@given(moments, moments)
def test_text_order_is_time_order(one: datetime, other: datetime) -> None:
    assert (moment_text(one) < moment_text(other)) == (one < other)


def test_other_zones_are_stored_as_utc() -> None:
    there = datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    assert moment_text(there) == "2026-01-01T00:00:00.000000+00:00"


def test_a_naive_moment_is_refused() -> None:
    with pytest.raises(InvalidArgument) as refusal:
        moment_text(datetime(2026, 1, 1))  # noqa: DTZ001 - the fault under test
    assert refusal.value.code == "moment_naive"
