"""The command line on a real installation."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.up import Installed, sk_environment

pytestmark = [pytest.mark.docker, pytest.mark.ray, pytest.mark.slow]

SMALL = ("--vcpu", "0.5", "--memory-mib", "128")


@pytest.fixture
def box(installation: Installed) -> Iterator[str]:
    name = "cli-box"
    installation.sk("create", "--name", name, *SMALL)
    yield name
    installation.sk("rm", name, check=False)


def test_exec_passes_on_output_and_the_exit_code(installation: Installed, box: str) -> None:
    done = installation.sk("exec", box, "sh", "-c", "echo out; echo err >&2; exit 7", check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\n", b"err\n")
    assert installation.sk("exec", "-i", box, "cat", stdin=b"\x00fed\xff").stdout == b"\x00fed\xff"
    assert (
        installation.sk("exec", "-w", "/tmp", "-e", "A=b", box, "sh", "-c", "pwd; echo $A").stdout
        == b"/tmp\nb\n"
    )
    assert installation.sk("exec", "--timeout", "0.3", box, "sleep", "9", check=False).returncode == 124
    assert installation.sk("exec", box, "sh", "-c", "kill -9 $$", check=False).returncode == 137
    assert installation.sk("exec", box, "no-such-program", check=False).returncode == 125
    document = json.loads(installation.sk("exec", "--json", box, "echo", "hi").stdout)
    assert (document["stdout"], document["exit_code"], document["outcome"]) == ("hi\n", 0, "exited")


def test_a_long_output_comes_whole(installation: Installed, box: str) -> None:
    done = installation.sk("exec", box, "head", "-c", "5000000", "/dev/zero")
    assert len(done.stdout) == 5_000_000


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_output_comes_while_the_command_runs_and_a_signal_kills_it(
    installation: Installed, box: str, number: signal.Signals, status: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "sandkeeper.cli.app", "exec", box, "sh", "-c", "echo begun; exec sleep 1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=sk_environment(installation.state_dir),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == status
    assert installation.sk("exec", box, "pgrep", "-x", "sleep", check=False).returncode == 1


def test_a_reader_that_goes_away_ends_the_command(installation: Installed, box: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "sandkeeper.cli.app", "exec", box, "yes"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=sk_environment(installation.state_dir),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"y\n"
    process.stdout.close()
    assert process.wait(timeout=30) == 141
    assert installation.sk("exec", box, "pgrep", "-x", "yes", check=False).returncode == 1


def test_cp_both_ways(installation: Installed, box: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "file").write_text("text")
    installation.sk("cp", str(tmp_path / "in"), f"{box}:there")
    assert installation.sk("exec", box, "cat", "there/file").stdout == b"text"
    installation.sk("cp", f"{box}:there", str(tmp_path / "out"))
    assert (tmp_path / "out" / "file").read_text() == "text"
    installation.sk("cp", f"{box}:there/file", str(tmp_path / "one"))
    assert (tmp_path / "one").read_text() == "text"


def test_snapshot_fork_and_rm(installation: Installed, box: str) -> None:
    installation.sk("exec", box, "sh", "-c", "echo kept > file")
    snapshot = installation.sk("snapshot", "take", box, "--name", "base").stdout.decode().strip()
    forks = installation.sk("fork", snapshot, "-n", "2", *SMALL).stdout.decode().split()
    for fork in forks:
        assert installation.sk("exec", fork, "cat", "file").stdout == b"kept\n"
    refused = installation.sk("snapshot", "delete", snapshot, "--json", check=False)
    assert refused.returncode == 1
    assert json.loads(refused.stderr)["error"]["category"] == "FailedPrecondition"
    installation.sk("rm", box, *forks)
    installation.sk("snapshot", "delete", snapshot)


def test_run_leaves_nothing(installation: Installed) -> None:
    done = installation.sk("run", *SMALL, "--", "sh", "-c", "echo once; exit 3", check=False)
    assert (done.returncode, done.stdout) == (3, b"once\n")
    assert json.loads(installation.sk("ps", "--json").stdout) == []


def test_up_again_and_status(installation: Installed) -> None:
    assert json.loads(installation.sk("up", "--json").stdout)["was_up"]
    status = json.loads(installation.sk("status", "--json").stdout)
    assert len(status["owners"]) >= 2
    assert all(owner["pid"] for owner in status["owners"])


def test_ps_shows_destroyed_ones_on_request(installation: Installed, box: str) -> None:
    sandbox_id = json.loads(installation.sk("describe", "--json", box).stdout)["id"]
    installation.sk("rm", box)
    listed = [json.loads(installation.sk("ps", "--json", *words).stdout) for words in ((), ("--all",))]
    assert [[one["phase"] for one in found if one["id"] == sandbox_id] for found in listed] == [
        [],
        ["destroyed"],
    ]
