"""Streamed answers of one JSON document a line: each checked, each line and their number bounded.

Owns the cutting of bytes into lines. What a line means is the route's.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from sandkeeper.boxd.exchange import Exchange
from sandkeeper.boxd.wire import BadFrame, decode_json

LINE_LIMIT_BYTES = 256 * 1024


async def json_lines(
    exchange: Exchange, *, wait_s: float, limit_lines: int
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the documents of an answer whose head was read.

    Raises:
        Aborted: `box_answer_invalid`: no JSON, a line or their number beyond its bound, or a cut last line.
    """
    pending = bytearray()
    count = 0
    while data := await exchange.read(wait_s=wait_s):
        pending += data
        *lines, rest = bytes(pending).split(b"\n")
        pending = bytearray(rest)
        for line in lines:
            count += 1
            if count > limit_lines or len(line) > LINE_LIMIT_BYTES:
                raise exchange.invalid(f"line {count} of {len(line)} bytes")
            yield _document(line, exchange)
        if len(pending) > LINE_LIMIT_BYTES:
            raise exchange.invalid(f"a line of more than {LINE_LIMIT_BYTES} bytes")
    if pending:
        raise exchange.invalid("its last line is cut")


def _document(line: bytes, exchange: Exchange) -> dict[str, Any]:
    try:
        return decode_json(line)
    except BadFrame as error:
        raise exchange.invalid(str(error)) from error
