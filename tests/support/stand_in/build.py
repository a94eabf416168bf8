"""Compiles the stand-in for boxd and makes the empty image it runs on."""

import io
import os
import subprocess
import tarfile
from pathlib import Path

import docker

import hatch_build

SOURCE = Path(__file__).parent


def build_stand_in(folder: Path) -> Path:
    """Put the program into `folder` under the name boxd, ready to be mounted at /.sandkeeper."""
    environment = os.environ | {
        "CGO_ENABLED": "0",
        "GOFLAGS": "",
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
        "GOOS": "linux",
    }
    target = folder / "boxd"
    subprocess.run(
        [str(hatch_build.find_go()), "build", "-trimpath", "-ldflags=-s -w", "-o", str(target), "."],
        cwd=SOURCE,
        env=environment,
        check=True,
        capture_output=True,
        timeout=120,
    )
    folder.chmod(0o755)
    return target


def import_empty_image(api: docker.APIClient, *, tag: str) -> str:
    """Make an image with one file and a configuration of its own, and return its id."""
    body = b"from the image\n"
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("base.txt")
        entry.size = len(body)
        tar.addfile(entry, io.BytesIO(body))
    repository, _, label = tag.rpartition(":")
    changes = [
        "ENV COLOUR=blue",
        "WORKDIR /home",
        "USER 1000:1000",
        'CMD ["/bin/nothing"]',
        "LABEL maker=tests",
    ]
    api.import_image_from_data(archive.getvalue(), repository=repository, tag=label, changes=changes)
    return str(api.inspect_image(tag)["Id"])
