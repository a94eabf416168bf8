"""A listener on this machine's loopback whose connections go on to a port in a sandbox.

Owns the listener and the pumping of bytes, each way by itself, half-closes included. It never reads what it passes
on, and holds at most one piece of it.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from sandkeeper.core.errors import FailedPrecondition, InvalidArgument, SandkeeperError
from sandkeeper.ports import Ports

PIECE_BYTES = 64 * 1024
MOST_CONNECTIONS = 256

Dial = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class Forward:
    """One listener; an async context manager that closes it.

    A connection that cannot be passed on is closed; `last_error` says why.

    Attributes:
        host: Where it listens.
        port: The local port, once open.
        last_error: Why the last refused connection was refused.
    """

    def __init__(self, dial: Dial, *, port_inside: int, host: str, local_port: int, ports: Ports) -> None:
        self.host = host
        self.port = local_port
        self.last_error: SandkeeperError | None = None
        self._dial = dial
        self._port_inside = port_inside
        self._ports = ports
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
            writer.close()
            return
        task = self._ports.spawn(self._pass(reader, writer), name=f"forward {self._port_inside}")
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await self._dial()
        except SandkeeperError as error:
            self.last_error = error
            writer.transport.abort()
            return
        except BaseException:
            writer.transport.abort()
            raise
        pumps: list[Any] = [_pump(reader, inner_writer), _pump(inner_reader, writer)]
        try:
            await asyncio.gather(*pumps)
        except OSError:
            # One side broke: the other is told the same way.
            writer.transport.abort()
            inner_writer.transport.abort()
        finally:
            writer.close()
            inner_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on as they come, then the end of them."""
    while piece := await reader.read(PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def _check_loopback(host: str) -> None:
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise InvalidArgument(f"only a loopback address, not {host!r:.60}", code="host_invalid")
