"""What the engine itself shows of an installation, asked behind the owners' backs.

Owns the second opinion: which containers, images and folders there are, whatever the records say.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from sandkeeper.containers.engine import Engine
from sandkeeper.containers.factory import open_engine
from sandkeeper.core.errors import FailedPrecondition
from sandkeeper.core.ids import BirthId, InstallationId
from sandkeeper.ports import Ports


@dataclass(frozen=True, slots=True)
class Traces:
    """What is left of an installation outside its records.

    Attributes:
        containers: Names of containers that carry its label.
        images: Names of image tags of its repository.
        folders: Container folders in the state folder.
    """

    containers: tuple[str, ...]
    images: tuple[str, ...]
    folders: tuple[str, ...]


class Witness:
    """Looks at the engine for one installation; an async context manager."""

    def __init__(
        self, *, installation_id: InstallationId, state_dir: Path, ports: Ports, engine: str = ""
    ) -> None:
        self._installation_id = installation_id
        self._state_dir = state_dir
        self._ports = ports
        self._spec = engine
        self._engine: Engine | None = None

    async def __aenter__(self) -> Self:
        self._engine = open_engine(
            self._spec,
            installation_id=self._installation_id,
            ports=self._ports,
            state_dir=self._state_dir,
            environment=os.environ,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._opened.close()

    async def process_one(self, birth_id: BirthId) -> int:
        """Return the host pid of a container's process 1.

        Raises:
            FailedPrecondition: `container_not_running`.
        """
        seen = await self._opened.inspect(birth_id)
        if seen is None or seen.pid is None:
            raise FailedPrecondition(f"container {birth_id} does not run", code="container_not_running")
        return seen.pid

    async def traces(self) -> Traces:
        """Return what the engine and the state folder hold of this installation."""
        runtimes = await self._opened.list_runtimes()
        images = await self._opened.list_images()
        tags = [tag for image in images for tag in (image.tags or (image.image_id,))]
        return Traces(
            containers=tuple(sorted(runtime.birth_id for runtime in runtimes)),
            images=tuple(sorted(tags)),
            folders=tuple(sorted(self._folders())),
        )

    def _folders(self) -> list[str]:
        found: list[str] = []
        for kind in ("r", "c"):
            folder = self._state_dir / kind
            if folder.is_dir():
                found += [f"{kind}/{name}" for name in os.listdir(folder)]
        return found

    @property
    def _opened(self) -> Engine:
        assert self._engine is not None, "enter it first"
        return self._engine
