"""Calls verbs on a control socket: one try each, every failure typed.

Owns one connection per call. Never repeats a call: a caller that may repeat does so with the same request id.
The HTTP side is boxd's bounded connection, because an HTTP client library costs more import time than a whole
`sandkeeper exec` may take.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from sandkeeper.boxd.connection import BrokenError, Connection, InvalidError
from sandkeeper.boxd.paths import SocketAddress
from sandkeeper.core.errors import Admitted, Internal, Unavailable, error_from_wire

DEFAULT_TIMEOUT_S = 330.0
CONNECT_TIMEOUT_S = 5.0
ANSWER_LIMIT_BYTES = 64 * 1024 * 1024


class ControlCaller:
    """A client of one control socket, for use on one event loop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._address = SocketAddress(path)

    async def call(self, verb: str, payload: dict[str, Any], *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Any:
        """Call one verb and return its answer as JSON.

        Raises:
            Unavailable: `owner_unreachable` with `admitted` "no" when nothing was sent, "unknown" when the
                connection broke or the time ran out afterwards.
            SandkeeperError: Whatever the verb answered.
        """
        document = _document(await self._exchange(verb, payload, timeout_s=timeout_s), verb=verb)
        if "error" in document:
            raise error_from_wire(document["error"])
        return document["ok"]

    async def close(self) -> None:
        """Give the address up. Repeating is safe."""
        self._address.close()

    async def _exchange(self, verb: str, payload: dict[str, Any], *, timeout_s: float) -> bytes:
        body = json.dumps(payload, separators=(",", ":")).encode()
        head = (
            f"POST /v1/{verb} HTTP/1.1\r\nHost: sandkeeper\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connection = await self._connect(verb)
        try:
            async with asyncio.timeout(timeout_s):
                connection.send(head.encode("ascii") + body)
                await connection.head()
                return await _whole(connection)
        except TimeoutError as error:
            raise self._unreachable(verb, f"no answer in {timeout_s:g} s", admitted="unknown") from error
        except (BrokenError, InvalidError) as error:
            raise self._unreachable(verb, str(error), admitted="unknown") from error
        finally:
            connection.close()

    async def _connect(self, verb: str) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_unix_connection(Connection, self._address.text())
        except TimeoutError as error:
            raise self._unreachable(verb, "connecting took too long", admitted="no") from error
        except OSError as error:
            raise self._unreachable(verb, error.strerror or str(error), admitted="no") from error
        return connection

    def _unreachable(self, verb: str, reason: str, *, admitted: Admitted) -> Unavailable:
        return Unavailable(
            f"{verb}: no answer on {self.path.name} of {self.path.parent.name}: {reason}",
            code="owner_unreachable",
            advice="see whether `sandkeeper up` runs; repeat with the same request id",
            admitted=admitted,
            retry_after_s=0.2,
        )


async def _whole(connection: Connection) -> bytes:
    gathered = bytearray()
    while data := await connection.read():
        gathered += data
        if len(gathered) > ANSWER_LIMIT_BYTES:
            raise InvalidError(f"an answer of more than {ANSWER_LIMIT_BYTES} bytes")
    return bytes(gathered)


def _document(answer: bytes, *, verb: str) -> dict[str, Any]:
    try:
        document = json.loads(answer)
    except ValueError as error:
        raise _invalid(verb) from error
    if not isinstance(document, dict) or not document.keys() & {"ok", "error"}:
        raise _invalid(verb)
    return document


def _invalid(verb: str) -> Internal:
    return Internal(
        f"{verb} was answered with neither ok nor error", code="control_answer_invalid", admitted="unknown"
    )
