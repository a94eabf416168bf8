"""Connect frames: one flag byte, four bytes of length (big-endian), JSON.

Owns encoding and incremental decoding, bounded per frame. Never does I/O and never looks into a message.
Source: the Connect protocol, streaming messages with the JSON codec.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

FRAME_LIMIT_BYTES = 1024 * 1024
"""Longest body of one frame we read; a longer one is a broken answer."""

MESSAGE = 0
END_OF_STREAM = 2
_HEADER_BYTES = 5


class BadFrame(ValueError):
    """The bytes are no frame sequence: unknown flag, too long, no JSON object, or cut in the middle."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame.

    Attributes:
        is_end: Whether this is the end-of-stream frame; no frame may follow it.
        document: The JSON object in it.
    """

    is_end: bool
    document: dict[str, Any]


def encode_json(document: dict[str, Any]) -> bytes:
    """Return `document` as compact UTF-8 JSON."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def encode_frame(document: dict[str, Any], *, is_end: bool = False) -> bytes:
    """Return `document` as one frame.

    Raises:
        BadFrame: It is longer than `FRAME_LIMIT_BYTES`.
    """
    body = encode_json(document)
    if len(body) > FRAME_LIMIT_BYTES:
        raise BadFrame(f"frame of {len(body)} bytes, limit {FRAME_LIMIT_BYTES}")
    return bytes((END_OF_STREAM if is_end else MESSAGE,)) + len(body).to_bytes(4, "big") + body


class FrameDecoder:
    """Turns bytes that arrive in any pieces into frames; holds at most one unfinished frame."""

    def __init__(self, *, limit_bytes: int = FRAME_LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._pending = bytearray()
        self._is_ended = False

    def feed(self, data: bytes | bytearray) -> list[Frame]:
        """Take `data` and return the frames it completes.

        Raises:
            BadFrame: The bytes are no frame sequence; the decoder is of no further use.
        """
        self._pending += data
        frames: list[Frame] = []
        start = 0
        while len(self._pending) - start >= _HEADER_BYTES:
            flag = self._pending[start]
            length = int.from_bytes(self._pending[start + 1 : start + _HEADER_BYTES], "big")
            if self._is_ended:
                raise BadFrame("a frame after the end of the stream")
            if flag not in (MESSAGE, END_OF_STREAM):
                raise BadFrame(f"frame flag {flag}")
            if length > self._limit_bytes:
                raise BadFrame(f"frame of {length} bytes, limit {self._limit_bytes}")
            stop = start + _HEADER_BYTES + length
            if len(self._pending) < stop:
                break
            frames.append(
                Frame(flag == END_OF_STREAM, decode_json(self._pending[start + _HEADER_BYTES : stop]))
            )
            self._is_ended = flag == END_OF_STREAM
            start = stop
        del self._pending[:start]
        return frames

    def finish(self) -> None:
        """Say that no more bytes come.

        Raises:
            BadFrame: The stream stops inside a frame.
        """
        if self._pending:
            raise BadFrame(f"{len(self._pending)} bytes of an unfinished frame")


def decode_json(data: bytes | bytearray) -> dict[str, Any]:
    """Return the JSON object in `data`.

    Raises:
        BadFrame: It is not UTF-8, not JSON, nested without sense, or not an object.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"not JSON: {type(error).__name__}") from error
    if not isinstance(document, dict):
        raise BadFrame(f"JSON {type(document).__name__} where an object belongs")
    return document
