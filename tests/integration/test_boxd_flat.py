"""Many mixed operations leave boxd as it was: descriptors, threads and memory."""

from __future__ import annotations

import base64
import os
import random
import time
import uuid
from contextlib import closing
from typing import Any

import pytest

from tests.support.raw_box import Box, Live

pytestmark = pytest.mark.docker

SEED = 7


def on_terminal(box: Box) -> None:
    run_id = uuid.uuid4().hex
    request: dict[str, Any] = {
        "process": {"cmd": "cat"},
        "pty": {"size": {"cols": 80, "rows": 24}},
        "sandkeeper": {"runId": run_id},
    }
    with closing(Live(box.control, "/process.Process/Start", request)) as live:
        selected = {"process": {"sandkeeper": {"runId": run_id}}}
        body = {**selected, "input": {"pty": base64.b64encode(b"word\n\x04").decode()}}
        assert box.ask("POST", "/process.Process/SendInput", body)[0] == 200
        assert live.rest()["exitCode"] == 0


def watching(box: Box) -> None:
    with closing(
        Live(box.control, "/filesystem.Filesystem/WatchDir", {"path": "/tmp", "recursive": True})
    ) as live:
        box.call("POST", f"/files?path=/tmp/{uuid.uuid4().hex[:2]}", b"x")
        assert "filesystem" in live.next()


def mixed(box: Box, choice: int) -> None:
    match choice:
        case 0:
            assert box.sh("echo out; echo err >&2; (sleep 0.05 &)").end["exitCode"] == 0
        case 1:
            on_terminal(box)
        case 2:
            watching(box)
        case 3:
            assert box.call("POST", "/files?path=/tmp/f", os.urandom(100_000))[0] == 200
            assert len(box.call("GET", "/files?path=/tmp/f")[1]) == 100_000
        case 4:
            assert (
                box.call("POST", "/sandkeeper/v1/files/grep", {"pattern": "root", "root": "/etc"})[0] == 200
            )
        case 5:
            assert box.call("GET", "/sandkeeper/v1/archive?path=/etc")[0] == 200
        case 6:
            assert box.call("GET", "/sandkeeper/v1/health")[0] == 200
            assert box.call("POST", "/sandkeeper/v1/dial?port=9")[0] == 502
        case 7:
            ended = box.sh("sleep 60", timeoutMs=20, cpuLimitMs=1000, quietTimeoutMs=5000)
            assert ended.ours["reason"] == "deadline"
        case _:
            assert box.try_run("no-such-program")[0] == 400


@pytest.mark.parametrize(
    "count", [pytest.param(400), pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
)
def test_mixed_operations_leave_boxd_as_it_was(make_box: Any, count: int) -> None:
    box = make_box()
    choices = random.Random(SEED)
    for choice in range(9):
        mixed(box, choice)
    before = box.usage()
    for _ in range(count):
        mixed(box, choices.randrange(9))
    deadline = time.monotonic() + 15
    while True:
        after = box.usage()
        if after[0] <= before[0] + 2 or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert after[0] <= before[0] + 2
    assert after[1] == before[1]
    assert after[2] - before[2] < 24 * 1024, (
        before,
        after,
    )  # ended runs are kept: up to 16 MiB of their output
