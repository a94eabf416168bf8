"""Archives of fake images, in the outer shape of the real engine's: a manifest, a configuration, one layer."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence

from sandkeeper.core.errors import DataLoss


def configuration_of(files: Mapping[str, bytes], *, salt: str) -> bytes:
    """Return what an image's id is the hash of; the salt tells apart images of the same files."""
    body = {path: base64.b64encode(content).decode() for path, content in files.items()}
    return json.dumps({"files": body, "salt": salt}).encode()


def image_id_of(files: Mapping[str, bytes], *, salt: str) -> str:
    """Return the id of an image, by its content as the real engine makes it."""
    return f"sha256:{hashlib.sha256(configuration_of(files, salt=salt)).hexdigest()}"


def pack_image(files: Mapping[str, bytes], *, salt: str, tags: Sequence[str] = ()) -> bytes:
    """Return the archive of an image."""
    name = f"{image_id_of(files, salt=salt).removeprefix('sha256:')}.json"
    manifest = json.dumps([{"Config": name, "RepoTags": list(tags) or None, "Layers": []}]).encode()
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for member, content in ((name, configuration_of(files, salt=salt)), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(member)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()


def unpack_image(chunks: Iterable[bytes]) -> tuple[str, dict[str, bytes]]:
    """Return the salt and the files of an archive.

    Raises:
        DataLoss: `archive_refused`.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks)), mode="r") as tar:
            manifest = json.loads(_content(tar, "manifest.json"))
            body = json.loads(_content(tar, manifest[0]["Config"]))
    except (tarfile.TarError, KeyError, ValueError) as error:
        raise DataLoss(f"load: {error}", code="archive_refused") from error
    return body["salt"], {path: base64.b64decode(content) for path, content in body["files"].items()}


def _content(tar: tarfile.TarFile, name: str) -> bytes:
    member = tar.extractfile(name)
    return b"" if member is None else member.read()
