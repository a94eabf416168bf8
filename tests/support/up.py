"""One running installation for a whole test session, in a short temporary folder: real Ray, real engine.

Import `installation` into a conftest. It is ended, and what it left at the engine is removed, at the session's end.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import docker
import pytest

from sandkeeper.client.keeper import Keeper
from sandkeeper.containers.endpoint import connect, find_endpoint

COMMAND_TIMEOUT_S = 240.0


@dataclass(frozen=True)
class Installed:
    """An installation that is up.

    Attributes:
        state_dir: Its folder.
        installation_id: What its containers and images are marked with.
    """

    state_dir: Path
    installation_id: str

    def keeper(self) -> Keeper:
        """Return a keeper that joins it."""
        return Keeper.join(self.state_dir)

    def sk(self, *words: str, check: bool = True, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run one `sandkeeper` command line in a process of its own."""
        return run_sk(self.state_dir, *words, check=check, stdin=stdin)


def run_sk(
    state_dir: Path, *words: str, check: bool = True, stdin: bytes = b"", timeout_s: float = COMMAND_TIMEOUT_S
) -> subprocess.CompletedProcess[bytes]:
    """Run one `sandkeeper` command line for a state folder."""
    done = subprocess.run(
        [sys.executable, "-m", "sandkeeper.cli.app", *words],
        input=stdin,
        capture_output=True,
        timeout=timeout_s,
        env=sk_environment(state_dir),
        check=False,
    )
    if check and done.returncode != 0:
        raise AssertionError(f"sandkeeper {' '.join(words)}: {done.returncode}\n{done.stderr.decode()}")
    return done


def sk_environment(state_dir: Path) -> dict[str, str]:
    """Return the environment of a child that works on a state folder with this very package."""
    return os.environ | {
        "SANDKEEPER_STATE_DIR": str(state_dir),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }


@contextmanager
def new_installation(*up_options: str) -> Iterator[Installed]:
    """Bring an installation up in a folder of its own; end it, and remove all that is marked as its."""
    state_dir = Path(tempfile.mkdtemp(prefix="sk-up-"))
    try:
        run_sk(state_dir, "up", *up_options)
        installed = asyncio.run(_identified(state_dir))
        try:
            yield installed
        finally:
            run_sk(state_dir, "down")
            remove_traces(installed.installation_id)
    finally:
        shutil.rmtree(state_dir)


@pytest.fixture(scope="session")
def installation() -> Iterator[Installed]:
    """The session's installation; tests leave nothing in it, or nothing that is in another's way."""
    with new_installation() as installed:
        yield installed


def containers_of(installation_id: str) -> list[str]:
    """Return the names of an installation's containers, whatever their state."""
    client = connect(find_endpoint(os.environ))
    try:
        found = client.api.containers(all=True, filters={"label": f"sandkeeper={installation_id}"})
        return sorted(str(one["Names"][0]).lstrip("/") for one in found)
    finally:
        client.close()


def images_of(installation_id: str) -> list[str]:
    """Return the image tags of an installation's repository."""
    client = connect(find_endpoint(os.environ))
    try:
        found = client.api.images(name=f"sandkeeper-{installation_id}")
        return sorted(tag for one in found for tag in one.get("RepoTags") or [])
    finally:
        client.close()


def remove_traces(installation_id: str) -> None:
    """Remove an installation's containers and images from the engine."""
    client = connect(find_endpoint(os.environ))
    try:
        for name in containers_of(installation_id):
            client.api.remove_container(name, force=True, v=True)
        for tag in images_of(installation_id):
            client.api.remove_image(tag, force=True)
    except docker.errors.NotFound:
        pass  # removed by the installation itself just now
    finally:
        client.close()


async def _identified(state_dir: Path) -> Installed:
    async with Keeper.join(state_dir) as keeper:
        status = await keeper.status()
    return Installed(state_dir, status.installation_id)
