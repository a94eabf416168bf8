"""Builds the shipped images where they are missing.

Owns building, checking and tagging: an image gets its tag only after its smoke check passed, and a tag names the
content it was built from, so a second call finds everything and builds nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

import docker
from docker.errors import APIError, DockerException, ImageNotFound

from sandkeeper.containers.host import Host
from sandkeeper.containers.progress import OnProgress, Progress, no_progress
from sandkeeper.containers.recipes import (
    DEFAULT_IMAGES,
    RECIPES,
    SMOKE_CHECK,
    Recipe,
    build_context,
    content_id,
    images_folder,
    with_parents,
)
from sandkeeper.containers.root_image import ensure_root_image
from sandkeeper.core.errors import Internal, Unavailable

BUILD_TIMEOUT_S = 1800
SMOKE_OUTPUT_CHARS = 2000
STEP_LINE_CHARS = 90
SANDBOX_CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETUID", "SETGID", "KILL", "SETFCAP", "AUDIT_WRITE",
)  # fmt: skip
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def ensure_images(
    client: docker.DockerClient,
    *,
    host: Host,
    names: Iterable[str] = DEFAULT_IMAGES,
    root_image: str | None = None,
    on_progress: OnProgress = no_progress,
    folder: Path | None = None,
) -> dict[str, str]:
    """Return the digest ids of the shipped images `names`, building what is missing.

    Args:
        client: The engine, with a read timeout long enough for a build step.
        host: The machine, for making a root image.
        names: Shipped images; what they stand on is built too.
        root_image: A registry image `name@sha256:...` to stand on, or None to make one here.
        on_progress: Told what is done.
        folder: The image folders; by default those of this installation.

    Returns:
        Image name to digest id (`sha256:...`), for `names` only. A repeat is safe and quick.

    Raises:
        InvalidArgument: `image_unknown`, `root_image_not_pinned`.
        Unavailable: `image_build_failed`, and what `ensure_root_image` raises.
        Internal: `image_smoke_failed`.
    """
    wanted = list(names)
    recipes = with_parents(wanted)
    source = folder or images_folder()
    root = ensure_root_image(client, host=host, pinned=root_image, on_progress=on_progress)
    ids: dict[str, str] = {}
    for recipe in recipes:
        parent_id = root.image_id if recipe.parent is None else ids[recipe.parent]
        ids[recipe.name] = _ensure(
            client, recipe=recipe, folder=source / recipe.name, parent_id=parent_id, on_progress=on_progress
        )
    return {name: ids[name] for name in wanted}


def shipped_tags(client: docker.DockerClient) -> dict[str, list[str]]:
    """Return all tags of shipped images at the engine, by image name (older contents included)."""
    found: dict[str, list[str]] = {name: [] for name in RECIPES}
    for recipe in RECIPES.values():
        for image in client.api.images(name=recipe.repository):
            found[recipe.name] += image.get("RepoTags") or []
    return found


def _ensure(
    client: docker.DockerClient, *, recipe: Recipe, folder: Path, parent_id: str, on_progress: OnProgress
) -> str:
    version = content_id(folder, parent_id=parent_id)
    step = f"image:{recipe.name}"
    try:
        return str(client.api.inspect_image(f"{recipe.repository}:{version}")["Id"])
    except ImageNotFound:
        on_progress(Progress(step=step, message=f"building image {recipe.name}"))
    image_id = _build(client, recipe=recipe, folder=folder, parent_id=parent_id, on_progress=on_progress)
    on_progress(Progress(step=step, message=f"checking image {recipe.name}"))
    _smoke_check(client, recipe=recipe, script=(folder / SMOKE_CHECK).read_text(), image_id=image_id)
    client.api.tag(image_id, recipe.repository, tag=version)
    on_progress(Progress(step=step, message=f"built {recipe.repository}:{version}", done=True))
    return image_id


def _build(
    client: docker.DockerClient, *, recipe: Recipe, folder: Path, parent_id: str, on_progress: OnProgress
) -> str:
    """Build an image without a tag and return its id."""
    image_id, output = "", ""
    try:
        stream = client.api.build(
            fileobj=build_context(folder),
            custom_context=True,
            rm=True,
            forcerm=True,
            network_mode="host",
            buildargs={"PARENT": parent_id, **proxy_arguments(os.environ)},
            timeout=BUILD_TIMEOUT_S,
            decode=True,
        )
        for report in stream:
            output = (output + report.get("stream", ""))[-SMOKE_OUTPUT_CHARS:]
            if "error" in report:
                raise _build_failed(recipe, reason=f"{report['error']}: {output}")
            image_id = (report.get("aux") or {}).get("ID", image_id)
            line = str(report.get("stream", "")).strip()
            if line.startswith("Step "):
                on_progress(
                    Progress(step=f"image:{recipe.name}", message=shorten(line, width=STEP_LINE_CHARS))
                )
    except DockerException as error:
        raise _build_failed(recipe, reason=str(error)) from error
    if not image_id:
        raise _build_failed(recipe, reason=f"the engine named no image: {output}")
    return image_id


def _build_failed(recipe: Recipe, *, reason: str) -> Unavailable:
    return Unavailable(
        f"image {recipe.name} could not be built: {reason}",
        code="image_build_failed",
        advice="the end of the build's output is in the message; check the network and the package sources",
    )


def proxy_arguments(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the proxy settings to build with: predefined arguments, which the engine keeps out of the image."""
    return {name: environment[name] for name in _PROXY_VARIABLES if environment.get(name)}


def _smoke_check(client: docker.DockerClient, *, recipe: Recipe, script: str, image_id: str) -> None:
    """Run the image's own check with a sandbox's rights and no network; remove an image that fails it."""
    container: Any = client.containers.create(
        image_id,
        ["sh", "-euc", script],
        network_mode="none",
        hostname="smoke",
        extra_hosts={"smoke": "127.0.1.1"},
        cap_drop=["ALL"],
        cap_add=list(SANDBOX_CAPABILITIES),
    )
    try:
        container.start()
        exit_code = int(container.wait()["StatusCode"])
        output = container.logs().decode(errors="replace").strip()[-SMOKE_OUTPUT_CHARS:]
    finally:
        container.remove(force=True, v=True)
    if exit_code == 0:
        return
    try:
        client.api.remove_image(image_id)
    except APIError as error:
        output += f" (the image could not be removed: {error})"
    raise Internal(
        f"image {recipe.name} fails its smoke check with {exit_code}: {output}",
        code="image_smoke_failed",
        advice=f"look at sandbox_images/{recipe.name}/{SMOKE_CHECK}",
    )
