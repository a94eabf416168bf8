"""Looks catalogue names up at the engine: which image a name means now, and what it declares.

Owns the reading of the catalogue from tags and configured references. Never pulls and never builds.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Protocol

import docker
from docker.errors import DockerException

from sandkeeper.containers.boxd_binary import machine_arch
from sandkeeper.containers.endpoint import find_endpoint
from sandkeeper.containers.factory import USERS_ENGINE
from sandkeeper.containers.image_facts import admit_image
from sandkeeper.containers.recipes import RECIPES
from sandkeeper.containers.thread_door import ThreadDoor
from sandkeeper.core.admission import CatalogueImage
from sandkeeper.core.errors import NotFound, Unavailable

TIMEOUT_S = 30


class Shelf(Protocol):
    """Finds catalogue images by name."""

    async def find(self, name: str) -> CatalogueImage | None:
        """Return the image a catalogue name stands for now, or None when the engine has none.

        Raises:
            FailedPrecondition: `image_declares_volume`, `image_wrong_platform`.
            Unavailable: `engine_unavailable`.
        """
        ...

    async def close(self) -> None:
        """Let go of connections and threads; repeating is safe."""
        ...


class DockerShelf:
    """The shelf of a docker engine: shipped images by their newest tag, others by configured reference."""

    def __init__(self, url: str, *, references: Mapping[str, str]) -> None:
        self._url = url
        self._references = dict(references)
        self._door = ThreadDoor("shelf")
        self._client: docker.DockerClient | None = None

    async def find(self, name: str) -> CatalogueImage | None:
        """See `Shelf.find`."""
        return await self._door.call(partial(self._find, name))

    async def close(self) -> None:
        """See `Shelf.close`."""
        self._door.close()
        if self._client is not None:
            self._client.close()
            self._client = None

    def _find(self, name: str) -> CatalogueImage | None:
        try:
            if self._client is None:
                self._client = docker.DockerClient(base_url=self._url, timeout=TIMEOUT_S)
            reference = self._references.get(name) or _newest(self._client, name)
            if reference is None:
                return None
            facts = admit_image(self._client, reference, arch=machine_arch())
        except NotFound:
            return None
        except (DockerException, OSError) as error:
            raise Unavailable(
                f"image {name}: the engine does not answer: {type(error).__name__}",
                code="engine_unavailable",
                advice="see `sandkeeper doctor`",
            ) from error
        return CatalogueImage(
            name=name,
            image_id=facts.digest,
            env=facts.env,
            user=facts.user.partition(":")[0],
            workdir=facts.workdir,
        )


class AnyShelf:
    """The shelf of an engine that is not docker: every name is an image of that name."""

    async def find(self, name: str) -> CatalogueImage | None:
        """See `Shelf.find`."""
        return CatalogueImage(name=name, image_id=f"sha256:{name}")

    async def close(self) -> None:
        """See `Shelf.close`."""


def open_shelf(spec: str, *, references: Mapping[str, str], environment: Mapping[str, str]) -> Shelf:
    """Return the shelf that goes with `factory.open_engine(spec)`."""
    if spec in ("", USERS_ENGINE):
        return DockerShelf(find_endpoint(environment).url, references=references)
    if "://" in spec:
        return DockerShelf(spec, references=references)
    return AnyShelf()


def _newest(client: docker.DockerClient, name: str) -> str | None:
    recipe = RECIPES.get(name)
    if recipe is None:
        return None
    images = client.api.images(name=recipe.repository)
    newest = max(images, key=lambda image: int(image["Created"]), default=None)
    return None if newest is None else str(newest["Id"])
