"""One installation of plain processes on a real engine, for tests that kill them: a directory and one owner.

Owns the processes, the state folder, and the last look: what a test leaves behind is its failure. The code in the
processes is what runs under Ray too; only who starts them again is the test.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import docker
from docker.errors import NotFound as EngineNotFound

from sandkeeper.boxd import BoxdLink, RunOutcome
from sandkeeper.control.caller import ControlCaller
from sandkeeper.core.errors import NotFound, SandkeeperError, Unavailable
from sandkeeper.owner.config import Config
from sandkeeper.owner.identity import Identity
from sandkeeper.ports import real_ports
from sandkeeper.store.processes import ProcessMark, boot_id, start_ticks
from tests.support.slow_engine import SlowEngine

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
POLL_S = 0.02
View = dict[str, Any]


class Yard:
    """The installation; `open` before use, `close` at the end, `settle` after each test.

    Attributes:
        engine: The proxy through which every engine call of it goes.
        docker: The engine itself, for looking and for doing harm.
    """

    def __init__(self, *, engine_url: str, image: str = "slim", **settings: Any) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sk-y-"))
        self.image = image
        self.engine = SlowEngine(self.folder / "engine.sock", engine_url=engine_url)
        self.docker = docker.APIClient(base_url=engine_url, version="auto", timeout=60)
        defaults: dict[str, Any] = {"owners": 1, "reap_every_s": 3600.0, "audit_s": 3600.0}
        self.config = Config.model_validate(
            {**defaults, **settings, "engine": self.engine.url, "state_dir": self.folder / "state"}
        )
        self.directory: subprocess.Popen[str] | None = None
        self.owner: subprocess.Popen[str] | None = None
        self.owner_id = ""

    # ------------------------------------------------------------ processes

    async def open(self) -> None:
        """Start what does not run: proxy, directory, owner."""
        if not self.engine.path.exists():
            self.engine.__enter__()
        if self.directory is None:
            await self.start_directory()
        if self.owner is None:
            await self.start_owner()

    async def start_directory(self) -> None:
        self.directory = await self._start("directory")
        self.owner_id = (await self.ask("status"))["owners"][0]["owner_id"]
        ticks = start_ticks(self.directory.pid)
        assert ticks is not None
        mark = ProcessMark(pid=self.directory.pid, start_ticks=ticks, boot_id=boot_id()).model_dump()
        self.config.paths.up.write_text(_json({**mark, "ray_folder": str(self.folder)}))

    async def start_owner(self) -> None:
        """Start an owner process and return when it answers; the one before may still be there, stopped."""
        self.owner = await self._start("owner", self.owner_id)

    async def kill_owner(self) -> None:
        """SIGKILL the owner; return when it is gone."""
        assert self.owner is not None
        await _end(self.owner)
        self.owner = None

    async def kill_directory(self) -> None:
        """SIGKILL the directory; return when it is gone."""
        assert self.directory is not None
        await _end(self.directory)
        self.directory = None

    async def restart_owner(self) -> None:
        await self.kill_owner()
        await self.start_owner()

    async def _start(self, kind: str, *names: str) -> subprocess.Popen[str]:
        words = self.folder / f"{kind}.err"
        with words.open("ab") as errors:
            child = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.support.server_child",
                    kind,
                    self.config.model_dump_json(),
                    *names,
                ],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "controller")])},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert child.stdout is not None
        # Ended from outside when it takes too long: only that ends the thread that reads.
        overdue = asyncio.get_running_loop().call_later(PATIENCE_S, child.kill)
        line = await asyncio.to_thread(child.stdout.readline)
        overdue.cancel()
        if line.strip() != "ready":
            await _end(child)
            raise AssertionError(f"{kind} did not start: {words.read_text()[-3000:]}")
        return child

    # ------------------------------------------------------------ verbs

    async def ask(self, verb: str, **payload: Any) -> Any:
        """Call a verb of the directory."""
        return await _call(self.config.paths.directory_socket, verb, payload)

    async def own(self, verb: str, **payload: Any) -> Any:
        """Call a verb of the owner, repeated with the same request id while it is away, as clients do."""
        path = self.config.paths.owner(self.owner_id).control_socket  # type: ignore[arg-type]
        return await _call(path, verb, payload)

    async def create(self, *, request_id: str | None = None, **fields: Any) -> View:
        """Create a sandbox; a small one of the yard's image unless told otherwise."""
        size = {"name": "custom", "vcpu": 1, "memory_mib": 256}
        wanted: View = {"size": size, **fields}
        if "snapshot" not in wanted:
            wanted.setdefault("image", self.image)
        view: View = await self.ask("create", request_id=request_id or token(), **wanted)
        return view

    async def describe(self, sandbox_id: str) -> View:
        view: View = await self.own("describe", sandbox_id=sandbox_id)
        return view

    async def change(self, verb: str, sandbox_id: str, **fields: Any) -> View:
        """Call a mutating verb under a fresh request id."""
        fields.setdefault("request_id", token())
        view: View = await self.own(verb, sandbox_id=sandbox_id, **fields)
        return view

    async def snapshot(self, sandbox_id: str, **fields: Any) -> View:
        return await self.change("take_snapshot", sandbox_id, **fields)

    async def events(self, sandbox_id: str) -> list[View]:
        found: list[View] = (await self.own("events", sandbox_id=sandbox_id, limit=1000))["events"]
        return found

    async def until(self, sandbox_id: str, phase: str, *, generation: int | None = None) -> View:
        """Wait until the sandbox is so and nothing is pending."""

        async def look() -> View | None:
            view = await self.describe(sandbox_id)
            fits = view["phase"] == phase and view["pending"] is None
            return view if fits and generation in (None, view["generation"]) else None

        view: View = await eventually(look, f"{sandbox_id} never was {phase} {generation or ''}")
        return view

    # ------------------------------------------------------------ inside

    @asynccontextmanager
    async def link(self, sandbox_id: str) -> AsyncIterator[BoxdLink]:
        """A fresh lease and its link."""
        lease = await self.own("lease", sandbox_id=sandbox_id)
        link = BoxdLink(
            Path(lease["control_path"]),
            generation=lease["generation"],
            epoch=lease["epoch"],
            ports=real_ports(),
        )
        try:
            yield link
        finally:
            await link.aclose()

    async def run(self, sandbox_id: str, script: str, **fields: Any) -> RunOutcome:
        """Run a shell script as root and return what came of it."""
        async with self.link(sandbox_id) as link:
            return await link.runs.collect(["sh", "-c", script], run_id=token(), user="root", **fields)

    async def write(self, sandbox_id: str, path: str, body: bytes) -> None:
        async with self.link(sandbox_id) as link:
            await link.files.write(path, data=body, user="root")

    async def read(self, sandbox_id: str, path: str) -> bytes:
        async with self.link(sandbox_id) as link:
            return bytes(await link.files.read(path, user="root"))

    # ------------------------------------------------------------ the engine, and the last look

    @property
    def installation_id(self) -> str:
        return Identity.model_validate_json(self.config.paths.machine.read_text()).installation_id

    def containers(self) -> list[str]:
        """Names of all containers of this installation, at the engine itself."""
        label = f"sandkeeper={self.installation_id}"
        found = self.docker.containers(all=True, filters={"label": label})
        return sorted(entry["Names"][0].removeprefix("/") for entry in found)

    def images(self) -> list[str]:
        """Tags of all images in this installation's repository."""
        repository = f"sandkeeper-{self.installation_id}"
        return sorted(
            tag.partition(":")[2] for entry in self.docker.images(repository) for tag in entry["RepoTags"]
        )

    def kill_container(self, birth_id: str) -> None:
        """SIGKILL process 1 from outside, past the engine."""
        os.kill(self.docker.inspect_container(birth_id)["State"]["Pid"], signal.SIGKILL)

    def state_of(self, birth_id: str) -> str | None:
        """What the engine says of a container; None when there is none."""
        try:
            return str(self.docker.inspect_container(birth_id)["State"]["Status"])
        except EngineNotFound:
            return None

    def folders(self) -> list[str]:
        """Birth ids that have a folder."""
        parents = (self.config.state_dir / name for name in ("r", "c"))
        return sorted({entry.name for parent in parents if parent.is_dir() for entry in parent.iterdir()})

    async def restores(self, snapshot_id: str, path: str) -> bytes:
        """Fork a snapshot, read a file in the fork, and destroy the fork."""
        view = await self.create(snapshot=snapshot_id)
        body = await self.read(view["id"], path)
        await self.change("destroy", view["id"])
        return body

    async def settle(self) -> None:
        """Destroy what the test made, and fail if anything is left then: container, image, folder."""
        self.engine.let_go()
        await self.open()
        for view in await self.ask("list"):
            await _gone(self.change("destroy", view["id"]))
        for snapshot in await self.ask("snapshots"):
            await _gone(self.ask("delete_snapshot", snapshot_id=snapshot["id"], request_id=token()))
        await self.ask("sweep")
        left = {"containers": self.containers(), "images": self.images(), "folders": self.folders()}
        assert not any(left.values()), f"left behind: {left}"

    async def end(self) -> None:
        """End the processes and remove what there is at the engine, also what should not be there."""
        for child in (self.owner, self.directory):
            if child is not None:
                await _end(child)
        self.owner = self.directory = None
        if self.config.paths.machine.exists():
            for name in self.containers():
                self.docker.remove_container(name, force=True, v=True)
            for tag in self.images():
                self.docker.remove_image(f"sandkeeper-{self.installation_id}:{tag}", force=True)

    async def close(self) -> None:
        """End it whole: processes, containers, images, folder."""
        await self.end()
        self.docker.close()
        self.engine.__exit__()
        shutil.rmtree(self.folder)


def token() -> str:
    return secrets.token_hex(8)


async def eventually(
    look: Callable[[], Awaitable[Any]], problem: str, *, patience_s: float = PATIENCE_S
) -> Any:
    """Look until there is something to return; bounded."""
    deadline = time.monotonic() + patience_s
    while not (found := await look()):
        assert time.monotonic() < deadline, problem
        await asyncio.sleep(POLL_S)
    return found


async def _call(path: Path, verb: str, payload: View) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    caller = ControlCaller(path)
    try:
        while True:
            try:
                return await caller.call(verb, payload, timeout_s=PATIENCE_S)
            except Unavailable as error:
                is_away = error.code in ("owner_unreachable", "owner_closing")
                if not is_away or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(POLL_S)
    finally:
        await caller.close()


async def _gone(work: Awaitable[Any]) -> None:
    try:
        await work
    except NotFound:
        return
    except SandkeeperError as error:
        raise AssertionError(f"could not be removed: {error}") from error


async def _end(child: subprocess.Popen[str]) -> None:
    child.kill()
    await asyncio.to_thread(child.wait)
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()


def _json(document: View) -> str:
    import json

    return json.dumps(document)
