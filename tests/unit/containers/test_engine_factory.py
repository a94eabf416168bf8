"""One line of configuration, one engine."""

from pathlib import Path
from typing import Any

import pytest

from sandkeeper.containers.docker_engine import DockerEngine
from sandkeeper.containers.engine import Engine
from sandkeeper.containers.factory import open_engine
from sandkeeper.core.errors import InvalidArgument
from sandkeeper.core.ids import InstallationId
from sandkeeper.ports import real_ports
from tests.fakes.engine import FakeEngine


def opened(spec: str, **environment: str) -> Engine:
    return open_engine(
        spec,
        installation_id=InstallationId("inst"),
        ports=real_ports(),
        state_dir=Path("/nowhere"),
        environment=environment,
    )


def url_of(engine: Any) -> str:
    assert isinstance(engine, DockerEngine)
    return engine.url


@pytest.mark.parametrize("spec", ["", "docker"])
def test_the_users_engine(spec: str) -> None:
    assert url_of(opened(spec, DOCKER_HOST="unix:///x/y.sock")) == "unix:///x/y.sock"


def test_an_address() -> None:
    assert url_of(opened("unix:///a/b.sock", DOCKER_HOST="unix:///x/y.sock")) == "unix:///a/b.sock"


def test_a_factory() -> None:
    assert isinstance(opened("tests.fakes.engine:engine_for_bench"), FakeEngine)


@pytest.mark.parametrize(
    "spec", ["podman", "no.such.module:x", "tests.fakes.engine:none", ":x", "tests.fakes.engine"]
)
def test_nonsense_is_refused(spec: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        opened(spec)
    assert caught.value.code == "engine_unknown"
