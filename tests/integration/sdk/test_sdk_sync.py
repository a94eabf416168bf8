"""The SDK without await, on a real container: processes, sessions, searching, ports."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandkeeper import Sandbox, sync
from tests.support.yard import Yard

pytestmark = pytest.mark.docker


async def test_everything_inside_works_without_await(sandbox: Sandbox, yard: Yard) -> None:
    def plain() -> None:
        with sync.Keeper.join(yard.config.state_dir) as keeper:
            work(keeper.get(sandbox.id))

    await asyncio.to_thread(plain)


def work(sandbox: Any) -> None:
    process = sandbox.spawn("for i in 1 2 3; do echo $i; sleep 0.1; done; exit 4")
    assert isinstance(process, sync.Process)
    for piece in process.stdout:
        assert piece.data == b"1\n"
        break
    assert process.stdout.offset == 2
    again = sandbox.processes.attach(process.id, offset=2)
    assert b"".join(piece.data for piece in again.stdout) == b"2\n3\n"
    assert "".join(process.stdout.text()) == "2\n3\n"
    assert (process.wait().exit_code, process.generation) == (4, 1)
    with sandbox.shell() as session:
        session.run("cd /tmp")
        assert session.run("pwd").stdout == "/tmp\n"
    sandbox.files.write("/tmp/sync/one", "needle\n")
    assert sandbox.files.glob("*", root="/tmp/sync") == ("/tmp/sync/one",)
    match, end = sandbox.files.grep("need", root="/tmp/sync")
    assert (match.line, end.matches) == (1, 1)
    for event in sandbox.files.watch("/tmp/sync"):
        assert event.change == "ready"
        break
    with sandbox.ports.forward(9) as forward:
        assert forward.port > 0
