"""Which engine address is chosen, and what is said when none answers."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from sandkeeper.containers.endpoint import Endpoint, answers, connect, find_endpoint
from sandkeeper.core.errors import Unavailable


def test_docker_host_wins() -> None:
    endpoint = find_endpoint({"DOCKER_HOST": "unix:///tmp/other.sock"})
    assert endpoint == Endpoint(url="unix:///tmp/other.sock", is_chosen_by_user=True)
    assert endpoint.socket == Path("/tmp/other.sock")


def test_the_systems_socket_is_the_default(tmp_path: Path) -> None:
    assert find_endpoint({"XDG_RUNTIME_DIR": str(tmp_path)}).url == "unix:///var/run/docker.sock"


def test_an_address_of_another_kind_has_no_socket() -> None:
    assert Endpoint(url="tcp://elsewhere:2375").socket is None


def test_nothing_there_is_unavailable_with_advice(tmp_path: Path) -> None:
    endpoint = Endpoint(url=f"unix://{tmp_path}/none.sock")
    assert not answers(endpoint)
    with pytest.raises(Unavailable) as refusal:
        connect(endpoint)
    assert refusal.value.code == "engine_unreachable"
    assert "make setup" in refusal.value.advice


def test_a_socket_nobody_listens_on_does_not_answer(tmp_path: Path) -> None:
    path = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    assert not answers(Endpoint(url=f"unix://{path}"))
