"""boxd as process 1: before go, capabilities, epochs, draining, restarts, freezes."""

from __future__ import annotations

import subprocess
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.support.raw_box import SOURCE, Box, Outcome, go_command, go_environment

pytestmark = pytest.mark.docker


def test_go_tests_pass() -> None:
    subprocess.run([go_command(), "test", "./..."], cwd=SOURCE, env=go_environment(), check=True)


def test_nothing_runs_before_go(make_box: Any) -> None:
    box = make_box(go=False)
    assert box.greeting == {"protocol": 1, "build": "test", "pid1": True}
    assert box.call("GET", "/health")[0] == 204
    assert box.ask("GET", "/sandkeeper/v1/hello")[1]["state"] == "waiting"
    for method, path in (
        ("POST", "/process.Process/Start"),
        ("GET", "/files?path=/etc/passwd"),
        ("GET", "/nowhere"),
    ):
        status, refusal = box.ask(method, path)
        assert (status, refusal["sandkeeper"]["code"]) == (503, "not_started")
    wrong = box.ask("POST", "/sandkeeper/v1/go", {"birthId": "other", "generation": 1, "epoch": 1})
    assert (wrong[0], wrong[1]["sandkeeper"]["code"]) == (409, "wrong_birth")
    assert box.go()[1]["state"] == "running"


def test_children_never_hold_the_dropped_capabilities(box: Box) -> None:
    status = box.run("cat", "/proc/self/status", "/proc/1/status").stdout.decode()
    masks = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith("Cap")]
    assert len(masks) == 10
    assert not any(mask & (1 << 8 | 1 << 12) for mask in masks)
    assert box.ask("GET", "/sandkeeper/v1/hello")[1]["capBounding"] == f"{max(masks):016x}"


def test_a_container_without_setpcap_is_refused(boxd_binary: Path, image: str) -> None:
    command = [
        "docker",
        "run",
        "--rm",
        "--cap-drop",
        "ALL",
        "--user",
        "0:0",
        "--network",
        "none",
        "-v",
        f"{boxd_binary.parent}:/b:ro",
    ]
    refused = subprocess.run([*command, "--entrypoint", "/b/boxd", image], capture_output=True, text=True)
    assert refused.returncode == 70
    assert "CAP_SETPCAP is missing" in refused.stderr


def test_a_stale_epoch_changes_nothing(make_box: Any) -> None:
    box = make_box()
    assert box.go(epoch=5)[1]["epoch"] == 5
    for status, refusal in (
        box.go(epoch=4),
        box.ask("POST", "/files?path=/tmp/x", b"x", Sandkeeper_Epoch="4"),
        box.ask("POST", "/sandkeeper/v1/quiesce", {"epoch": 4, "reason": "late", "force": True}),
    ):
        assert (status, refusal["sandkeeper"]) == (409, {"code": "stale_epoch", "epoch": 5})
    wrong = box.ask("POST", "/files?path=/tmp/x", b"x", Sandkeeper_Epoch="5", Sandkeeper_Generation="2")
    assert (wrong[0], wrong[1]["sandkeeper"]["code"]) == (409, "wrong_generation")
    assert box.call("GET", "/files?path=/tmp/x")[0] == 404


def test_quiesce_and_resume(make_box: Any) -> None:
    box = make_box()
    run_id = uuid.uuid4().hex
    reader = threading.Thread(target=lambda: box.sh("sleep 30", runId=run_id))
    reader.start()
    while box.ask("GET", "/sandkeeper/v1/hello")[1]["runs"] == 0:
        time.sleep(0.01)
    ask = {"epoch": 1, "reason": "test"}
    assert box.ask("POST", "/sandkeeper/v1/quiesce", ask)[1] == {"state": "busy", "runs": [run_id]}
    assert box.sh("true").end["exitCode"] == 0
    forced = box.ask("POST", "/sandkeeper/v1/quiesce", {**ask, "force": True})[1]
    assert forced == {"state": "drained", "runs": [run_id]}
    status, refusal = box.try_run("true")
    assert (status, refusal["sandkeeper"]["code"]) == (503, "draining")
    assert box.ask("POST", "/files?path=/tmp/x", b"x")[0] == 503
    assert box.ask("POST", "/sandkeeper/v1/resume", {"epoch": 1})[1]["state"] == "running"
    assert box.sh("true").end["exitCode"] == 0
    selected = {"process": {"sandkeeper": {"runId": run_id}}, "signal": "SIGNAL_SIGKILL"}
    assert box.ask("POST", "/process.Process/SendSignal", selected) == (200, {})
    reader.join()
    assert box.ask("POST", "/sandkeeper/v1/quiesce", ask)[1] == {"state": "drained", "runs": []}


def test_a_restarted_container_asks_again_and_waits_for_go(make_box: Any) -> None:
    box = make_box()
    box.call("POST", "/files?path=/root/kept", b"kept")
    box.sh("sleep 300 &")
    box.restart()
    assert box.ask("GET", "/sandkeeper/v1/hello")[1]["generation"] == 0
    assert box.go(generation=2)[0] == 200
    assert box.call("GET", "/files?path=/root/kept") == (200, b"kept")


def test_frozen_time_moves_deadlines(make_box: Any) -> None:
    box = make_box()
    results: list[Outcome] = []
    reader = threading.Thread(target=lambda: results.append(box.sh("sleep 2", timeoutMs=3500)))
    reader.start()
    time.sleep(0.3)
    subprocess.run(["docker", "pause", box.birth_id], check=True, stdout=subprocess.DEVNULL)
    time.sleep(5)
    subprocess.run(["docker", "unpause", box.birth_id], check=True, stdout=subprocess.DEVNULL)
    reader.join()
    assert results[0].ours["outcome"] == "exited"
