"""Dialling ports of a real container: half-closes, many idle streams without threads, waiting, refusals."""

from __future__ import annotations

import base64
import socket
import threading
import time
import uuid
from contextlib import closing

import pytest

from tests.support.raw_box import Box

pytestmark = pytest.mark.docker

ECHO = """
import socket, threading
listener = socket.create_server(("{address}", {port}), family={family}, backlog=512)
def echo(peer):
    while data := peer.recv(65536):
        peer.sendall(data)
    peer.sendall(b"bye")
    peer.close()
while True:
    threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()
"""


def serve(box: Box, *, port: int, address: str = "127.0.0.1") -> None:
    family = "socket.AF_INET6" if ":" in address else "socket.AF_INET"
    text = ECHO.format(address=address, port=port, family=family).encode()
    assert box.call("POST", f"/files?path=/tmp/echo{port}.py", text)[0] == 200
    assert box.sh(f"setsid python3 /tmp/echo{port}.py >/dev/null 2>/tmp/err &").end["exitCode"] == 0
    status, answer = box.call("GET", f"/sandkeeper/v1/ports/wait?port={port}&timeoutMs=20000")
    assert status == 204, (answer, box.sh("cat /tmp/err").stdout)


def dial(box: Box, port: int) -> socket.socket:
    conn = socket.socket(socket.AF_UNIX)
    conn.settimeout(30)
    conn.connect(str(box.control))
    conn.sendall(
        f"POST /sandkeeper/v1/dial?port={port} HTTP/1.1\r\nHost: box\r\n"
        "Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n".encode()
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += conn.recv(1)
    assert head.startswith(b"HTTP/1.1 101 "), head
    return conn


def read_all(conn: socket.socket) -> bytes:
    return b"".join(iter(lambda: conn.recv(1 << 20), b""))


@pytest.fixture(scope="module", autouse=True)
def _needs_python(box: Box) -> None:
    if box.sh("command -v python3").end["exitCode"] != 0:
        pytest.skip("the image has no python3")


def test_a_stream_carries_everything_both_ways(box: Box) -> None:
    serve(box, port=7001)
    sent = bytes(range(256)) * 40_000
    with closing(dial(box, 7001)) as conn:
        writer = threading.Thread(target=lambda: (conn.sendall(sent), conn.shutdown(socket.SHUT_WR)))
        writer.start()
        assert read_all(conn) == sent + b"bye"
        writer.join()


def test_ipv6_only_services_are_reached(box: Box) -> None:
    if b"0" not in box.sh("cat /proc/sys/net/ipv6/conf/lo/disable_ipv6 2>/dev/null").stdout:
        pytest.skip("this container has no IPv6 on its loopback")
    serve(box, port=7002, address="::1")
    with closing(dial(box, 7002)) as conn:
        conn.sendall(b"x")
        assert conn.recv(1) == b"x"


def test_idle_streams_take_no_threads_and_little_memory(make_box: object) -> None:
    box = make_box(pids=2000)  # type: ignore[operator]
    serve(box, port=7003)
    before = box.usage()
    conns = [dial(box, 7003) for _ in range(400)]
    for conn in conns:
        conn.sendall(b"ping")
        assert conn.recv(4) == b"ping"
    after = box.usage()
    for conn in conns:
        conn.close()
    assert after[1] == before[1]
    assert after[2] - before[2] < 20 * 1024
    while box.usage()[0] > before[0] + 10:
        time.sleep(0.05)


def test_closed_ports_are_told_and_open_streams_do_not_stop_a_drain(box: Box) -> None:
    status, refusal = box.ask("POST", "/sandkeeper/v1/dial?port=7999")
    assert (status, refusal["sandkeeper"]["code"]) == (502, "port_closed")
    status, refusal = box.ask("GET", "/sandkeeper/v1/ports/wait?port=7999&timeoutMs=100")
    assert (status, refusal["sandkeeper"]["code"]) == (504, "port_timeout")
    with closing(dial(box, 7001)) as conn:
        drained = box.ask("POST", "/sandkeeper/v1/quiesce", {"epoch": 1, "reason": "test"})[1]
        assert drained["state"] == "drained"
        assert box.ask("POST", "/sandkeeper/v1/dial?port=7001")[1]["sandkeeper"]["code"] == "draining"
        conn.sendall(b"still")
        assert conn.recv(5) == b"still"
        assert box.ask("POST", "/sandkeeper/v1/resume", {"epoch": 1})[0] == 200


def test_a_wait_ends_when_the_port_opens(box: Box) -> None:
    answers: list[int] = []
    waiter = threading.Thread(
        target=lambda: answers.append(
            box.call("GET", "/sandkeeper/v1/ports/wait?port=7005&timeoutMs=30000")[0]
        )
    )
    waiter.start()
    script = base64.b64encode(ECHO.format(address="127.0.0.1", port=7005, family="socket.AF_INET").encode())
    run_id = uuid.uuid4().hex
    box.sh(f"echo {script.decode()} | base64 -d > /tmp/late.py; setsid python3 /tmp/late.py &", runId=run_id)
    waiter.join()
    assert answers == [204]
