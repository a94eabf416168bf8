"""TCP ports inside a sandbox: wait for one, dial one, bring one to this machine.

Owns the byte streams and the listeners made here. Nothing is published by the container: every byte goes through
boxd, which dials the sandbox's own loopback, and none is looked at: HTTP, WebSockets and event streams pass as they
are, `Host` included.
"""

from __future__ import annotations

from sandkeeper.boxd.box_ports import check_port
from sandkeeper.client.box_link import BoxLink
from sandkeeper.client.boxed import Boxed
from sandkeeper.client.forward import Forward
from sandkeeper.client.port_stream import PortStream


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

        async def dialled(link: BoxLink) -> PortStream:
            reader, writer = await link.ports.dial(port, timeout_s=timeout_s)
            return PortStream(reader, writer, link=link)

        return await self._with_box(dialled)

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
            lambda: self.dial(port),
            port_inside=port,
            host=host,
            local_port=local_port,
            ports=self._ports,
            release=self._boxes.release,
        )
        await forward.open()
        self._boxes.hold(forward.close)
        return forward
