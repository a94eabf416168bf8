"""The client's link to one boxd: commands at once, files and ports when they are asked for.

Owns the transport that both share. The owner's verbs (go, quiesce, resume) are not here: a lease gives no right to
them. Light to import, because the command line's `exec` is.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sandkeeper.boxd.runs import Runs
from sandkeeper.boxd.transport import Deadlines, Transport
from sandkeeper.ports import Ports

if TYPE_CHECKING:
    from sandkeeper.boxd.answers import Vitals
    from sandkeeper.boxd.box_ports import BoxPorts
    from sandkeeper.boxd.files import Files


class BoxLink:
    """A client of the boxd behind `control_path`, for one event loop; constructing opens nothing.

    Attributes:
        runs: Commands.
    """

    def __init__(self, control_path: Path, *, generation: int, epoch: int, ports: Ports) -> None:
        self._transport = Transport(
            control_path, generation=generation, epoch=epoch, ports=ports, deadlines=Deadlines()
        )
        self.runs = Runs(self._transport, ports=ports)

    @property
    def files(self) -> Files:
        """Files and archives."""
        from sandkeeper.boxd.files import Files

        return Files(self._transport)

    @property
    def ports(self) -> BoxPorts:
        """TCP ports inside."""
        from sandkeeper.boxd.box_ports import BoxPorts

        return BoxPorts(self._transport)

    async def vitals(self, *, timeout_s: float) -> Vitals:
        """Return what boxd says of the box's health; as `BoxdLink.vitals`."""
        from sandkeeper.boxd.vitals import read_vitals

        return await read_vitals(self._transport, timeout_s=timeout_s)

    async def greet(self, *, timeout_s: float) -> None:
        """Return if boxd answers at all; a paused box accepts and is silent.

        Raises:
            Unavailable: `runtime_unreachable` or `runtime_silent`; nothing was begun.
        """
        exchange = await self._transport.begin("GET", "/health", step="greeting")
        exchange.admitted = "no"
        try:
            await exchange.expect(204, wait_s=timeout_s)
        finally:
            exchange.close()

    async def aclose(self) -> None:
        """Close the connections and wait for the kills that cancelled calls left. Repeating is safe."""
        await self.runs.settle()
        self._transport.close()
