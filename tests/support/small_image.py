"""A few hundred bytes that boxd can work in: files can be written, read and committed, nothing can be run."""

from __future__ import annotations

import io
import tarfile

import docker

SMALL_IMAGE = "sandkeeper-test-small:one"
_FILES = {
    "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\n",
    "etc/group": b"root:x:0:\n",
}


def import_small_image(api: docker.APIClient) -> None:
    """Make it at an engine."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for folder in ("etc", "root", "tmp", "proc", "sys", "dev", "run"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for name, body in _FILES.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(body)
            tar.addfile(entry, io.BytesIO(body))
    repository, _, tag = SMALL_IMAGE.partition(":")
    api.import_image_from_data(archive.getvalue(), repository=repository, tag=tag, changes=["WORKDIR /root"])
