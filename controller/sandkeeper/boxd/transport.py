"""Requests to one boxd over a pool of keep-alive connections, each wait with a deadline, each body bounded.

Owns the pool and the fencing headers. Knows HTTP and Connect framing, but no verb of boxd. Never repeats a request:
the caller knows what a repeat would mean.

The parser is httptools on a plain asyncio protocol: an HTTP client library costs three times the CPU per
request and more import time than the whole of a shell `exec` may take.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandkeeper.boxd import errors
from sandkeeper.boxd.connection import Connection
from sandkeeper.boxd.exchange import Exchange
from sandkeeper.boxd.paths import SocketAddress
from sandkeeper.boxd.wire import BadFrame, decode_json, encode_frame, encode_json
from sandkeeper.core.errors import InvalidArgument, ResourceExhausted
from sandkeeper.ports import Ports

ANSWER_LIMIT_BYTES = 16 * 1024 * 1024
IDLE_CONNECTIONS = 8
IDLE_S = 60.0
OPEN_CONNECTIONS = 256


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long the host waits for boxd, whatever boxd says.

    Attributes:
        connect_s: To connect (and to find a free place among the open connections).
        answer_s: For a whole unary answer, and for the head of a streamed one.
        silence_s: Between two pieces of a stream; boxd is asked for a sign of life every `keepalive_s`.
        keepalive_s: The sign of life asked for.
        grace_s: Beyond a run's own timeout, for the kill and the last output.
    """

    connect_s: float = 2.0
    answer_s: float = 10.0
    silence_s: float = 30.0
    keepalive_s: int = 10
    grace_s: float = 15.0


class Transport:
    """The connections to one boxd, for one event loop."""

    def __init__(
        self, control_path: Path, *, generation: int, epoch: int, ports: Ports, deadlines: Deadlines
    ) -> None:
        self.deadlines = deadlines
        self.generation = generation
        self.epoch = epoch
        self.control_path = control_path
        self._address = SocketAddress(control_path)
        self._ports = ports
        self._idle: list[Connection] = []
        self._places = asyncio.Semaphore(OPEN_CONNECTIONS)
        self._is_closed = False

    @property
    def fence(self) -> str:
        """The header lines by which boxd tells who is stale."""
        return f"Sandkeeper-Epoch: {self.epoch}\r\nSandkeeper-Generation: {self.generation}\r\n"

    async def begin(
        self,
        method: str,
        target: str,
        *,
        step: str,
        body: bytes | None = b"",
        content_type: str = "application/json",
        headers: str = "",
    ) -> Exchange:
        """Send a request; `body=None` says that it follows through `Exchange.send_body`.

        Raises:
            Unavailable: boxd cannot be reached (`runtime_unreachable`); nothing was sent.
            ResourceExhausted: Too many calls at once on this link (`too_many_calls`); nothing was sent.
        """
        connection = await self._take(step=step)
        framing = "Transfer-Encoding: chunked" if body is None else f"Content-Length: {len(body)}"
        head = (
            f"{method} {target} HTTP/1.1\r\nHost: boxd\r\nContent-Type: {content_type}\r\n{framing}\r\n"
            f"{self.fence}{headers}\r\n"
        )
        connection.send(head.encode("ascii") + (body or b""))
        return Exchange(connection, step=step, give_back=self._give_back, owes_body=body is None)

    async def unary(
        self,
        method: str,
        target: str,
        document: dict[str, Any] | None = None,
        *,
        step: str,
        wait_s: float | None = None,
        user: str | None = None,
        limit_bytes: int = ANSWER_LIMIT_BYTES,
    ) -> dict[str, Any]:
        """Send one JSON document and return the JSON object boxd answers with.

        Raises:
            SandkeeperError: As `sandkeeper.boxd.errors` maps refusals, silence and broken answers.
        """
        wait_s = self.deadlines.answer_s if wait_s is None else wait_s
        body = b"" if document is None else _json_body(document, step=step)
        exchange = await self.begin(method, target, step=step, body=body, headers=basic_user(user))
        try:
            await exchange.expect(200, wait_s=wait_s)
            answer = await exchange.read_all(limit_bytes=limit_bytes, wait_s=wait_s)
            try:
                return decode_json(answer)
            except BadFrame as error:
                raise exchange.invalid(str(error)) from error
        finally:
            exchange.close()

    async def open_stream(
        self, target: str, document: dict[str, Any], *, step: str, user: str | None = None
    ) -> Exchange:
        """Begin a server stream with one request frame and wait for the head of its answer."""
        try:
            body = encode_frame(document)
        except (BadFrame, UnicodeEncodeError) as error:
            raise InvalidArgument(f"{step}: {error}", code="request_not_encodable") from error
        exchange = await self.begin(
            "POST",
            target,
            step=step,
            body=body,
            content_type="application/connect+json",
            headers=f"Keepalive-Ping-Interval: {self.deadlines.keepalive_s}\r\n{basic_user(user)}",
        )
        try:
            await exchange.expect(200, wait_s=self.deadlines.answer_s)
        except BaseException:
            exchange.close()
            raise
        return exchange

    def _give_back(self, connection: Connection) -> None:
        """Take a connection back after its exchange: kept if clean, else closed."""
        self._places.release()
        if connection.is_reusable and not self._is_closed and len(self._idle) < IDLE_CONNECTIONS:
            connection.used_at_s = self._ports.clock.monotonic_s()
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close the idle connections; those in use are closed when their exchange ends. Repeating is safe."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()
        self._address.close()

    async def _take(self, *, step: str) -> Connection:
        try:
            async with asyncio.timeout(self.deadlines.connect_s):
                await self._places.acquire()
        except TimeoutError as error:
            raise ResourceExhausted(
                f"{step}: {OPEN_CONNECTIONS} calls are under way on this sandbox",
                code="too_many_calls",
                retry_after_s=1.0,
            ) from error
        try:
            return self._take_idle() or await self._connect(step=step)
        except BaseException:
            self._places.release()
            raise

    def _take_idle(self) -> Connection | None:
        oldest_s = self._ports.clock.monotonic_s() - IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.used_at_s >= oldest_s:
                return connection
            connection.close()
        return None

    async def _connect(self, *, step: str) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.deadlines.connect_s):
                _, connection = await loop.create_unix_connection(Connection, self._address.text())
        except TimeoutError as error:
            raise errors.silent(self.deadlines.connect_s, step=step, admitted="no") from error
        except OSError as error:
            raise errors.unreachable(error, step=step) from error
        return connection


def basic_user(user: str | None) -> str:
    """Return the header line by which envd takes a user, or nothing for the default user."""
    if user is None:
        return ""
    return f"Authorization: Basic {b64encode(f'{user}:'.encode()).decode()}\r\n"


def _json_body(document: dict[str, Any], *, step: str) -> bytes:
    try:
        return encode_json(document)
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{step}: text that is not Unicode", code="request_not_encodable") from error
