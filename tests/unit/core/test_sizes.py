"""Sizes: what may be given, and what each wrong value is answered."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkeeper.core.errors import InvalidArgument
from sandkeeper.core.sizes import NAMED_SIZES, Size, parse_size


@pytest.mark.parametrize("name", NAMED_SIZES)
def test_named_sizes(name: str) -> None:
    assert parse_size(name) is NAMED_SIZES[name]


def test_none_is_the_default() -> None:
    assert parse_size(None) == NAMED_SIZES["basic"]


def test_custom() -> None:
    size = parse_size({"vcpu": 0.5, "memory_mib": 128})
    assert (size.name, size.cpu_quota_us, size.memory_bytes) == ("custom", 50_000, 134_217_728)


@pytest.mark.parametrize("value", [-1, 0, 2**54, 1e308, math.nan, math.inf, "4g", None, True, [], 0.5])
def test_bad_memory_names_the_field(value: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_size({"vcpu": 1, "memory_mib": value})
    assert caught.value.code == "size_invalid"
    assert caught.value.details == {"field": "size.memory_mib"}


@pytest.mark.parametrize("value", [-1, 0, 2**54, 1e308, math.nan, math.inf, "1", None, True])
def test_bad_vcpu_names_the_field(value: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_size({"vcpu": value, "memory_mib": 512})
    assert caught.value.details == {"field": "size.vcpu"}


@pytest.mark.parametrize("value", ["4g", "", "BASIC", "x" * 1000])
def test_an_unknown_name_lists_the_known(value: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_size(value)
    assert caught.value.code == "size_unknown"
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("value", [3, 1.5, [], b"basic", math.nan, True])
def test_other_types_are_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument):
        parse_size(value)


def test_an_unknown_field_is_named() -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_size({"vcpu": 1, "memory_mib": 512, "gpu": 1})
    assert caught.value.details == {"field": "size.gpu"}


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists))
def test_anything_is_a_size_or_a_typed_refusal(value: Any) -> None:
    try:
        found: Size | InvalidArgument = parse_size(value)
    except InvalidArgument as error:
        found = error
    assert isinstance(found, Size) or found.code in ("size_invalid", "size_unknown")
