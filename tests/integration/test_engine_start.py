"""A real dockerd of our own beside the user's: started, found again, stale pid files, never a second one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandkeeper.containers.bootstrap import ensure_engine
from sandkeeper.containers.dockerd import EnginePaths
from sandkeeper.containers.endpoint import answers, connect
from sandkeeper.containers.host import RealHost
from sandkeeper.containers.machine import Machine
from sandkeeper.containers.process_facts import read_process
from sandkeeper.core.errors import Unavailable
from sandkeeper.ports import RealClock

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(300)]

STOP_TIMEOUT_S = 60.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path short enough for the sockets of containerd."""
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("needs root and dockerd")
    made = Path(tempfile.mkdtemp(prefix="sk-", dir="/tmp"))
    yield made
    stop(made / "d.pid")
    stop(made / "exec" / "containerd" / "containerd.pid")
    # A dockerd that ends early leaves its data root mounted on itself.
    for line in Path("/proc/self/mounts").read_text().splitlines():
        if line.split()[1].startswith(f"{made}/"):
            subprocess.run(["umount", line.split()[1]], check=True)
    shutil.rmtree(made)


def private_paths(folder: Path, *flags: str) -> EnginePaths:
    return EnginePaths(
        socket=folder / "d.sock",
        pid_file=folder / "d.pid",
        log=folder / "d.log",
        containerd_pid_file=folder / "exec" / "containerd" / "containerd.pid",
        config_file=folder / "daemon.json",
        extra_flags=(
            f"--data-root={folder}/data",
            f"--exec-root={folder}/exec",
            "--bridge=none",
            "--iptables=false",
            *flags,
        ),
        # With `--bridge=none` dockerd deletes docker0 where it runs: that one is the user's engine's.
        command_prefix=("unshare", "--net"),
    )


def stop(pid_file: Path) -> None:
    """End the process a pid file names and wait until it is gone."""
    if not pid_file.exists():
        return
    pid = int(pid_file.read_text())
    facts = read_process(pid)
    if facts is None or facts.name not in ("dockerd", "containerd"):
        return
    os.kill(pid, signal.SIGTERM)
    deadline_s = time.monotonic() + STOP_TIMEOUT_S
    while (
        (now := read_process(pid)) is not None and not now.is_zombie and now.start_ticks == facts.start_ticks
    ):
        assert time.monotonic() < deadline_s, f"{facts.name} {pid} does not end"
        time.sleep(0.05)


def this_machine() -> Machine:
    return Machine(host=RealHost(), environment={}, clock=RealClock(), sleep=time.sleep, answers=answers)


def test_an_engine_is_started_once_and_survives_us(folder: Path) -> None:
    paths = private_paths(folder)
    # What a machine that lost its power leaves: the number belongs to somebody else now.
    paths.pid_file.write_text(str(os.getpid()))
    paths.containerd_pid_file.parent.mkdir(parents=True)
    paths.containerd_pid_file.write_text(str(os.getpid()))

    first = ensure_engine(this_machine(), state_dir=folder / "state", paths=paths)

    assert first.started is not None
    facts = read_process(first.started.pid)
    assert facts is not None
    assert (facts.name, facts.start_ticks) == ("dockerd", first.started.start_ticks)
    assert int(paths.pid_file.read_text()) == first.started.pid
    assert os.getsid(first.started.pid) == first.started.pid, "a session of its own"
    parent = subprocess.run(
        ["ps", "-o", "ppid=", "-p", str(first.started.pid)], capture_output=True, text=True, check=True
    )
    assert int(parent.stdout) != os.getpid()
    client = connect(first.endpoint)
    try:
        info = client.info()
    finally:
        client.close()
    assert info["LiveRestoreEnabled"] is True
    assert info["DockerRootDir"] == f"{folder}/data"

    second = ensure_engine(this_machine(), state_dir=folder / "state", paths=paths)
    assert second.started is None
    assert second.endpoint == first.endpoint


def network_links() -> set[str]:
    return {path.name for path in Path("/sys/class/net").iterdir()}


def test_the_private_engine_leaves_the_machines_network_alone(folder: Path) -> None:
    before = network_links() & {"docker0"}
    ensure_engine(this_machine(), state_dir=folder / "state", paths=private_paths(folder))
    assert network_links() & {"docker0"} == before


def test_an_engine_that_cannot_start_is_reported_with_its_own_words(folder: Path) -> None:
    with pytest.raises(Unavailable) as refusal:
        ensure_engine(
            this_machine(), state_dir=folder, paths=private_paths(folder, "--storage-driver=nonsense")
        )
    assert refusal.value.code == "engine_start_failed"
    assert "failed to start daemon: error initializing graphdriver" in refusal.value.message
    assert not (folder / "engine.json").exists()
