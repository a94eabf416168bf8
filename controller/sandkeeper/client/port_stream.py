"""A connection to a port in a sandbox: bytes both ways, and an end that is told apart from a loss.

Owns that difference: the end of a byte stream looks the same when its box has died, so the box is asked.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from sandkeeper.client.box_link import BoxLink
from sandkeeper.core.errors import Aborted, SandkeeperError

READ_BYTES = 64 * 1024
GREETING_S = 1.0


class PortStream:
    """One connection; an async context manager that closes it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, link: BoxLink) -> None:
        self._reader = reader
        self._writer = writer
        self._link = link

    async def read(self, count: int = READ_BYTES) -> bytes:
        """Return the next bytes, at most `count`; b"" at the end.

        Raises:
            Aborted: `connection_lost`: it broke, or its runtime is gone.
        """
        try:
            piece = await self._reader.read(count)
        except OSError as error:
            raise _lost(str(error)) from error
        if not piece:
            await self._check_box()
        return piece

    async def write(self, data: bytes) -> None:
        """Send all of `data`; waits while the other side is slow.

        Raises:
            Aborted: `connection_lost`; how much arrived is not known.
        """
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise _lost(str(error)) from error

    async def write_eof(self) -> None:
        """Say that nothing more is sent; reading goes on.

        Raises:
            Aborted: `connection_lost`.
        """
        try:
            self._writer.write_eof()
        except OSError as error:
            raise _lost(str(error)) from error

    async def close(self) -> None:
        """End the connection. Repeating is safe."""
        self._writer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _check_box(self) -> None:
        try:
            await self._link.greet(timeout_s=GREETING_S)
        except SandkeeperError as error:
            raise _lost(f"its box does not answer: {error.code}") from error


def _lost(reason: str) -> Aborted:
    return Aborted(f"the connection to the port broke: {reason}", code="connection_lost", admitted="unknown")
