"""An installation of a bench's own in a temporary folder, the engine beside it, and the removal of both.

Owns that nothing is left: sandboxes, snapshots, reference containers and images, the supervisor with its Ray, the
folder. Only what carries this installation's id, or was made here, is removed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import docker
from docker.errors import APIError, ImageNotFound, NotFound

from sandkeeper import Keeper
from sandkeeper.containers.endpoint import find_endpoint
from sandkeeper.containers.recipes import RECIPES
from sandkeeper.containers.settings import limits
from sandkeeper.core.sizes import Size
from sandkeeper.owner.config import StatePaths
from sandkeeper.owner.daemon import stop_daemon
from sandkeeper.ports import real_ports

ROOT = Path(__file__).parents[2]


class Rig:
    """One installation, up; `keeper` is its front door and `engine` the docker engine it uses."""

    def __init__(self, **config: Any) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sk-bench-"))
        self.state_dir = self.folder / "state"
        self.ports = real_ports()
        self.engine = docker.APIClient(base_url=find_endpoint(os.environ).url, timeout=120)
        self._config = config
        self._containers: list[str] = []
        self._images: list[str] = []
        self._installation_id = ""
        self.keeper = Keeper.local(self.state_dir, **config)

    async def __aenter__(self) -> Self:
        places = [str(ROOT), str(ROOT / "controller"), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(place for place in places if place)
        try:
            await self.keeper.__aenter__()
            # Asked now: a bench that was broken off may be cancelled at its first wait on the way out.
            self._installation_id = (await self.keeper.status()).installation_id
        except BaseException:
            await self._remove_all(None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.keeper.__aexit__(kind, error, trace)
            async with Keeper.join(self.state_dir) as keeper:
                for snapshot in await keeper.snapshots.list():
                    await keeper.snapshots.delete(snapshot.id)
        finally:
            await self._remove_all(self._installation_id)

    def image_id(self, name: str) -> str:
        """Return the id of a shipped image: the very one that sandboxes of that name are made from."""
        found = self.engine.images(name=RECIPES[name].repository)
        if not found:
            raise RuntimeError(f"there is no image {name}: run `make setup`")
        return str(max(found, key=lambda image: int(image["Created"]))["Id"])

    def container(self, image: str, command: list[str], *, size: Size) -> str:
        """Start a plain container to compare with, and return its id."""
        made = self.engine.create_container_from_config(
            {"Image": image, "Cmd": command, "HostConfig": {"NetworkMode": "none", **limits(size)}}
        )
        self._containers.append(made["Id"])
        self.engine.start(made["Id"])
        return str(made["Id"])

    async def containers(self) -> list[str]:
        """Return the ids of this installation's running containers."""
        label = f"sandkeeper={(await self.keeper.status()).installation_id}"
        return [str(entry["Id"]) for entry in self.engine.containers(filters={"label": label})]

    def will_remove_image(self, image: str) -> None:
        """Have an image removed at the end."""
        self._images.append(image)

    async def _remove_all(self, installation_id: str | None) -> None:
        await stop_daemon(StatePaths(self.state_dir), ports=self.ports)
        if installation_id is not None:
            ours = {"label": f"sandkeeper={installation_id}"}
            self._containers += [entry["Id"] for entry in self.engine.containers(all=True, filters=ours)]
            for entry in self.engine.images(name=f"sandkeeper-{installation_id}"):
                self._images += entry["RepoTags"] or []
        for container in self._containers:
            _unless_gone(partial(self.engine.remove_container, container, v=True, force=True))
        for image in self._images:
            _unless_gone(partial(self.engine.remove_image, image))
        self.engine.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def limit_words(size: Size) -> list[str]:
    """Return a size's limits as options of `docker run`."""
    return [
        f"--memory={size.memory_bytes}",
        f"--memory-swap={size.memory_bytes}",
        f"--cpu-period={limits(size)['CpuPeriod']}",
        f"--cpu-quota={size.cpu_quota_us}",
        f"--pids-limit={size.pids}",
    ]


def run(*argv: str, env: dict[str, str] | None = None) -> None:
    """Run a program of this host to its end; its failure is the bench's."""
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, capture_output=True, env=env)


def timed(work: Callable[[], object]) -> float:
    """Return the seconds `work` takes."""
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


async def timed_async(work: Callable[[], Awaitable[object]]) -> float:
    """Return the seconds `work` takes."""
    began_s = time.perf_counter()
    await work()
    return time.perf_counter() - began_s


def _unless_gone(remove: Callable[[], object]) -> None:
    try:
        remove()
    except (NotFound, ImageNotFound):
        return
    except APIError as error:
        if error.status_code != 409:  # being removed already
            raise
