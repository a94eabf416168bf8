"""The engine calls that take more than one request, as blocking functions.

Owns their order and what is checked before they act. Never maps an error and never waits for a thread.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
from pathlib import Path
from typing import Any

from docker.errors import APIError, ImageNotFound, NotFound

from sandkeeper.containers import docker_views as views
from sandkeeper.containers.docker_connection import DockerApi
from sandkeeper.containers.engine import EngineFacts, EngineImage, RuntimeSettings
from sandkeeper.containers.settings import BIRTH_LABEL, INSTALLATION_LABEL, create_document
from sandkeeper.core import errors
from sandkeeper.core.ids import BirthId, InstallationId

Document = dict[str, Any]

_UNREACHABLE = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR)


def facts(api: DockerApi) -> EngineFacts:
    """Return what the engine says about itself, and what this machine's mounts say about its folder."""
    return views.engine_facts(api.info(), mounts=Path("/proc/self/mounts").read_text())


def find_runtime(api: DockerApi, birth_id: BirthId, *, installation_id: InstallationId) -> Document | None:
    """Return the inspect document of a container of ours, or None."""
    try:
        container: Document = api.inspect_container(birth_id)
    except NotFound:
        return None
    is_ours = views.is_ours(
        container["Config"].get("Labels"), name=container["Name"], installation_id=installation_id
    )
    return container if is_ours else None


def existing_runtime(api: DockerApi, birth_id: BirthId, *, installation_id: InstallationId) -> Document:
    """Return the inspect document of a container of ours.

    Raises:
        NotFound: `runtime_missing`.
    """
    container = find_runtime(api, birth_id, installation_id=installation_id)
    if container is None:
        raise errors.NotFound(f"there is no runtime {birth_id}", code="runtime_missing")
    return container


def create(api: DockerApi, settings: RuntimeSettings) -> bool:
    """Create the container; an equal one is as good.

    Returns:
        False when the engine holds the name for a create that has not ended: ask again.

    Raises:
        AlreadyExists: `name_conflict`.
    """
    try:
        api.create_container_from_config(create_document(settings), name=settings.birth_id)
    except APIError as error:
        if error.status_code != 409:
            raise
        return _is_created_already(api, settings)
    return True


def _is_created_already(api: DockerApi, settings: RuntimeSettings) -> bool:
    try:
        found = api.inspect_container(settings.birth_id)
    except NotFound:
        return False
    if views.is_ours(found["Config"]["Labels"], name=found["Name"], installation_id=settings.installation_id):
        return True
    raise errors.AlreadyExists(
        f"create {settings.birth_id}: a container of that name is not ours", code="name_conflict"
    )


def stop(api: DockerApi, birth_id: BirthId, *, installation_id: InstallationId, grace_s: float) -> None:
    """Thaw the container if it is frozen, then end it."""
    container = existing_runtime(api, birth_id, installation_id=installation_id)
    if container["State"]["Status"] == "paused":
        try:
            api.unpause(birth_id)
        except APIError as error:
            if "not paused" not in str(error.explanation):
                raise
    api.stop(birth_id, timeout=math.ceil(grace_s))


def remove(api: DockerApi, birth_id: BirthId, *, installation_id: InstallationId) -> bool:
    """Kill and remove the container if it is ours.

    Returns:
        False while another removal of it is under way.
    """
    if find_runtime(api, birth_id, installation_id=installation_id) is None:
        return True
    try:
        api.remove_container(birth_id, v=True, force=True)
    except NotFound:
        return True
    except APIError as error:
        if error.status_code != 409:
            raise
        return False
    return True


def commit(api: DockerApi, birth_id: BirthId, *, installation_id: InstallationId, tag: str) -> str:
    """Commit the container without freezing it, and return the new image's id."""
    container = existing_runtime(api, birth_id, installation_id=installation_id)
    parent = api.inspect_image(container["Image"])
    repository, _, label = tag.rpartition(":")
    answer = api.commit(
        birth_id,
        repository=repository,
        tag=label,
        message=commit_comment(installation_id),
        pause=False,
        conf=configuration_of(parent["Config"] or {}),
    )
    return str(answer["Id"])


def commit_comment(installation_id: InstallationId) -> str:
    """Return the mark by which an image of ours is known that has lost its tags; no container inherits it."""
    return f"sandkeeper {installation_id}"


def configuration_of(parent: Document) -> Document:
    """Return what must be said so that the image's configuration is its parent's and not the container's.

    The engine takes from the container what is not said here. Labels cannot be left out, only emptied: then a
    container that somebody runs from the image is not taken for ours.
    """
    return {
        "Entrypoint": parent.get("Entrypoint") or [],
        "Cmd": parent.get("Cmd") or [],
        "User": parent.get("User") or "0:0",
        "WorkingDir": parent.get("WorkingDir") or "/",
        "StopSignal": parent.get("StopSignal") or "SIGTERM",
        "Healthcheck": parent.get("Healthcheck"),
        "Labels": {INSTALLATION_LABEL: "", BIRTH_LABEL: ""},
    }


def find_image(api: DockerApi, ref: str) -> EngineImage | None:
    """Return the image by id or reference, or None."""
    try:
        return views.engine_image(api.inspect_image(ref))
    except ImageNotFound:
        return None


def remove_image(api: DockerApi, ref: str) -> None:
    """Take the reference away; absent is success."""
    try:
        api.remove_image(ref)
    except ImageNotFound:
        return


def list_images(api: DockerApi, *, installation_id: InstallationId) -> list[EngineImage]:
    """Return the tagged images of the installation's repository and its commits without a tag."""
    tagged = [views.engine_image(entry) for entry in api.images(name=f"sandkeeper-{installation_id}")]
    loose = api.images(filters={"dangling": True, "label": INSTALLATION_LABEL})
    return tagged + [
        image
        for entry in loose
        if (image := _find_loose(api, entry["Id"], installation_id=installation_id)) is not None
    ]


def _find_loose(api: DockerApi, image_id: str, *, installation_id: InstallationId) -> EngineImage | None:
    try:
        document = api.inspect_image(image_id)
    except ImageNotFound:
        return None
    image = views.engine_image(document)
    is_ours = document.get("Comment") == commit_comment(installation_id) and not image.tags
    return image if is_ours else None


def sync_folder(path: str) -> None:
    """Flush the file system that holds `path` (syncfs(2)); a folder that is not on this machine is left alone.

    Raises:
        DataLoss: `sync_failed`: the kernel could not write something to the disk.
    """
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _UNREACHABLE:
            return
        raise
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(folder) != 0:
            problem = os.strerror(ctypes.get_errno())
            raise errors.DataLoss(f"sync of {path}: {problem}", code="sync_failed")
    finally:
        os.close(folder)
