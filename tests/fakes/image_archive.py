"""Archives of fake images, in the outer shape of the real engine's: a manifest, a configuration, one layer."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from collections.abc import Iterable, Mapping

from sandkeeper.core.errors import DataLoss


def pack_image(image_id: str, files: Mapping[str, bytes]) -> bytes:
    """Return the archive of an image, without references."""
    name = f"{image_id.removeprefix('sha256:')}.json"
    body = {path: base64.b64encode(content).decode() for path, content in files.items()}
    manifest = [{"Config": name, "RepoTags": None, "Layers": []}]
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for member, document in ((name, body), ("manifest.json", manifest)):
            content = json.dumps(document).encode()
            entry = tarfile.TarInfo(member)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()


def unpack_image(chunks: Iterable[bytes]) -> tuple[str, dict[str, bytes]]:
    """Return the image id and the files of an archive.

    Raises:
        DataLoss: `archive_refused`.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks)), mode="r") as tar:
            manifest = json.loads(_content(tar, "manifest.json"))
            name = manifest[0]["Config"]
            body = json.loads(_content(tar, name))
    except (tarfile.TarError, KeyError, ValueError) as error:
        raise DataLoss(f"load: {error}", code="archive_refused") from error
    files = {path: base64.b64decode(content) for path, content in body.items()}
    return f"sha256:{name.removesuffix('.json')}", files


def _content(tar: tarfile.TarFile, name: str) -> bytes:
    member = tar.extractfile(name)
    return b"" if member is None else member.read()
