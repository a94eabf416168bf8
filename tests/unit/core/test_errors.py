"""Errors survive pickling and the wire, and print what a person needs."""

from __future__ import annotations

import json
import pickle

import pytest

from sandkeeper.core.errors import CATEGORIES, Aborted, Internal, SandkeeperError, error_from_wire


@pytest.mark.parametrize("kind", CATEGORIES.values(), ids=CATEGORIES.keys())
def test_round_trips(kind: type[SandkeeperError]) -> None:
    error = kind(
        "what happened",
        code="some_code",
        advice="do this",
        sandbox_id="sb0",
        request_id="r0",
        admitted="yes",
        retry_after_s=1.5,
        details={"n": 1},
    )
    for copy in (pickle.loads(pickle.dumps(error)), error_from_wire(json.loads(json.dumps(error.to_wire())))):
        assert type(copy) is kind
        assert copy == error


def test_text() -> None:
    assert str(Aborted("it broke", code="cut", advice="look")) == "cut: it broke (look)"


def test_begun_and_broken_is_unknown_unless_said() -> None:
    assert Aborted("x").admitted == "unknown"
    assert Internal("x").admitted == "no"


def test_a_category_of_a_later_version_is_internal() -> None:
    assert isinstance(error_from_wire({"category": "Novel", "message": "x"}), Internal)
