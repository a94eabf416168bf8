"""One installation of plain processes on an engine in memory, for tests that kill them and need no container.

The engine lives in the owner's process: its runtimes die with it, what is on disk does not. Every process is ended
and the folder removed when the block ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sandkeeper.control.caller import ControlCaller
from sandkeeper.core.errors import Unavailable
from sandkeeper.owner.config import Config
from sandkeeper.store.processes import ProcessMark, boot_id, start_ticks

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
POLL_S = 0.02
ENGINE = "tests.fakes.engine:engine_for_bench"


class BareYard:
    """The installation: a directory and one owner."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = Config.model_validate(
            {
                "state_dir": folder / "state",
                "owners": 1,
                "engine": ENGINE,
                "audit_s": 3600.0,
                "tend_s": 3600.0,
            }
        )
        self.directory: subprocess.Popen[str] | None = None
        self.owner: subprocess.Popen[str] | None = None
        self.owner_id = ""

    async def open(self) -> None:
        await self.start_directory()
        self.owner_id = (await self.ask("status"))["owners"][0]["owner_id"]
        await self.start_owner()

    async def start_directory(self) -> None:
        self.directory = await self._start("directory")
        ticks = start_ticks(self.directory.pid)
        assert ticks is not None
        mark = ProcessMark(pid=self.directory.pid, start_ticks=ticks, boot_id=boot_id()).model_dump()
        self.config.paths.up.write_text(json.dumps({**mark, "ray_folder": str(self.folder)}))

    async def start_owner(self) -> None:
        self.owner = await self._start("owner", self.owner_id)

    async def kill_owner(self) -> None:
        """SIGKILL the owner; return when it is gone."""
        assert self.owner is not None
        await end(self.owner)
        self.owner = None

    async def kill_directory(self) -> None:
        """SIGKILL the directory; return when it is gone."""
        assert self.directory is not None
        await end(self.directory)
        self.directory = None

    async def ask(self, verb: str, **payload: Any) -> Any:
        """Call a verb of the directory."""
        return await _call(self.config.paths.directory_socket, verb, payload)

    async def own(self, verb: str, **payload: Any) -> Any:
        """Call a verb of the owner, repeated as it is while the owner is away."""
        path = self.config.paths.owner(self.owner_id).control_socket  # type: ignore[arg-type]
        return await _call(path, verb, payload)

    async def events(self, sandbox_id: str) -> list[dict[str, Any]]:
        """Return the whole journal of a sandbox, page by page."""
        found: list[dict[str, Any]] = []
        cursor = 0
        while True:
            page = await self.own("events", sandbox_id=sandbox_id, after=cursor, limit=1000)
            if not page["events"]:
                return found
            found += page["events"]
            cursor = page["cursor"]

    async def close(self) -> None:
        for child in (self.owner, self.directory):
            if child is not None:
                await end(child)

    async def _start(self, kind: str, *names: str) -> subprocess.Popen[str]:
        words = self.folder / f"{kind}.err"
        with words.open("ab") as errors:
            child = python(
                "-m", "tests.support.server_child", kind, self.config.model_dump_json(), *names, stderr=errors
            )
        assert child.stdout is not None
        line = await asyncio.wait_for(asyncio.to_thread(child.stdout.readline), PATIENCE_S)
        if line.strip() != "ready":
            await end(child)
            raise AssertionError(f"{kind} did not start: {words.read_text()[-3000:]}")
        return child


@asynccontextmanager
async def bare_yard() -> AsyncIterator[BareYard]:
    """Open an installation in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="sk-b-"))
    yard = BareYard(folder)
    try:
        await yard.open()
        yield yard
    finally:
        await yard.close()
        shutil.rmtree(folder)


def python(*arguments: str, stderr: Any = None) -> subprocess.Popen[str]:
    """Start a Python process that can import the package and the tests."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "controller")])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


async def end(child: subprocess.Popen[str]) -> None:
    """SIGKILL a process of ours and reap it."""
    child.kill()
    await asyncio.to_thread(child.wait)
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()


async def _call(path: Path, verb: str, payload: dict[str, Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    caller = ControlCaller(path)
    try:
        while True:
            try:
                return await caller.call(verb, payload, timeout_s=PATIENCE_S)
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(POLL_S)
    finally:
        await caller.close()
