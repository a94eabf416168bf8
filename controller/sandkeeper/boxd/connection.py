"""One keep-alive HTTP/1.1 connection to boxd, read with bounds that hold against a hostile peer.

Owns framing of requests, parsing of answers (httptools) and flow control: at most `HIGH_WATER_BYTES` plus one
socket read are held. Never decides what an error means: it raises `Broken` and `Invalid`, and the transport
above maps them. Has no deadlines of its own.
"""

from __future__ import annotations

import asyncio
from typing import cast

import httptools

HIGH_WATER_BYTES = 512 * 1024
HEAD_LIMIT_BYTES = 64 * 1024
"""Most bytes an answer may spend without body: status line and headers, chunk heads, trailers."""
INFORMATIONAL_LIMIT = 8


class BrokenError(Exception):
    """The connection ended or failed; the text says how."""


class InvalidError(Exception):
    """What arrived is not an HTTP answer within our bounds."""


class Connection(asyncio.Protocol):
    """A connection that carries one exchange at a time.

    Use: `send` the request, `head()` for the status, `read()` until it returns b"" for the body, then
    `is_reusable` says whether another exchange may follow.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.used_at_s = 0.0
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._body = bytearray()
        self._has_head = False
        self._is_complete = True
        self._keeps_alive = True
        self._failure: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._can_write = True
        self._is_paused = False
        self._overhead_bytes = 0
        self._informational_count = 0
        self._saw_body = False

    # ------------------------------------------------------------ the exchange

    @property
    def is_open(self) -> bool:
        """Whether the connection stands and nothing went wrong on it."""
        return self._failure is None and self._transport is not None and not self._transport.is_closing()

    @property
    def is_reusable(self) -> bool:
        """Whether the answer is here and read to its end, and the peer keeps the connection."""
        return self.is_open and self._is_complete and not self._body and self._keeps_alive

    @property
    def has_answer(self) -> bool:
        """Whether the head of the answer is here (or never will be)."""
        return self._has_head or self._failure is not None

    @property
    def has_bytes(self) -> bool:
        """Whether `read` returns without waiting."""
        return bool(self._body) or self._is_complete

    def send(self, head: bytes) -> None:
        """Begin an exchange with the bytes of a request (its head, and its body if that is short)."""
        self.status = 0
        self.headers = {}
        self._parser = httptools.HttpResponseParser(self)
        self._has_head = self._is_complete = False
        self._overhead_bytes = self._informational_count = 0
        self._write(head)

    async def send_more(self, data: bytes) -> None:
        """Write more of the request body; returns when there is room again, or an answer has come early."""
        self._write(data)
        while not self._can_write and not self.has_answer:
            self._writer = asyncio.get_running_loop().create_future()
            try:
                await self._writer
            finally:
                self._writer = None

    async def head(self) -> int:
        """Wait for the head of the answer and return its status; the headers are in `headers`.

        Raises:
            BrokenError: The connection ended first.
            InvalidError: What came is no acceptable answer.
        """
        while not self._has_head:
            await self._wait_for_data()
        return self.status

    async def read(self) -> bytes | bytearray:
        """Return the body bytes that are here, waiting for some; b"" at the end of the answer.

        Raises:
            BrokenError: The connection ended inside the body.
            InvalidError: What came breaks HTTP or our bounds.
        """
        while not self._body:
            if self._is_complete:
                return b""
            await self._wait_for_data()
        data, self._body = self._body, bytearray()
        if self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()
        return data

    def close(self) -> None:
        """End the connection at once, whatever it is doing. Repeating is safe."""
        self._fail(BrokenError("closed by us"))

    # ------------------------------------------------------------ asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(BrokenError("ended by the peer" if exc is None else str(exc) or type(exc).__name__))

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._can_write = False

    def resume_writing(self) -> None:
        self._can_write = True
        _wake(self._writer)

    def data_received(self, data: bytes) -> None:
        if self._failure is not None:
            return
        if self._is_complete or self._parser is None:
            self._fail(InvalidError("bytes without a request"))
            return
        self._saw_body = False
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            cause = error.__context__ if isinstance(error.__context__, InvalidError) else error
            self._fail(InvalidError(str(cause) or type(cause).__name__))
            return
        self._overhead_bytes = 0 if self._saw_body else self._overhead_bytes + len(data)
        if self._overhead_bytes > HEAD_LIMIT_BYTES and not self._is_complete:
            self._fail(InvalidError(f"more than {HEAD_LIMIT_BYTES} bytes of headers"))
            return
        if len(self._body) > HIGH_WATER_BYTES and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()
        _wake(self._reader)
        if self.has_answer:
            _wake(self._writer)

    # ------------------------------------------------------------ the parser's side

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header of the answer; trailers are dropped."""
        if not self._has_head:
            self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Take the status; an informational answer is not the answer."""
        assert self._parser is not None
        status = self._parser.get_status_code()
        if self._is_complete:
            raise InvalidError("two answers to one request")
        if 100 <= status < 200:
            self._informational_count += 1
            if self._informational_count > INFORMATIONAL_LIMIT or status == 101:
                raise InvalidError(f"informational answer {status}")
            return
        self.status = status
        self._has_head = True
        self._keeps_alive = self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        """Keep a piece of the body."""
        self._saw_body = True
        self._body += data

    def on_message_complete(self) -> None:
        """End the exchange, or go on after an informational answer."""
        if not self._has_head:
            self.headers = {}
            return
        self._is_complete = True

    # ------------------------------------------------------------ inside

    def _write(self, data: bytes) -> None:
        if self._failure is None and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def _wait_for_data(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None
        if self._failure is not None and not self._is_complete:
            raise self._failure

    def _fail(self, failure: Exception) -> None:
        if self._failure is None:
            self._failure = failure
        if self._transport is not None:
            self._transport.abort()
        _wake(self._reader)
        _wake(self._writer)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
