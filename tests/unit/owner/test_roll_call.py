"""Who is silent is ended, and nobody else; an installation without sandboxes is idle after its time."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sandkeeper.control.server import ControlServer, VerbTable
from sandkeeper.core.errors import DataLoss, Unavailable
from sandkeeper.core.ids import OwnerId
from sandkeeper.core.verbs import Nothing
from sandkeeper.owner.config import load_config
from sandkeeper.owner.roll_call import RollCall
from sandkeeper.store.processes import ProcessMark, boot_id, start_ticks
from tests.fakes.host import StepClock
from tests.unit.owner.test_fence import stepping

OW1 = OwnerId("ow1")


@dataclass
class Installation:
    """Control sockets of a directory and one owner; what they answer is set by the test."""

    folder: Path
    roll_call: RollCall
    clock: StepClock
    sandbox_count: int = 0
    status_error: Exception | None = None
    owners: list[str] = field(default_factory=lambda: [OW1])
    servers: dict[str, ControlServer] = field(default_factory=dict)

    async def status(self, params: Nothing) -> Any:
        if self.status_error is not None:
            raise self.status_error
        row = {"epoch": 1, "pid": 1, "control_path": "x", "sandbox_count": 0}
        return {
            "installation_id": "i1",
            "machine_id": "m1",
            "directory_pid": 1,
            "owners": [row | {"owner_id": owner_id} for owner_id in self.owners],
            "images": ["base"],
            "engine": "fake",
            "sandbox_count": self.sandbox_count,
        }

    async def ping(self, params: Nothing) -> Any:
        return {}

    async def serve(self, name: str) -> None:
        paths = load_config(self.folder).paths
        path = paths.directory_socket if name == "directory" else paths.owner(OwnerId(name)).control_socket
        table = VerbTable({"status": (Nothing, self.status), "ping": (Nothing, self.ping)})
        self.servers[name] = ControlServer(path, table=table)
        await self.servers[name].start()

    async def silence(self, name: str) -> None:
        await self.servers.pop(name).close()


@asynccontextmanager
async def installation(folder: Path, **options: Any) -> AsyncIterator[Installation]:
    ports, clock = stepping()
    roll_call = RollCall(load_config(folder, owners=1, **options), ports=ports)
    made = Installation(folder, roll_call, clock)
    await made.serve("directory")
    await made.serve(OW1)
    try:
        yield made
    finally:
        for name in list(made.servers):
            await made.silence(name)
        await roll_call.close()


@contextmanager
def holder_of(lock: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that a lock file names."""
    process = subprocess.Popen(["sleep", "60"])
    try:
        ticks = start_ticks(process.pid)
        assert ticks is not None
        mark = ProcessMark(pid=process.pid, start_ticks=ticks, boot_id=boot_id())
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.write_text(mark.model_dump_json())
        yield process
    finally:
        process.kill()
        process.wait()


async def test_nobody_who_answers_is_ended(tmp_path: Path) -> None:
    async with installation(tmp_path) as here:
        paths = load_config(tmp_path).paths
        with holder_of(paths.owner(OW1).lock) as owner, holder_of(paths.catalogue_lock) as directory:
            for _ in range(5):
                await here.roll_call.once()
            assert owner.poll() is directory.poll() is None


async def test_an_owner_is_ended_at_its_third_silence_in_a_row(tmp_path: Path) -> None:
    async with installation(tmp_path) as here:
        with holder_of(load_config(tmp_path).paths.owner(OW1).lock) as owner:
            await here.silence(OW1)
            await here.roll_call.once()
            await here.roll_call.once()
            await here.serve(OW1)
            await here.roll_call.once()
            await here.silence(OW1)
            await here.roll_call.once()
            await here.roll_call.once()
            assert owner.poll() is None, "it answered in between"
            await here.roll_call.once()
            assert owner.wait(timeout=5) == -9


async def test_the_directory_is_ended_at_its_third_silence(tmp_path: Path) -> None:
    async with installation(tmp_path) as here:
        with holder_of(load_config(tmp_path).paths.catalogue_lock) as directory:
            await here.silence("directory")
            for _ in range(3):
                await here.roll_call.once()
            assert directory.wait(timeout=5) == -9


async def test_a_directory_that_answers_with_an_error_is_not_silent(tmp_path: Path) -> None:
    async with installation(tmp_path) as here:
        here.status_error = DataLoss("a journal is damaged", code="journal_damaged")
        with holder_of(load_config(tmp_path).paths.catalogue_lock) as directory:
            for _ in range(5):
                await here.roll_call.once()
            assert directory.poll() is None


async def test_a_silence_without_a_process_is_ray_s_to_mend(tmp_path: Path) -> None:
    async with installation(tmp_path) as here:
        await here.silence(OW1)
        for _ in range(5):
            await here.roll_call.once()


async def test_without_sandboxes_it_is_idle_after_its_time(tmp_path: Path) -> None:
    async with installation(tmp_path, idle_exit_s=600) as here:
        await here.roll_call.once()
        here.clock.sleep(599)
        assert not here.roll_call.is_idle
        here.clock.sleep(1)
        assert here.roll_call.is_idle


async def test_a_sandbox_ends_the_idleness(tmp_path: Path) -> None:
    async with installation(tmp_path, idle_exit_s=600) as here:
        await here.roll_call.once()
        here.clock.sleep(500)
        here.sandbox_count = 1
        await here.roll_call.once()
        here.sandbox_count = 0
        await here.roll_call.once()
        here.clock.sleep(500)
        assert not here.roll_call.is_idle


async def test_without_a_limit_it_is_never_idle(tmp_path: Path) -> None:
    async with installation(tmp_path) as here:
        await here.roll_call.once()
        here.clock.sleep(1e6)
        assert not here.roll_call.is_idle


async def test_ready_is_when_everybody_answers(tmp_path: Path) -> None:
    async with installation(tmp_path) as here:
        assert len((await here.roll_call.wait_ready(stop=asyncio.Event())).owners) == 1


@pytest.mark.parametrize("missing", ["directory", OW1, "owners"])
async def test_the_wait_for_readiness_is_bounded(tmp_path: Path, missing: str) -> None:
    async with installation(tmp_path) as here:
        if missing == "owners":
            here.owners = []
        else:
            await here.silence(missing)
        start_s = here.clock.at_s
        ports = here.roll_call._ports

        async def hurry(seconds: float) -> None:
            here.clock.sleep(seconds + 30)

        object.__setattr__(ports, "sleep", hurry)
        with pytest.raises(Unavailable):
            await here.roll_call.wait_ready(stop=asyncio.Event())
        assert 90 <= here.clock.at_s - start_s < 130


async def test_the_wait_for_readiness_ends_when_told_to_stop(tmp_path: Path) -> None:
    async with installation(tmp_path) as here:
        await here.silence(OW1)
        stop = asyncio.Event()
        stop.set()
        with pytest.raises(Unavailable):
            await here.roll_call.wait_ready(stop=stop)
        assert here.clock.at_s == 0
