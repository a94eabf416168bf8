"""A second container engine of a test's own: started, stopped, killed and filled up without touching the user's.

Import the fixture `private_engines` into a conftest, or use `PrivateEngine` as a context manager. It needs root and
`dockerd`. Everything of it is in one folder and is gone afterwards: processes, mounts, files.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import docker
import pytest
from docker.errors import DockerException

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0


class PrivateEngine:
    """One dockerd with its own socket, data and containerd, and no network.

    Args:
        disk_mib: When given, its data is on a tmpfs of that size.
        live_restore: Whether containers go on when it stops.
    """

    def __init__(self, *, disk_mib: int | None = None, live_restore: bool = True) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sk-engine-"))
        self.url = f"unix://{self.folder}/docker.sock"
        self.data_root = self.folder / "data"
        self._disk_mib = disk_mib
        self._live_restore = live_restore
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.data_root.mkdir()
            if self._disk_mib is not None:
                size = f"size={self._disk_mib}m"
                subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(self.data_root)], check=True)
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether its process is there; it may hang."""
        return self._process is not None and self._process.poll() is None

    def client(self, *, timeout_s: float = 60) -> docker.APIClient:
        return docker.APIClient(base_url=self.url, version="auto", timeout=timeout_s)

    def start(self) -> None:
        """Start it, or start it again with the data it had, and wait until it answers."""
        # A network namespace of its own: with `--bridge=none` dockerd deletes the `docker0` of the one it is in.
        argv = [
            "unshare",
            "--net",
            "dockerd",
            f"--host={self.url}",
            f"--data-root={self.data_root}",
            f"--exec-root={self.folder}/exec",
            f"--pidfile={self.folder}/docker.pid",
            "--bridge=none",
            "--iptables=false",
            "--ip6tables=false",
            "--log-level=warn",
            *(["--live-restore"] if self._live_restore else []),
        ]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the private engine did not start:\n{self.log_tail()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End it in order (SIGTERM)."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Let it hang: its socket takes connections and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def log_tail(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-3000:]

    def close(self) -> None:
        """Remove its containers, end it and everything it started, unmount, and delete the folder."""
        if self._process is not None and self._process.poll() is None:
            self.thaw()
            with contextlib.suppress(DockerException, OSError):
                self._remove_containers()
            self.stop()
        for pid in _processes_naming(str(self.folder)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _wait(lambda: not _processes_naming(str(self.folder)))
        for target in reversed(_mounts_below(str(self.folder))):
            subprocess.run(["umount", "-l", target], check=True, capture_output=True)
        shutil.rmtree(self.folder)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as ping:
            ping.settimeout(5)
            try:
                ping.connect(self.url.removeprefix("unix://"))
                ping.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
                return b" 200 " in ping.recv(64)
            except OSError:
                return False

    def _remove_containers(self) -> None:
        client = self.client(timeout_s=20)
        try:
            for entry in client.containers(all=True):
                client.remove_container(entry["Id"], force=True, v=True)
        finally:
            client.close()

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)
        # Its containerd ends with it (parent-death signal). The next start trusts what pid files say: they must go.
        containerd = f"{self.folder}/exec/containerd/containerd.toml"
        _wait(lambda: not _processes_naming(containerd))
        for name in ("docker.pid", "exec/containerd/containerd.pid"):
            (self.folder / name).unlink(missing_ok=True)


def _wait(is_done: Callable[[], bool], *, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_done():
        if time.monotonic() > deadline:
            raise TimeoutError("the private engine left something running")
        time.sleep(0.02)


def _processes_naming(text: str) -> list[int]:
    """Pids of live processes with `text`, the engine's own folder, on their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            argv = (folder / "cmdline").read_bytes().split(b"\0")
            if argv[0].rpartition(b"/")[2] in _ENGINE_PROGRAMS and any(
                text.encode() in word for word in argv
            ):
                found.append(int(folder.name))
    return found


_ENGINE_PROGRAMS = (b"dockerd", b"containerd", b"containerd-shim-runc-v2", b"containerd-shim", b"runc")


def _mounts_below(folder: str) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [target for line in lines if (target := line.split()[1]).startswith(f"{folder}/")]


StartPrivateEngine = Callable[..., PrivateEngine]


@pytest.fixture
def private_engines() -> Iterator[StartPrivateEngine]:
    """Return a function that starts a private engine (`disk_mib=`, `live_restore=`); all end with the test."""
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("a private engine needs root and dockerd")
    with contextlib.ExitStack() as stack:
        yield lambda **settings: stack.enter_context(PrivateEngine(**settings))
