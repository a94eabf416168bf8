"""One request to boxd and its answer, with a deadline on every wait and a bound on every body.

Owns the mapping of a broken exchange to an error that says honestly whether the request was admitted. Knows HTTP
and Connect framing, but no verb of boxd, and never repeats anything.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import TypeVar

from sandkeeper.boxd import errors
from sandkeeper.boxd.connection import BrokenError, Connection, InvalidError
from sandkeeper.boxd.wire import BadFrame, Frame, FrameDecoder, decode_json
from sandkeeper.core.errors import Admitted, SandkeeperError

CHUNK_BYTES = 256 * 1024
ERROR_LIMIT_BYTES = 64 * 1024

_T = TypeVar("_T")


class Exchange:
    """One request and its answer. `close` gives the connection back if it is clean, else ends it."""

    def __init__(
        self, connection: Connection, *, step: str, give_back: Callable[[Connection], None], owes_body: bool
    ) -> None:
        self.step = step
        self.admitted: Admitted = "unknown"
        self._connection = connection
        self._give_back = give_back
        self._owes_body = owes_body
        self._is_closed = False

    async def head(self, *, wait_s: float) -> int:
        """Return the status of the answer."""
        return await self._within(self._connection.head(), wait_s=wait_s)

    async def send_body(self, chunks: AsyncIterable[bytes], *, wait_s: float) -> None:
        """Send the body promised by `body=None`; stops early when an answer comes before its end.

        boxd must take each piece within `wait_s`; `chunks` itself may take its time.
        """
        async for chunk in chunks:
            for start in range(0, len(chunk), CHUNK_BYTES):
                piece = chunk[start : start + CHUNK_BYTES]
                framed = b"%x\r\n%b\r\n" % (len(piece), piece)
                await self._within(self._connection.send_more(framed), wait_s=wait_s)
                if self._connection.has_answer:
                    return
        await self._within(self._connection.send_more(b"0\r\n\r\n"), wait_s=wait_s)
        self._owes_body = False

    async def read(self, *, wait_s: float) -> bytes | bytearray:
        """Return the next bytes of the answer, b"" at its end."""
        if self._connection.has_bytes:
            return await self._connection.read()
        return await self._within(self._connection.read(), wait_s=wait_s)

    async def read_all(self, *, limit_bytes: int, wait_s: float) -> bytes:
        """Return the whole body, refusing one longer than `limit_bytes`."""
        return await self._within(self._gather(limit_bytes=limit_bytes), wait_s=wait_s)

    async def expect(self, *statuses: int, wait_s: float) -> int:
        """Wait for the head; turn every status but `statuses` into the error that came with it."""
        status = await self.head(wait_s=wait_s)
        if status in statuses:
            return status
        body = await self.read_all(limit_bytes=ERROR_LIMIT_BYTES, wait_s=wait_s)
        if status < 400:
            raise self.invalid(f"status {status}")
        try:
            document = decode_json(body)
        except BadFrame as error:
            raise self.invalid(f"status {status} without an error document ({error})") from error
        raise errors.refusal(document, step=self.step, status=status)

    def invalid(self, reason: str) -> SandkeeperError:
        """Return the error for an answer that breaks the contract."""
        return errors.invalid_answer(reason, step=self.step, admitted=self.admitted)

    def close(self) -> None:
        """End the exchange. Repeating is safe."""
        if not self._is_closed:
            self._is_closed = True
            if self._owes_body:
                self._connection.close()
            self._give_back(self._connection)

    async def _gather(self, *, limit_bytes: int) -> bytes:
        gathered = bytearray()
        while data := await self._connection.read():
            gathered += data
            if len(gathered) > limit_bytes:
                raise InvalidError(f"more than {limit_bytes} bytes")
        return bytes(gathered)

    async def _within(self, work: Awaitable[_T], *, wait_s: float) -> _T:
        try:
            async with asyncio.timeout(wait_s):
                return await work
        except TimeoutError as error:
            raise errors.silent(wait_s, step=self.step, admitted=self.admitted) from error
        except BrokenError as error:
            raise errors.connection_lost(str(error), step=self.step, admitted=self.admitted) from error
        except InvalidError as error:
            raise self.invalid(str(error)) from error


class FrameReader:
    """The frames of a streamed answer, one by one."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._decoder = FrameDecoder()
        self._ready: deque[Frame] = deque()

    async def next(self, *, wait_s: float) -> Frame | None:
        """Return the next frame, or None at the end of the HTTP answer.

        Raises:
            SandkeeperError: The stream broke, fell silent for `wait_s`, or is no frame sequence.
        """
        while not self._ready:
            data = await self._exchange.read(wait_s=wait_s)
            try:
                if not data:
                    self._decoder.finish()
                    return None
                self._ready.extend(self._decoder.feed(data))
            except BadFrame as error:
                raise self._exchange.invalid(str(error)) from error
        return self._ready.popleft()
