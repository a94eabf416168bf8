"""Lines are the same however their bytes arrive; what is cut, too long, too many or no JSON is refused."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkeeper.boxd import errors
from sandkeeper.boxd.exchange import Exchange
from sandkeeper.boxd.line_stream import LINE_LIMIT_BYTES, json_lines
from sandkeeper.core.errors import SandkeeperError

DOCUMENTS = st.lists(
    st.dictionaries(st.text(max_size=4), st.text(max_size=9) | st.integers(), max_size=3), max_size=6
)


class Body:
    """An answer's body that arrives in these pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = [piece for piece in pieces if piece]

    async def read(self, *, wait_s: float) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""

    def invalid(self, reason: str) -> SandkeeperError:
        return errors.invalid_answer(reason, step="lines", admitted="yes")


def read(pieces: list[bytes], *, limit_lines: int = 100) -> list[dict[str, Any]]:
    async def gather() -> list[dict[str, Any]]:
        body = cast("Exchange", Body(pieces))
        return [line async for line in json_lines(body, wait_s=1, limit_lines=limit_lines)]

    return asyncio.run(gather())


@given(documents=DOCUMENTS, cuts=st.lists(st.integers(0, 400), max_size=12))
def test_lines_are_the_same_however_they_arrive(documents: list[dict[str, Any]], cuts: list[int]) -> None:
    body = b"".join(json.dumps(document).encode() + b"\n" for document in documents)
    places = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})
    pieces = [body[start:stop] for start, stop in itertools.pairwise(places)]
    assert read(pieces) == documents


@pytest.mark.parametrize(
    "pieces",
    [
        [b'{"a":1}\n{"b":'],
        [b"no json\n"],
        [b"[1]\n"],
        [b"\n"],
        [b"x" * (LINE_LIMIT_BYTES + 1)],
        [b'{"a":"' + b"x" * LINE_LIMIT_BYTES + b'"}\n'],
        [b"{}\n" * 101],
    ],
)
def test_what_breaks_the_contract_is_refused(pieces: list[bytes]) -> None:
    with pytest.raises(SandkeeperError) as broken:
        read(pieces)
    assert broken.value.code == "box_answer_invalid"
