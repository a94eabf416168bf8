"""TCP ports inside a sandbox: wait for one, dial one, bring one to this machine.

Owns the byte streams and the listeners made here. Nothing is published by the container: every byte goes through
boxd, which dials the sandbox's own loopback, and none is looked at: HTTP, WebSockets and event streams pass as they
are, `Host` included.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from sandkeeper.boxd.box_ports import check_port
from sandkeeper.client.boxed import Boxed
from sandkeeper.client.forward import Forward

READ_BYTES = 64 * 1024


class PortStream:
    """A connection to a port inside; an async context manager that closes it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, count: int = READ_BYTES) -> bytes:
        """Return the next bytes, at most `count`; b"" at the end."""
        return await self._reader.read(count)

    async def write(self, data: bytes) -> None:
        """Send all of `data`; waits while the other side is slow."""
        self._writer.write(data)
        await self._writer.drain()

    async def write_eof(self) -> None:
        """Say that nothing more is sent; reading goes on."""
        self._writer.write_eof()

    async def close(self) -> None:
        """End the connection. Repeating is safe."""
        self._writer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class SandboxPorts(Boxed):
    """`sandbox.ports`."""

    async def wait(self, port: int, *, timeout_s: float = 30.0) -> None:
        """Return when something inside accepts connections on `port`.

        Raises:
            InvalidArgument: `port_invalid`.
            Unavailable: `port_timeout`.
        """
        await self._with_box(lambda link: link.ports.wait(port, timeout_s=timeout_s))

    async def dial(self, port: int, *, timeout_s: float = 5.0) -> PortStream:
        """Connect to `port` on the sandbox's loopback.

        Raises:
            InvalidArgument: `port_invalid`.
            Unavailable: `port_closed`: nobody listens there.
        """
        reader, writer = await self._with_box(lambda link: link.ports.dial(port, timeout_s=timeout_s))
        return PortStream(reader, writer)

    async def forward(self, port: int, *, host: str = "127.0.0.1", local_port: int = 0) -> Forward:
        """Listen on this machine's loopback and pass every connection on to `port` inside, until closed.

        Args:
            port: The port inside.
            host: Loopback address to listen on.
            local_port: Port to listen on; 0 = any free one (see `Forward.port`).

        Raises:
            InvalidArgument: `port_invalid`, `host_invalid`: only loopback addresses.
            FailedPrecondition: `address_in_use`.
        """
        check_port(port)
        forward = Forward(
            lambda: self._with_box(lambda link: link.ports.dial(port)),
            port_inside=port,
            host=host,
            local_port=local_port,
            ports=self._ports,
        )
        await forward.open()
        self._boxes.hold(forward.close)
        return forward
