"""Frames: any bytes in any pieces give the same frames, or a refusal that holds no memory."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkeeper.boxd.wire import BadFrame, FrameDecoder, decode_json, encode_frame

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS = st.none() | st.booleans() | st.integers() | TEXT
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)
)
DOCUMENTS = st.lists(st.dictionaries(TEXT, VALUES, max_size=4), max_size=6)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:stop] for start, stop in itertools.pairwise(edges)]


@given(DOCUMENTS, st.lists(st.integers(min_value=0, max_value=10**6), max_size=20))
def test_frames_survive_any_chunking(documents: list[dict[str, object]], cuts: list[int]) -> None:
    data = b"".join(map(encode_frame, documents)) + encode_frame({}, is_end=True)
    decoder = FrameDecoder()
    frames = [frame for piece in pieces(data, cuts) for frame in decoder.feed(piece)]
    decoder.finish()
    assert [frame.document for frame in frames] == [*documents, {}]
    assert [frame.is_end for frame in frames] == [False] * len(documents) + [True]


@given(st.binary(max_size=200), st.lists(st.integers(min_value=0, max_value=200), max_size=5))
def test_random_bytes_are_frames_or_refused(data: bytes, cuts: list[int]) -> None:
    decoder = FrameDecoder(limit_bytes=64)
    try:
        for piece in pieces(data, cuts):
            decoder.feed(piece)
        decoder.finish()
    except BadFrame:
        pass


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x01\0\0\0\x02{}", "flag 1"),
        (b"\x00\x7f\xff\xff\xff", "2147483647 bytes"),
        (b"\x00\0\0\0\x03{{}", "not JSON"),
        (b"\x00\0\0\0\x02[]", "object belongs"),
        (b"\x00\0\0\0\x02\xff\xff", "not JSON"),
        (encode_frame({}, is_end=True) + encode_frame({}), "after the end"),
    ],
)
def test_broken_frames_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(BadFrame, match=reason):
        FrameDecoder().feed(data)


def test_a_frame_too_long_is_refused_before_its_body_comes() -> None:
    with pytest.raises(BadFrame, match="limit 10"):
        FrameDecoder(limit_bytes=10).feed(b"\x00\x00\x00\x00\x0b")


def test_a_stream_that_stops_inside_a_frame_is_refused() -> None:
    decoder = FrameDecoder()
    decoder.feed(encode_frame({"a": 1})[:-1])
    with pytest.raises(BadFrame, match="unfinished"):
        decoder.finish()


def test_we_do_not_send_frames_beyond_the_limit() -> None:
    with pytest.raises(BadFrame, match="limit"):
        encode_frame({"a": "x" * 1024 * 1024})


def test_json_nested_without_end_is_refused() -> None:
    with pytest.raises(BadFrame):
        decode_json(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}")


def test_a_number_too_long_to_convert_is_refused() -> None:
    with pytest.raises(BadFrame):
        decode_json(b'{"a":' + b"9" * 100_000 + b"}")
