"""Terminals in a real container: the user's own tty, job control, resizing, several viewers, no new threads."""

from __future__ import annotations

import base64
import uuid
from contextlib import closing
from typing import Any

import pytest

from tests.support.raw_box import Box, Live

pytestmark = pytest.mark.docker


def select(run_id: str) -> dict[str, Any]:
    return {"process": {"sandkeeper": {"runId": run_id}}}


def shell(box: Box, *, user: str = "root", **extra: Any) -> tuple[str, Live]:
    run_id = uuid.uuid4().hex
    request = {
        "process": {"cmd": "bash", "args": ["--norc", "-i"], "envs": {"PS1": "$ "}},
        "pty": {"size": {"cols": 90, "rows": 25}},
        "sandkeeper": {"runId": run_id, "user": user, **extra},
    }
    live = Live(box.control, "/process.Process/Start", request)
    live.until(b"$ ")
    return run_id, live


def keys(box: Box, run_id: str, text: bytes) -> None:
    body = {**select(run_id), "input": {"pty": base64.b64encode(text).decode()}}
    assert box.ask("POST", "/process.Process/SendInput", body) == (200, {})


def test_the_terminal_is_the_users_own(box: Box) -> None:
    run_id, live = shell(box, user="nobody")
    with closing(live):
        keys(box, run_id, b"stat -c '%U %a' $(tty); stty size; echo $TERM\n")
        shown = live.until(b"xterm-256color\r\n").decode()
        assert "nobody 620\r\n25 90\r\n" in shown
        keys(box, run_id, b"exit 7\n")
        assert live.rest()["exitCode"] == 7


def test_interrupts_jobs_and_sizes(box: Box) -> None:
    run_id, live = shell(box)
    with closing(live):
        keys(box, run_id, b"sleep 7777; echo code $?\n")
        while not box.living("7777"):
            pass
        keys(box, run_id, b"\x03")
        live.until(b"^C")
        live.until(b"$ ")
        keys(box, run_id, b"sleep 7777 & jobs\n")
        live.until(b"Running")
        resize = {**select(run_id), "pty": {"size": {"cols": 33, "rows": 11}}}
        assert box.ask("POST", "/process.Process/Update", resize) == (200, {})
        keys(box, run_id, b"stty size\n")
        live.until(b"11 33\r\n")
        tree = {**select(run_id), "sandkeeper": {"tree": True}}
        assert box.ask("POST", "/process.Process/SendSignal", tree)[1] == {"sandkeeper": {"notStopped": []}}
        assert live.rest()["sandkeeper"]["signal"] == 9
    assert box.living("7777") == []


def test_several_viewers_see_the_same_and_a_late_one_all(box: Box) -> None:
    run_id, first = shell(box)
    with closing(first), closing(Live(box.control, "/process.Process/Connect", select(run_id))) as second:
        keys(box, run_id, b"echo $((40 + 2))\n")
        seen = first.until(b"42\r\n")
        assert seen.endswith(second.until(b"42\r\n"))
        whole = {**select(run_id), "sandkeeper": {"ptyOffset": 0}}
        with closing(Live(box.control, "/process.Process/Connect", whole)) as third:
            assert third.until(b"42\r\n").endswith(seen)
        keys(box, run_id, b"exit\n")
        assert first.rest()["exitCode"] == second.rest()["exitCode"] == 0


def test_terminals_take_no_threads(box: Box) -> None:
    before = box.sh("grep Threads /proc/1/status").stdout
    shells = [shell(box) for _ in range(40)]
    for run_id, live in shells:
        keys(box, run_id, b"echo still here\n")
        live.until(b"here\r\n")
    assert box.sh("grep Threads /proc/1/status").stdout == before
    for run_id, live in shells:
        keys(box, run_id, b"exit\n")
        assert live.rest()["exitCode"] == 0
        live.close()
