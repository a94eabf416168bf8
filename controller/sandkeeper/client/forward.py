"""A listener on this machine's loopback whose connections go on to a port in a sandbox.

Owns the listener and the pumping of bytes, each way by itself, half-closes included. It never reads what it passes
on, and holds at most one piece of it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from sandkeeper.client.port_stream import PortStream
from sandkeeper.core.errors import FailedPrecondition, InvalidArgument, SandkeeperError
from sandkeeper.ports import Ports

PIECE_BYTES = 64 * 1024
MOST_CONNECTIONS = 256

Dial = Callable[[], Awaitable[PortStream]]

_RESET = struct.pack("ii", 1, 0)


class Forward:
    """One listener; an async context manager that closes it.

    A connection that cannot be passed on, or whose box is gone, is reset, so that nobody takes it for a clean end.

    Attributes:
        host: Where it listens.
        port: The local port, once open.
        last_error: Why the last connection that was reset could not be passed on.
    """

    def __init__(
        self,
        dial: Dial,
        *,
        port_inside: int,
        host: str,
        local_port: int,
        ports: Ports,
        release: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self.host = host
        self.port = local_port
        self.last_error: SandkeeperError | None = None
        self._dial = dial
        self._port_inside = port_inside
        self._ports = ports
        self._release = release
        self._server: asyncio.Server | None = None
        self._passing: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"Forward({self.address} -> {self._port_inside})"

    @property
    def address(self) -> str:
        """Host and port to connect to."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def open(self) -> None:
        """Listen. Raises as `SandboxPorts.forward`."""
        _check_loopback(self.host)
        try:
            self._server = await asyncio.start_server(self._accept, self.host, self.port)
        except OSError as error:
            raise FailedPrecondition(
                f"cannot listen on {self.address}: {error.strerror}", code="address_in_use"
            ) from error
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and end the connections. Repeating is safe."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        self._release(self.close)
        passing = list(self._passing)
        for task in passing:
            task.cancel()
        await asyncio.gather(*passing, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None or len(self._passing) >= MOST_CONNECTIONS:
            _reset(writer)
            return
        task = self._ports.spawn(self._pass(reader, writer), name=f"forward {self._port_inside}")
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with await self._dial() as inner, asyncio.TaskGroup() as pumps:
                pumps.create_task(_inwards(reader, inner))
                pumps.create_task(_outwards(inner, writer))
        except* (SandkeeperError, OSError) as failures:
            # Either side broke, or there is no other side: this one is told so.
            self.last_error = _told(failures)
            _reset(writer)
        finally:
            writer.close()


async def _inwards(reader: asyncio.StreamReader, inner: PortStream) -> None:
    while piece := await reader.read(PIECE_BYTES):
        await inner.write(piece)
    await inner.write_eof()


async def _outwards(inner: PortStream, writer: asyncio.StreamWriter) -> None:
    while piece := await inner.read(PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
    writer.write_eof()


def _told(failures: BaseExceptionGroup[SandkeeperError | OSError]) -> SandkeeperError | None:
    found: BaseException = failures
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found if isinstance(found, SandkeeperError) else None


def _reset(writer: asyncio.StreamWriter) -> None:
    inner = writer.get_extra_info("socket")
    if inner is not None:
        inner.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


def _check_loopback(host: str) -> None:
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise InvalidArgument(f"only a loopback address, not {host!r:.60}", code="host_invalid")
