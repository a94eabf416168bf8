"""TCP ports inside the box: wait until one accepts, dial one.

Owns the upgrade from a request to a raw byte stream. boxd dials loopback inside; nothing is published on the
host. Never interprets the bytes.
"""

from __future__ import annotations

import asyncio

from sandkeeper.boxd import errors
from sandkeeper.boxd.paths import SocketAddress
from sandkeeper.boxd.transport import Transport
from sandkeeper.boxd.wire import decode_json
from sandkeeper.core.errors import InvalidArgument, Unavailable

HEAD_LIMIT_BYTES = 16 * 1024
GRACE_S = 2.0


class BoxPorts:
    """Ports of one box, over its link's transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def wait(self, port: int, *, timeout_s: float) -> None:
        """Return when something inside accepts connections on `port`.

        Raises:
            InvalidArgument: `port_invalid`.
            Unavailable: `port_timeout`, or the box does not answer.
        """
        check_port(port)
        target = f"/sandkeeper/v1/ports/wait?port={port}&timeoutMs={round(timeout_s * 1000)}"
        exchange = await self._transport.begin("GET", target, step="ports.wait")
        try:
            await exchange.expect(204, wait_s=timeout_s + GRACE_S)
        finally:
            exchange.close()

    async def dial(
        self, port: int, *, timeout_s: float = 5.0
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to `port` on the box's loopback and return the raw byte stream; the caller closes it.

        Raises:
            InvalidArgument: `port_invalid`.
            Unavailable: `port_closed` (nobody listens there), or the box does not answer.
        """
        check_port(port)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._dial(port)
        except TimeoutError as error:
            raise errors.silent(timeout_s, step="ports.dial", admitted="unknown") from error

    async def _dial(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        address = SocketAddress(self._transport.control_path)
        try:
            reader, writer = await asyncio.open_unix_connection(address.text(), limit=2**16)
        except OSError as error:
            raise errors.unreachable(error, step="ports.dial") from error
        finally:
            address.close()
        try:
            writer.write(
                f"POST /sandkeeper/v1/dial?port={port} HTTP/1.1\r\nHost: box\r\n"
                f"Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n{self._transport.fence}\r\n".encode()
            )
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 101 " not in head.partition(b"\r\n")[0]:
                raise await _refused(port, head, reader)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            writer.close()
            raise errors.unreachable(OSError(str(error)), step="ports.dial") from error
        except BaseException:
            writer.close()
            raise
        return reader, writer


def check_port(port: int) -> None:
    """Refuse what is no TCP port.

    Raises:
        InvalidArgument: `port_invalid`.
    """
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65_535:
        raise InvalidArgument(f"port must be 1 to 65535, not {port!r:.40}", code="port_invalid")


async def _refused(port: int, head: bytes, reader: asyncio.StreamReader) -> Exception:
    body = await reader.read(HEAD_LIMIT_BYTES)
    status = head.split(b" ", 2)[1].decode(errors="replace") if head.count(b" ") >= 2 else "?"
    code, message = "port_closed", f"status {status}"
    document = decode_json(body) if body.startswith(b"{") else {}
    if isinstance(document, dict):
        ours = document.get("sandkeeper")
        code = str(ours.get("code", code)) if isinstance(ours, dict) else code
        message = str(document.get("message", message))[:300]
    return Unavailable(
        f"ports.dial {port}: {message}",
        code=code,
        advice="wait for the port first, or look whether the server runs",
        details={"port": port},
    )
