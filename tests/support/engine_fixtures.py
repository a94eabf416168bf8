"""Fixtures of the real engine's tests: the stand-in program, the empty image, a rig. Import them into a conftest."""

import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import docker
import pytest

from sandkeeper.containers.endpoint import find_endpoint
from tests.support.engine_rig import DockerRig
from tests.support.stand_in.build import build_stand_in, import_empty_image


@pytest.fixture(scope="session")
def stand_in_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stand_in")
    build_stand_in(folder)
    return folder


@pytest.fixture(scope="session")
def engine_url() -> str:
    return find_endpoint(os.environ).url


@pytest.fixture(scope="session")
def empty_image_id(engine_url: str) -> Iterator[str]:
    api = docker.APIClient(base_url=engine_url, version="auto")
    tag = f"sandkeeper-test-{secrets.token_hex(4)}:empty"
    yield import_empty_image(api, tag=tag)
    api.remove_image(tag)
    api.close()


@pytest.fixture
def make_docker_rig(
    engine_url: str, empty_image_id: str, stand_in_dir: Path, tmp_path: Path
) -> Callable[[], DockerRig]:
    """Return a function that makes a rig on the user's engine; the caller closes it."""
    return lambda: DockerRig(url=engine_url, folder=tmp_path, boxd_dir=stand_in_dir, image_id=empty_image_id)


@pytest.fixture
async def docker_rig(make_docker_rig: Callable[[], DockerRig]) -> AsyncIterator[DockerRig]:
    rig = make_docker_rig()
    yield rig
    await rig.close()
