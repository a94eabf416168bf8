"""A real container with a real boxd and no owner: what tests of the hot path stand on."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import docker

from sandkeeper.boxd import BootListener, BoxdLink, boot_folder, control_socket
from sandkeeper.containers import boxd_binary
from sandkeeper.containers.docker_engine import DockerEngine
from sandkeeper.containers.endpoint import find_endpoint
from sandkeeper.containers.engine import RuntimeSettings
from sandkeeper.core.ids import BirthId, InstallationId, new_birth_id
from sandkeeper.core.sizes import Size
from sandkeeper.ports import real_ports

INSTALLATION = InstallationId("boxdtests")
IMAGE_REPOSITORIES = ("sandkeeper/slim", "sandkeeper/base")
SIZE = Size(name="custom", vcpu=2, memory_mib=512)


@dataclass(frozen=True, slots=True)
class Box:
    """A running container whose boxd has its listener but was not let go yet."""

    birth_id: BirthId
    pid: int
    state_dir: Path
    impostors: list[tuple[int, int]]

    def link(self, *, generation: int = 1, epoch: int = 1) -> BoxdLink:
        path = control_socket(self.state_dir, birth_id=self.birth_id)
        return BoxdLink(path, generation=generation, epoch=epoch, ports=real_ports())


def image_under_test() -> str:
    """Return the image id that `SANDKEEPER_TEST_IMAGE` names, or that of a shipped image built here."""
    client = docker.from_env()
    try:
        named = os.environ.get("SANDKEEPER_TEST_IMAGE")
        if named:
            return str(client.images.get(named).id)
        for repository in IMAGE_REPOSITORIES:
            for image in client.images.list(repository):
                return str(image.id)
    finally:
        client.close()
    raise LookupError(f"no image of {IMAGE_REPOSITORIES}; build them or set SANDKEEPER_TEST_IMAGE")


@contextmanager
def running_box(*, size: Size = SIZE) -> Iterator[Box]:
    """Start a container, hand its listener over, close the owner's side, and remove everything afterwards."""
    state_dir = Path(tempfile.mkdtemp(prefix="sk-box-"))
    birth_id = new_birth_id(real_ports().new_token())
    try:
        yield asyncio.run(_start(state_dir, birth_id=birth_id, size=size))
    finally:
        asyncio.run(_remove(birth_id))
        shutil.rmtree(state_dir)


async def _start(state_dir: Path, *, birth_id: BirthId, size: Size) -> Box:
    impostors: list[tuple[int, int]] = []
    listener = BootListener(
        state_dir,
        birth_id=birth_id,
        ports=real_ports(),
        on_impostor=lambda pid, count: impostors.append((pid, count)),
    )
    listener.open()
    engine = _engine()
    try:
        await engine.create(
            RuntimeSettings(
                birth_id=birth_id,
                installation_id=INSTALLATION,
                image_id=image_under_test(),
                size=size,
                boxd_dir=str(boxd_binary.install(state_dir).path.parent),
                run_dir=str(boot_folder(state_dir, birth_id=birth_id)),
            )
        )
        await engine.start(birth_id)
        seen = await engine.inspect(birth_id)
        assert seen is not None
        assert seen.pid is not None, await engine.output_tail(birth_id, max_bytes=2000)
        await listener.hand_over(pid=seen.pid, timeout_s=30)
        return Box(birth_id, seen.pid, state_dir, impostors)
    finally:
        listener.close()
        await engine.close()


async def _remove(birth_id: BirthId) -> None:
    engine = _engine()
    try:
        await engine.remove(birth_id)
    finally:
        await engine.close()


def _engine() -> DockerEngine:
    return DockerEngine(find_endpoint(os.environ).url, installation_id=INSTALLATION, ports=real_ports())
