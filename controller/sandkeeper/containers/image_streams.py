"""Engine calls that move whole images or files as streams, as blocking functions.

Owns flattening an image, saving and loading one, and reading a file of a container that stands still. A flattened
image is checked against the tree it was made from before it gets its name for good. Never maps an error.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from docker.errors import NotFound

from sandkeeper.containers import docker_calls as calls
from sandkeeper.containers.docker_connection import DockerApi
from sandkeeper.containers.settings import BIRTH_LABEL, BOXD_FOLDER, INSTALLATION_LABEL
from sandkeeper.containers.tree_digest import TreeDigest, as_file, digest_of
from sandkeeper.core.errors import Aborted, DataLoss, Internal
from sandkeeper.core.ids import BirthId, InstallationId

CHUNK_BYTES = 1024 * 1024
IsGivenUp = Callable[[], bool]


def changed_paths(api: DockerApi, birth_id: BirthId) -> list[str]:
    """Return the paths that a container has added or changed, folders among them."""
    deleted = 2
    return [change["Path"] for change in api.diff(birth_id) or () if change["Kind"] != deleted]


def read_file(api: DockerApi, birth_id: BirthId, path: str, *, max_bytes: int) -> bytes | None:
    """Return the beginning of a regular file, or None for whatever else is there, or nothing."""
    try:
        stream, _ = api.get_archive(birth_id, path, chunk_size=CHUNK_BYTES)
    except NotFound:
        return None
    try:
        with tarfile.open(fileobj=as_file(stream), mode="r|") as archive:
            member = archive.next()
            file = archive.extractfile(member) if member is not None and member.isreg() else None
            return None if file is None else file.read(max_bytes)
    finally:
        _close(stream)


def flatten(
    api: DockerApi,
    image_id: str,
    *,
    installation_id: InstallationId,
    name: str,
    tag: str,
    is_given_up: IsGivenUp,
) -> str:
    """Write the image's tree as one layer into a new image known as `tag`, and return its id.

    The engine imports a layer without configuration; a commit of a container that never ran adds it.

    Raises:
        DataLoss: `flatten_mismatch`: the new image's tree is not the old one's.
        Aborted: `superseded`: nobody wants it any more.
    """
    parent = api.inspect_image(image_id)
    repository, _, label = tag.rpartition(":")
    with _stillborn(api, image_id, name=name, installation_id=installation_id) as container:
        before = _tree_of(api, container, is_given_up)
        stream = _until(api.export(container, chunk_size=CHUNK_BYTES), is_given_up)
        answer = api.import_image_from_stream(stream, repository=repository, tag=label)
        if '"error"' in answer:
            raise Internal(f"import of {image_id}: {answer[-500:]}", code="engine_error")
    with _stillborn(api, tag, name=name, installation_id=installation_id) as container:
        after = _tree_of(api, container, is_given_up)
        if after != before:
            raise DataLoss(
                f"{image_id} has {before.entry_count} entries of hash {before.sha256}, flattened "
                f"{after.entry_count} of {after.sha256}",
                code="flatten_mismatch",
            )
        configuration = calls.configuration_of(parent["Config"] or {})
        committed = api.commit(
            container,
            repository=repository,
            tag=label,
            message=calls.commit_comment(installation_id),
            pause=False,
            conf={**configuration, "Env": (parent["Config"] or {}).get("Env") or []},
        )
    return str(committed["Id"])


def save_image(
    api: DockerApi, image_id: str, *, sink: Callable[[bytes], object], is_given_up: IsGivenUp
) -> None:
    """Give the engine's archive of an image to `sink`, piece by piece.

    Raises:
        Aborted: `superseded`.
    """
    api.inspect_image(image_id)  # an image that is not there is told apart only here
    for chunk in _until(api.get_image(image_id, chunk_size=CHUNK_BYTES), is_given_up):
        sink(chunk)


def load_image(api: DockerApi, chunks: Iterable[bytes], *, is_given_up: IsGivenUp) -> None:
    """Load an archive of an image.

    Raises:
        DataLoss: `archive_refused`: the engine could not read it.
        Aborted: `superseded`.
    """
    for line in api.load_image(_until(chunks, is_given_up)) or ():
        if "error" in line:
            raise DataLoss(f"load: {str(line['error'])[:500]}", code="archive_refused")


@contextmanager
def _stillborn(api: DockerApi, image: str, *, name: str, installation_id: InstallationId) -> Iterator[str]:
    """A container that is never started, for its tree; known to the reaper by name, and gone afterwards."""
    calls.remove(api, BirthId(name), installation_id=installation_id)
    document = {
        "Image": image,
        "Entrypoint": [f"{BOXD_FOLDER}/boxd"],
        "Labels": {INSTALLATION_LABEL: installation_id, BIRTH_LABEL: name},
        "HostConfig": {"NetworkMode": "none"},
    }
    api.create_container_from_config(document, name=name)
    try:
        yield name
    finally:
        api.remove_container(name, v=True, force=True)


def _tree_of(api: DockerApi, container: str, is_given_up: IsGivenUp) -> TreeDigest:
    return digest_of(_until(api.export(container, chunk_size=CHUNK_BYTES), is_given_up))


def _until(chunks: Iterable[bytes], is_given_up: IsGivenUp) -> Iterator[bytes]:
    try:
        for chunk in chunks:
            if is_given_up():
                raise Aborted("given up", code="superseded", admitted="yes")
            yield chunk
    finally:
        _close(chunks)


def _close(stream: Any) -> None:
    """Let go of the connection behind a stream that was not read to its end."""
    close = getattr(stream, "close", None)
    if close is not None:
        close()
