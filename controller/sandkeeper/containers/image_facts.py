"""What an image says of itself, and whether a sandbox can be made from it.

Owns the reading of ENV, WORKDIR, USER, ENTRYPOINT, CMD and VOLUME at the engine, and the refusals that follow. It
never pulls: an image that is not at the engine is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

import docker
from docker.errors import ImageNotFound

from sandkeeper.core.errors import FailedPrecondition, NotFound


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """An image at the engine.

    Attributes:
        digest: Its id at the engine (`sha256:...`); a sandbox is pinned to it.
        env: ENV, by name.
        workdir: WORKDIR, `/` where the image sets none.
        user: USER as written (`name`, `uid`, `name:group`), or `""` for root.
        entrypoint: ENTRYPOINT in exec form; empty where there is none.
        cmd: CMD in exec form; empty where there is none.
        volumes: Paths of VOLUME: they would be in no snapshot.
        size_bytes: All its layers together.
        os: Such as `linux`.
        arch: Go name of the architecture.
    """

    digest: str
    env: dict[str, str]
    workdir: str
    user: str
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]
    volumes: tuple[str, ...]
    size_bytes: int
    os: str
    arch: str


def inspect_image(client: docker.DockerClient, reference: str) -> ImageFacts:
    """Return the facts of the image `reference` (a tag or a digest id).

    Raises:
        NotFound: `image_unknown`.
    """
    try:
        document = client.api.inspect_image(reference)
    except ImageNotFound as error:
        raise NotFound(
            f"the engine has no image {reference}",
            code="image_unknown",
            advice="`sandkeeper images` lists what there is; `make setup` builds the shipped ones",
        ) from error
    config = document.get("Config") or {}
    pairs = (item.partition("=") for item in config.get("Env") or [])
    return ImageFacts(
        digest=document["Id"],
        env={name: value for name, _, value in pairs},
        workdir=config.get("WorkingDir") or "/",
        user=config.get("User") or "",
        entrypoint=tuple(config.get("Entrypoint") or ()),
        cmd=tuple(config.get("Cmd") or ()),
        volumes=tuple(sorted(config.get("Volumes") or {})),
        size_bytes=int(document.get("Size") or 0),
        os=document.get("Os") or "",
        arch=document.get("Architecture") or "",
    )


def check_usable(facts: ImageFacts, *, reference: str, arch: str) -> None:
    """Refuse an image that cannot be the base of a sandbox.

    Args:
        facts: The image.
        reference: What the caller called it, for the message.
        arch: Go name of the engine's architecture.

    Raises:
        FailedPrecondition: `image_declares_volume`, `image_wrong_platform`.
    """
    if facts.volumes:
        raise FailedPrecondition(
            f"image {reference} declares VOLUME {', '.join(facts.volumes)}: files there would be in no snapshot",
            code="image_declares_volume",
            advice="build an image without VOLUME, for example by exporting and importing a container of it",
            details={"image": facts.digest, "volumes": list(facts.volumes)},
        )
    if (facts.os, facts.arch) != ("linux", arch):
        raise FailedPrecondition(
            f"image {reference} is for {facts.os}/{facts.arch}, the engine is linux/{arch}",
            code="image_wrong_platform",
            advice="use an image of the engine's own platform",
            details={"image": facts.digest},
        )


def admit_image(client: docker.DockerClient, reference: str, *, arch: str) -> ImageFacts:
    """Return the facts of an image that can be the base of a sandbox.

    Raises:
        NotFound: `image_unknown`.
        FailedPrecondition: `image_declares_volume`, `image_wrong_platform`.
    """
    facts = inspect_image(client, reference)
    check_usable(facts, reference=reference, arch=arch)
    return facts
