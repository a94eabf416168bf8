"""A fake boxd on real sockets: what the containers of a bench's fake engine have for process 1.

It fetches its listener at the boot socket as the real one does and answers the control routes (hello, go, quiesce,
resume, health) there. It runs no programs. Its peer pid is that of this process.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from sandkeeper.boxd.paths import BOOT_SOCKET, SocketAddress
from sandkeeper.core.errors import FailedPrecondition, SandkeeperError
from sandkeeper.ports import Ports
from tests.fakes.boxd import FakeBoxd
from tests.fakes.engine_world import Boot, FakeRuntime

RETRY_S = 0.02
GREETING = b'{"protocol":1,"build":"fake","pid1":true}\n'


class ServedBox:
    """One box; made at the start of its container, ended by `die`. A frozen one accepts and is silent."""

    def __init__(self, runtime: FakeRuntime, *, ports: Ports) -> None:
        self._fake = FakeBoxd(runtime.birth_id, ports=ports, files=runtime.files)
        self._boot_path = Path(runtime.settings.run_dir) / BOOT_SOCKET
        self._ports = ports
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_thawed = asyncio.Event()
        self._is_thawed.set()
        self._booting = ports.spawn(self._boot(), name=f"fake boxd {runtime.birth_id}")

    def freeze(self) -> None:
        self._fake.freeze()
        self._is_thawed.clear()

    def thaw(self) -> None:
        self._fake.thaw()
        self._is_thawed.set()

    def die(self) -> None:
        self._fake.die()
        self._booting.cancel()
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _boot(self) -> None:
        while (listener := await self._fetch_listener()) is None:
            await self._ports.sleep(RETRY_S)
        self._server = await asyncio.start_unix_server(self._serve, sock=listener)

    async def _fetch_listener(self) -> socket.socket | None:
        loop = asyncio.get_running_loop()
        address = SocketAddress(self._boot_path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as boot:
            try:
                boot.connect(address.text())
                boot.send(GREETING)
                await _readable(loop, boot)
                _, descriptors, _, _ = socket.recv_fds(boot, 4096, 1)
            except OSError:
                return None  # nobody listens yet, or it went away: by contract it is tried for ever
            finally:
                address.close()
        if not descriptors:
            return None
        listener = socket.socket(fileno=descriptors[0])
        listener.setblocking(False)
        return listener

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                request, *headers = head.decode().split("\r\n")
                fields = {
                    name.lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in headers)
                }
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                await self._is_thawed.wait()
                writer.write(self._answer(request.split()[1], json.loads(body or b"{}")))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # the client has gone
        finally:
            self._writers.discard(writer)
            writer.close()

    def _answer(self, path: str, document: dict[str, Any]) -> bytes:
        if path == "/health":
            return _response(HTTPStatus.NO_CONTENT, None)
        route = self._routes().get(path.removeprefix("/sandkeeper/v1/"))
        if route is None:
            return _response(HTTPStatus.NOT_FOUND, {"code": "unimplemented", "message": path})
        try:
            return _response(HTTPStatus.OK, route(document))
        except SandkeeperError as error:
            is_fence = isinstance(error, FailedPrecondition)
            refusal = {
                "code": "failed_precondition" if is_fence else "unavailable",
                "message": error.message,
                "sandkeeper": {"code": error.code, **error.details},
            }
            return _response(HTTPStatus.CONFLICT if is_fence else HTTPStatus.SERVICE_UNAVAILABLE, refusal)

    def _routes(self) -> dict[str, Callable[[dict[str, Any]], dict[str, Any]]]:
        return {"hello": self._hello, "go": self._go, "quiesce": self._quiesce, "resume": self._resume}

    def _hello(self, _document: dict[str, Any]) -> dict[str, Any]:
        return self._fake.hello().model_dump(by_alias=True)

    def _go(self, document: dict[str, Any]) -> dict[str, Any]:
        self._fake.check_fence(step="go", epoch=document["epoch"], generation=document["generation"])
        self._fake.generation = document["generation"]
        return self._hello(document)

    def _quiesce(self, document: dict[str, Any]) -> dict[str, Any]:
        self._fake.check_fence(step="quiesce", epoch=document["epoch"])
        self._fake.check_started(step="quiesce")
        self._fake.drain()
        return {"state": "drained", "runs": []}

    def _resume(self, document: dict[str, Any]) -> dict[str, Any]:
        self._fake.check_fence(step="resume", epoch=document["epoch"])
        self._fake.check_started(step="resume")
        self._fake.undrain()
        return self._hello(document)


def serve_boxes(ports: Ports) -> Boot:
    """Return the boot hook of a world whose containers have a served box."""
    return lambda runtime: ServedBox(runtime, ports=ports)


def _response(status: HTTPStatus, document: dict[str, Any] | None) -> bytes:
    body = b"" if document is None else json.dumps(document).encode()
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
    length = "" if document is None else f"Content-Length: {len(body)}\r\n"
    return f"{head}{length}\r\n".encode() + body


async def _readable(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
    ready: asyncio.Future[None] = loop.create_future()

    def arrive() -> None:
        loop.remove_reader(connection)
        ready.set_result(None)

    loop.add_reader(connection, arrive)
    try:
        await ready
    finally:
        loop.remove_reader(connection)
