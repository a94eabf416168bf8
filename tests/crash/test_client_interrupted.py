"""The coordinator gets Ctrl-C in the middle of a fan-out."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from tests.support.yard import ROOT, Yard

pytestmark = [pytest.mark.crash, pytest.mark.docker]

COUNT = 4


@pytest.mark.parametrize("begun", [1, COUNT], ids=["while forking", "while running"])
async def test_ctrl_c_during_a_fan_out(yard: Yard, begun: int) -> None:
    """What it made is destroyed, also creates on their way; what was there before stays and restores."""
    source = await yard.create()
    await yard.write(source["id"], "/kept", b"kept")
    snapshot = await yard.snapshot(source["id"])
    path = os.pathsep.join([str(ROOT), str(ROOT / "controller")])
    words = [sys.executable, "-m", "tests.support.client_child", str(yard.config.state_dir), snapshot["id"]]
    child = subprocess.Popen(
        [*words, str(COUNT)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        for _ in range(begun):
            assert await asyncio.to_thread(child.stdout.readline)
        child.send_signal(signal.SIGINT)
        _, errors = await asyncio.to_thread(child.communicate)
    finally:
        child.kill()
        child.wait()
    assert child.returncode in (-signal.SIGINT, 130, 1), errors
    assert "KeyboardInterrupt" in errors
    assert "left behind" not in errors
    assert [view["id"] for view in await yard.ask("list")] == [source["id"]]
    assert yard.containers() == [source["birth_id"]]
    assert await yard.restores(snapshot["id"], "/kept") == b"kept"
