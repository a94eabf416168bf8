"""Ports through the SDK: waiting, dialling, and forwards that pass HTTP, event streams and WebSockets as they are."""

from __future__ import annotations

import asyncio
import hashlib
import io
from contextlib import aclosing

import aiohttp
import pytest

from sandkeeper import Sandbox, SandkeeperError
from tests.support.yard import Yard

pytestmark = pytest.mark.docker

SERVER = """
import base64, hashlib, http.server, time

class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.headers.get("Upgrade") == "websocket":
            return self.websocket()
        if self.path == "/events":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for number in range(3):
                self.wfile.write(f"data: {number}\\n\\n".encode())
                self.wfile.flush()
                time.sleep(0.4)
            self.close_connection = True
            return
        body = self.headers["Host"].encode()
        self.answer(body)

    def do_POST(self):
        digest = hashlib.sha256()
        left = int(self.headers["Content-Length"])
        while left:
            piece = self.rfile.read(min(left, 65536))
            digest.update(piece)
            left -= len(piece)
        self.answer(digest.hexdigest().encode())

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def websocket(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        head = f"HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
        self.wfile.write(f"{head}Sec-WebSocket-Accept: {accept}\\r\\n\\r\\n".encode())
        first, second = self.rfile.read(2)
        mask = self.rfile.read(4)
        text = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(second & 127)))
        self.wfile.write(bytes((0x81, len(text))) + text)
        self.wfile.write(bytes((0x88, 6)) + (4001).to_bytes(2, "big") + b"done")
        self.close_connection = True

http.server.ThreadingHTTPServer(("127.0.0.1", {port}), Answers).serve_forever()
"""


async def serve(sandbox: Sandbox, *, port: int) -> None:
    await sandbox.files.write(f"/tmp/server{port}.py", SERVER.replace("{port}", str(port)))
    await sandbox.spawn(["python3", f"/tmp/server{port}.py"], request_id=f"server{port}", detached=True)
    await sandbox.ports.wait(port, timeout_s=20)


async def test_a_port_is_waited_for_and_dialled(sandbox: Sandbox) -> None:
    with pytest.raises(SandkeeperError) as closed:
        await sandbox.ports.dial(8101)
    assert closed.value.code == "port_closed"
    with pytest.raises(SandkeeperError) as late:
        await sandbox.ports.wait(8101, timeout_s=0.2)
    assert late.value.code == "port_timeout"
    await serve(sandbox, port=8102)
    async with await sandbox.ports.dial(8102) as stream:
        await stream.write(b"GET / HTTP/1.1\r\nHost: inside\r\nConnection: close\r\n\r\n")
        await stream.write_eof()
        answer = b""
        while piece := await stream.read():
            answer += piece
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"inside")


async def test_a_forward_passes_http_as_it_is(sandbox: Sandbox) -> None:
    await serve(sandbox, port=8103)
    body = bytes(range(256)) * 4096 * 8
    async with await sandbox.ports.forward(8103) as forward, aiohttp.ClientSession() as client:
        url = f"http://{forward.address}"
        async with client.get(url, headers={"Host": "app.example"}) as answer:
            assert await answer.text() == "app.example"
        async with client.post(url, data=io.BytesIO(body)) as answer:
            assert await answer.text() == hashlib.sha256(body).hexdigest()
        async with client.get(f"{url}/events") as answer:
            first = await answer.content.readuntil(b"\n\n")
            assert first == b"data: 0\n\n"
            assert not answer.content.at_eof()
            assert await answer.content.read() == b"data: 1\n\ndata: 2\n\n"
    with pytest.raises(OSError):
        await asyncio.open_connection(forward.host, forward.port)


async def test_a_forward_passes_websockets_and_their_close_codes(sandbox: Sandbox) -> None:
    await serve(sandbox, port=8104)
    async with (
        await sandbox.ports.forward(8104) as forward,
        aiohttp.ClientSession() as client,
        client.ws_connect(f"ws://{forward.address}/") as socket,
    ):
        await socket.send_str("hello")
        assert await socket.receive_str() == "hello"
        closed = await socket.receive()
        assert (closed.type, closed.data, closed.extra) == (aiohttp.WSMsgType.CLOSE, 4001, "done")


async def test_the_end_of_a_lost_runtime_is_no_clean_end(own_sandbox: Sandbox, yard: Yard) -> None:
    """A body that ends with its connection must not look whole when the box died."""
    await serve(own_sandbox, port=8106)
    async with await own_sandbox.ports.forward(8106) as forward:
        reader, writer = await asyncio.open_connection(forward.host, forward.port)
        writer.write(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"data: 0\n\n")
        stream = await own_sandbox.ports.dial(8106)
        yard.kill_container(str((await own_sandbox.describe()).birth_id))
        with pytest.raises(ConnectionResetError):
            await reader.read(-1)
        writer.close()
        with pytest.raises(SandkeeperError) as lost:
            await stream.read()
        assert lost.value.code == "connection_lost"
        await stream.close()


async def test_a_forward_says_why_it_refuses(sandbox: Sandbox) -> None:
    async with await sandbox.ports.forward(8105) as forward:
        reader, writer = await asyncio.open_connection(forward.host, forward.port)
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()
        assert forward.last_error is not None
        assert forward.last_error.code == "port_closed"
        with pytest.raises(SandkeeperError) as taken:
            await sandbox.ports.forward(8105, local_port=forward.port)
        assert taken.value.code == "address_in_use"
    with pytest.raises(SandkeeperError) as outside:
        await sandbox.ports.forward(8105, host="0.0.0.0")
    assert outside.value.code == "host_invalid"


async def test_a_text_stream_is_passed_on_piece_by_piece(sandbox: Sandbox) -> None:
    process = await sandbox.spawn("printf a; sleep 0.3; printf b")
    async with aclosing(process.stdout.text()) as texts:
        assert [text async for text in texts] == ["a", "b"]
