"""What an engine test needs beside the engine: folders, images, and hands on the machine, fake or real."""

import contextlib
import io
import os
import secrets
import shutil
import signal
import tarfile
from pathlib import Path
from typing import Protocol

import docker
from docker.errors import NotFound

from sandkeeper.containers.docker_engine import DockerEngine
from sandkeeper.containers.engine import Engine, RuntimeSettings
from sandkeeper.core.ids import BirthId, InstallationId, new_birth_id
from sandkeeper.core.sizes import Size
from sandkeeper.ports import Ports, real_ports
from tests.fakes.engine import FakeEngine
from tests.fakes.engine_world import FakeRuntime

SMALL = Size(name="custom", vcpu=0.5, memory_mib=64, pids=160)


class EngineRig(Protocol):
    """One installation at one engine. Everything made through it is gone when it is closed.

    Attributes:
        engine: What is tested.
        image_id: An image that holds `/base.txt` and nothing else.
        repository: The installation's image repository.
        ports: Time and chance.
    """

    ports: Ports
    image_id: str
    repository: str

    @property
    def engine(self) -> Engine: ...

    def settings(self, *, play: str = "pause", size: Size = SMALL) -> RuntimeSettings:
        """Settings of a fresh birth id, with its folders made; `play` is what its process 1 does."""
        ...

    def neighbour(self) -> Engine:
        """The same machine seen by another installation."""
        ...

    def make_foreign(self, birth_id: BirthId) -> None:
        """Make a container of that name that belongs to nobody we know."""
        ...

    def has_container(self, name: str) -> bool: ...

    def write(self, birth_id: BirthId, path: str, body: bytes) -> None:
        """Write a file in the container's writable layer."""
        ...

    def read(self, birth_id: BirthId, path: str) -> bytes | None: ...

    async def kill(self, birth_id: BirthId) -> None:
        """SIGKILL process 1 from outside."""
        ...

    async def close(self) -> None: ...


class FakeRig:
    def __init__(self) -> None:
        self.ports = real_ports()
        self.installation_id = InstallationId(f"test{secrets.token_hex(4)}")
        self.repository = f"sandkeeper-{self.installation_id}"
        self.engine = FakeEngine(installation_id=self.installation_id, ports=self.ports)
        self.world = self.engine.world
        self.world.boot = _print_as_told
        self.image_id = self.world.add_image(
            f"sha256:{'0' * 64}", files={"/base.txt": b"from the image\n"}
        ).image_id
        self.plays: dict[BirthId, str] = {}

    def settings(self, *, play: str = "pause", size: Size = SMALL) -> RuntimeSettings:
        birth_id = new_birth_id(secrets.token_hex(8))
        return RuntimeSettings(
            birth_id, self.installation_id, self.image_id, size, boxd_dir=play, run_dir=f"/r/{birth_id}"
        )

    def neighbour(self) -> Engine:
        return FakeEngine(installation_id=InstallationId("elsewhere"), ports=self.ports, world=self.world)

    def make_foreign(self, birth_id: BirthId) -> None:
        foreign = RuntimeSettings(birth_id, InstallationId(""), self.image_id, SMALL, boxd_dir="", run_dir="")
        self.world.create(foreign)

    def has_container(self, name: str) -> bool:
        return name in self.world.runtimes

    def write(self, birth_id: BirthId, path: str, body: bytes) -> None:
        self.world.runtimes[birth_id].files[path] = body

    def read(self, birth_id: BirthId, path: str) -> bytes | None:
        return self.world.runtimes[birth_id].files.get(path)

    async def kill(self, birth_id: BirthId) -> None:
        self.world.kill_container(birth_id)

    async def close(self) -> None:
        await self.engine.close()


def _print_as_told(runtime: FakeRuntime) -> None:
    """Do what the stand-in does of its plays, as far as it can be seen from outside."""
    word, _, number = runtime.settings.boxd_dir.partition(" ")
    if word == "flood":
        runtime.log = "".join(f"{index:063d}\n" for index in range(int(number))) + "flooded\n"
    else:
        runtime.log = "ready\n"


class DockerRig:
    """A rig on a real engine. Containers and images carry its own installation id, by which it removes them."""

    def __init__(self, *, url: str, folder: Path, boxd_dir: Path, image_id: str) -> None:
        self.url = url
        self.ports = real_ports()
        self.installation_id = InstallationId(f"test{secrets.token_hex(4)}")
        self.repository = f"sandkeeper-{self.installation_id}"
        self.engine = DockerEngine(url, installation_id=self.installation_id, ports=self.ports)
        self.image_id = image_id
        self.docker = docker.APIClient(base_url=url, version="auto", timeout=60)
        self._folder = folder
        self._boxd_dir = boxd_dir
        self._births: list[BirthId] = []
        self._neighbours: list[DockerEngine] = []

    def settings(self, *, play: str = "pause", size: Size = SMALL) -> RuntimeSettings:
        birth_id = new_birth_id(secrets.token_hex(8))
        self._births.append(birth_id)
        run_dir = self._folder / "r" / birth_id
        run_dir.mkdir(parents=True)
        (run_dir / "play").write_text(play)
        return RuntimeSettings(
            birth_id,
            self.installation_id,
            self.image_id,
            size,
            boxd_dir=str(self._boxd_dir),
            run_dir=str(run_dir),
        )

    def neighbour(self) -> Engine:
        engine = DockerEngine(self.url, installation_id=InstallationId("elsewhere"), ports=self.ports)
        self._neighbours.append(engine)
        return engine

    def make_foreign(self, birth_id: BirthId) -> None:
        self._births.append(birth_id)
        self.docker.create_container(self.image_id, command=["/none"], name=birth_id)

    def has_container(self, name: str) -> bool:
        try:
            self.docker.inspect_container(name)
        except NotFound:
            return False
        return True

    def write(self, birth_id: BirthId, path: str, body: bytes) -> None:
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size = len(body)
            tar.addfile(entry, io.BytesIO(body))
        self.docker.put_archive(birth_id, "/", archive.getvalue())

    def read(self, birth_id: BirthId, path: str) -> bytes | None:
        try:
            stream, _ = self.docker.get_archive(birth_id, path)
        except NotFound:
            return None
        with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as tar:
            member = tar.extractfile(tar.getmembers()[0])
            return member.read() if member is not None else None

    async def kill(self, birth_id: BirthId) -> None:
        os.kill(self.docker.inspect_container(birth_id)["State"]["Pid"], signal.SIGKILL)

    async def close(self) -> None:
        for birth_id in self._births:
            with contextlib.suppress(NotFound):
                self.docker.remove_container(birth_id, force=True, v=True)
        for image in await self.engine.list_images():
            for ref in image.tags or (image.image_id,):
                await self.engine.untag_or_remove_image(ref)
        left = await self.engine.list_runtimes(), await self.engine.list_images()
        for engine in (self.engine, *self._neighbours):
            await engine.close()
        self.docker.close()
        shutil.rmtree(self._folder / "r", ignore_errors=True)
        assert left == ([], []), f"left behind: {left}"
