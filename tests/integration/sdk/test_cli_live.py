"""The command line talking with processes in a real container: input, terminals, ids, kills, differences, forwards."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from fcntl import ioctl
from typing import Any

import pytest

from sandkeeper import Sandbox
from tests.support.yard import ROOT, Yard

pytestmark = pytest.mark.docker
PATIENCE_S = 60

Sk = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def sk(yard: Yard) -> Sk:
    """Return a function that starts one command line."""

    def start(*words: str, **pipes: Any) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "controller"),
            "SANDKEEPER_STATE_DIR": str(yard.config.state_dir),
        }
        return subprocess.Popen(
            [sys.executable, "-m", "sandkeeper.cli.app", *words],
            env=environment,
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | pipes,
        )

    return start


async def said(child: subprocess.Popen[bytes], given: bytes | None = None) -> tuple[int, bytes, bytes]:
    """Wait for a command line's end; return its status and what it said."""
    out, err = await asyncio.to_thread(child.communicate, given, PATIENCE_S)
    return child.returncode, out, err


async def test_input_is_passed_on_as_it_is_and_without_an_end(sandbox: Sandbox, sk: Sk) -> None:
    content = bytes(range(256)) * 8192
    child = sk("exec", "-i", sandbox.id, "cat", stdin=subprocess.PIPE)
    assert await said(child, content) == (0, content, b"")
    early = sk("exec", "-i", sandbox.id, "sh", "-c", "head -c 3; exit 5", stdin=subprocess.PIPE)
    assert early.stdin is not None
    early.stdin.write(b"abcdef")
    early.stdin.flush()
    assert await asyncio.to_thread(early.wait, PATIENCE_S) == 5
    assert early.stdout is not None
    assert early.stdout.read() == b"abc"
    for pipe in (early.stdin, early.stdout, early.stderr):
        assert pipe is not None
        pipe.close()


async def test_a_terminal_has_the_size_of_this_one_and_follows_it(sandbox: Sandbox, sk: Sk) -> None:
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 99, 0, 0))
    before = termios.tcgetattr(theirs)
    child = sk("exec", "-t", sandbox.id, "sh", stdin=theirs, stdout=theirs, stderr=theirs)
    try:
        os.write(ours, b"stty size; echo re''ady\n")
        seen = await asyncio.to_thread(read_until, ours, b"ready\r\n")
        assert b"33 99" in seen
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 111, 0, 0))
        os.kill(child.pid, signal.SIGWINCH)
        os.write(
            ours, b"until [ \"$(stty size)\" = '44 111' ]; do sleep 0.05; done; echo re''sized; exit 6\n"
        )
        await asyncio.to_thread(read_until, ours, b"resized\r\n")
        assert await asyncio.to_thread(child.wait, PATIENCE_S) == 6
        assert termios.tcgetattr(theirs) == before
    finally:
        child.kill()
        os.close(ours)
        os.close(theirs)


def read_until(fd: int, end: bytes) -> bytes:
    seen = b""
    while end not in seen:
        assert select.select([fd], [], [], PATIENCE_S / 2)[0], seen
        seen += os.read(fd, 4096)
    return seen


async def test_what_was_left_going_is_listed_attached_and_killed(sandbox: Sandbox, sk: Sk) -> None:
    status, out, _ = await said(sk("exec", "-d", sandbox.id, "sh", "-c", "echo a; sleep 1; echo b; exit 3"))
    assert status == 0
    process_id = out.decode().strip()
    assert process_id.encode() in (await said(sk("processes", sandbox.id)))[1]
    assert await said(sk("attach", "--offset", "1", sandbox.id, process_id)) == (3, b"\nb\n", b"")
    status, out, _ = await said(sk("exec", "-d", "--json", sandbox.id, "sleep", "60"))
    process_id = json.loads(out)["process_id"]
    assert (await said(sk("kill", sandbox.id, process_id)))[0] == 0
    status, out, _ = await said(sk("attach", "--json", sandbox.id, process_id))
    assert (status, json.loads(out)["signal"]) == (128 + 9, 9)


async def test_a_limit_says_which_it_was(sandbox: Sandbox, sk: Sk) -> None:
    for words in (("exec", "--quiet-timeout", "0.5"), ("exec", "-i", "--quiet-timeout", "0.5")):
        status, _, err = await said(sk(*words, sandbox.id, "sleep", "60"))
        assert (status, b"without output" in err) == (124, True), err


async def test_an_interrupt_kills_what_is_talked_with(sandbox: Sandbox, sk: Sk) -> None:
    child = sk(
        "exec",
        "-i",
        "--request-id",
        "talked",
        sandbox.id,
        "sh",
        "-c",
        "echo on; sleep 60",
        stdin=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert await asyncio.to_thread(child.stdout.readline) == b"on\n"
    child.send_signal(signal.SIGINT)
    assert (await said(child))[0] == 130
    result = await (await sandbox.processes.attach("talked")).wait()
    assert (result.outcome, result.signal) == ("signaled", 9)


async def test_a_forward_and_a_difference_from_a_shell(own_sandbox: Sandbox, sk: Sk) -> None:
    await own_sandbox.spawn(["python3", "-m", "http.server", "8201"], detached=True)
    await own_sandbox.ports.wait(8201)
    forwarding = sk("forward", "--json", own_sandbox.id, "8201")
    assert forwarding.stdout is not None
    where = json.loads(await asyncio.to_thread(forwarding.stdout.readline))
    reader, writer = await asyncio.open_connection(where["host"], where["port"])
    writer.write(b"GET / HTTP/1.0\r\n\r\n")
    assert b" 200 OK" in await reader.readline()
    writer.close()
    forwarding.send_signal(signal.SIGINT)
    assert (await said(forwarding))[0] == 130
    await own_sandbox.snapshot()
    await own_sandbox.files.write("/tmp/new", "x\n")
    status, out, _ = await said(sk("diff", own_sandbox.id))
    assert status == 0
    assert b"A /tmp/new\n" in out
    assert b"+++ b/tmp/new\n@@ -0,0 +1 @@\n+x\n" in (await said(sk("diff", "-p", own_sandbox.id)))[1]
