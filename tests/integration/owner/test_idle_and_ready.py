"""The idle rule, start commands with readiness, and health, on real boxes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandkeeper.core.errors import Aborted
from tests.support.yard import Yard, eventually

pytestmark = pytest.mark.docker
SERVER = (
    "import http.server; http.server.HTTPServer(('127.0.0.1', 8123), http.server.SimpleHTTPRequestHandler)"
)


@pytest.mark.parametrize(
    "ready",
    [
        {"kind": "tcp", "port": 8123},
        {"kind": "http", "port": 8123, "path": "/"},
        {"kind": "log", "text": "serving now"},
        {"kind": "command", "argv": ["test", "-e", "/tmp/served"]},
    ],
    ids=lambda ready: ready["kind"],
)
async def test_a_start_command_is_ready_before_the_create_is_answered(yard: Yard, ready: Any) -> None:
    script = f'sleep 1.5; touch /tmp/served; echo serving now; exec python3 -c "{SERVER}.serve_forever()"'
    view = await yard.create(start=["sh", "-c", script], ready=ready)
    outcome = await yard.run(view["id"], "test -e /tmp/served")
    assert (outcome.outcome, outcome.exit_code) == ("exited", 0)


async def test_a_start_command_that_ends_is_told_with_its_code_and_words(yard: Yard) -> None:
    with pytest.raises(Aborted) as caught:
        await yard.create(
            start=["sh", "-c", "echo cannot go on; exit 9"], ready={"kind": "tcp", "port": 8123}
        )
    assert caught.value.code == "start_command_ended"
    assert caught.value.details["exit_code"] == 9
    assert "cannot go on" in caught.value.details["output_tail"]


async def test_the_start_command_runs_again_after_a_loss(yard: Yard) -> None:
    argv = ["sh", "-c", "echo $$ > /tmp/started; exec sleep 1000"]
    view = await yard.create(start=argv, ready={"kind": "command", "argv": ["test", "-e", "/tmp/started"]})
    yard.kill_container(view["birth_id"])
    await yard.until(view["id"], "running", generation=2)
    assert (await yard.run(view["id"], "test -e /tmp/started")).exit_code == 0


@pytest.mark.parametrize(
    ("on_idle", "phase"), [("snapshot", "stopped"), ("stop", "stopped"), ("pause", "paused")]
)
async def test_an_idle_sandbox_rests_and_the_next_use_wakes_it(yard: Yard, on_idle: str, phase: str) -> None:
    view = await yard.create(idle_timeout_s=2, on_idle=on_idle)
    await yard.run(view["id"], "echo kept > ~/kept")
    await yard.until(view["id"], phase)
    assert (await yard.describe(view["id"]))["is_resting"]
    outcome = await yard.run(view["id"], "cat ~/kept")
    assert outcome.stdout == "kept\n"
    assert (await yard.describe(view["id"]))["phase"] == "running"


async def test_a_silent_command_keeps_its_sandbox_awake(yard: Yard) -> None:
    """L8: a command that says nothing for longer than the idle limit is not idle."""
    view = await yard.create(idle_timeout_s=2, on_idle="stop")
    outcome = await yard.run(view["id"], "sleep 8; echo ok")
    assert (outcome.outcome, outcome.stdout) == ("exited", "ok\n")


async def test_a_box_without_a_shell_is_told_unhealthy(yard: Yard) -> None:
    """L1: what makes every command fail is not a command that failed."""
    view = await yard.create(user="root")
    await yard.run(view["id"], "rm -f /bin/sh /usr/bin/sh /bin/dash /usr/bin/dash")

    async def ails() -> bool:
        return (await yard.describe(view["id"]))["health"] == "sandbox_unhealthy"

    await eventually(ails, "the missing shell was not noticed")


async def test_a_box_that_is_well_stays_healthy(yard: Yard) -> None:
    """What boxd does not know it says as null, and that is no ailment."""
    view = await yard.create()
    async with yard.link(view["id"]) as link:
        vitals = await link.vitals()
        assert (vitals.state, vitals.shell, vitals.can_fork) == ("running", True, True)
        assert vitals.memory.limit_bytes == 256 * 1024**2
    await asyncio.sleep(3 * yard.config.tend_s)
    assert (await yard.describe(view["id"]))["health"] == "healthy"
