"""Which engine is used, installed, started or refused."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from sandkeeper.containers.bootstrap import ensure_engine
from sandkeeper.containers.dockerd import EnginePaths
from sandkeeper.containers.endpoint import Endpoint
from sandkeeper.containers.host import Finished
from sandkeeper.containers.progress import Progress
from sandkeeper.core.errors import FailedPrecondition, Unavailable
from tests.fakes.host import FakeHost, fake_machine


def private_paths(folder: Path) -> EnginePaths:
    return EnginePaths(
        socket=folder / "engine.sock",
        pid_file=folder / "engine.pid",
        log=folder / "engine.log",
        containerd_pid_file=folder / "containerd.pid",
        config_file=folder / "etc" / "daemon.json",
    )


def launching(host: FakeHost) -> FakeHost:
    """Let `sh -c setsid dockerd` launch a process that lives: this one."""
    host.results["sh"] = lambda argv: Finished(exit_code=0, output=f"{os.getpid()}\n")
    return host


def launches(host: FakeHost) -> list[str]:
    return [argv[2] for argv in host.calls if argv[0] == "sh"]


def test_an_engine_that_answers_is_used_as_it_is(tmp_path: Path) -> None:
    host = FakeHost(root=False)
    ready = ensure_engine(fake_machine(host, answers=lambda _: True), state_dir=tmp_path)
    assert ready.endpoint.url == "unix:///var/run/docker.sock"
    assert ready.started is None
    assert host.calls == []


def test_an_engine_named_by_the_user_is_never_replaced(tmp_path: Path) -> None:
    host = launching(FakeHost())
    machine = fake_machine(host, answers=lambda _: False, environment={"DOCKER_HOST": "tcp://elsewhere:2375"})
    with pytest.raises(Unavailable, match="DOCKER_HOST") as refusal:
        ensure_engine(machine, state_dir=tmp_path)
    assert refusal.value.code == "engine_unreachable"
    assert host.calls == []


def test_without_root_the_advice_says_how_to_get_one(tmp_path: Path) -> None:
    host = FakeHost(root=False)
    with pytest.raises(FailedPrecondition) as refusal:
        ensure_engine(fake_machine(host, answers=lambda _: False), state_dir=tmp_path)
    assert refusal.value.code == "engine_absent"
    assert "sudo make setup" in refusal.value.advice
    assert host.calls == []


def test_root_elsewhere_than_debian_gets_advice(tmp_path: Path) -> None:
    host = FakeHost(release={"ID": "fedora"}, commands=set())
    with pytest.raises(FailedPrecondition) as refusal:
        ensure_engine(
            fake_machine(host, answers=lambda _: False), state_dir=tmp_path, paths=private_paths(tmp_path)
        )
    assert refusal.value.code == "packages_not_installable"
    assert host.calls == []
    assert not (tmp_path / "etc").exists()


def test_a_missing_engine_is_installed_started_and_noted(tmp_path: Path) -> None:
    host = launching(FakeHost())
    news: list[Progress] = []
    ready = ensure_engine(
        fake_machine(host, answers=lambda _: bool(launches(host))),
        state_dir=tmp_path,
        paths=private_paths(tmp_path),
        on_progress=news.append,
    )
    assert ready.started is not None
    assert ready.started.pid == os.getpid()
    assert [argv[1] for argv in host.calls if argv[0] == "apt-get"] == ["update", "install"]
    assert json.loads((tmp_path / "etc" / "daemon.json").read_text()) == {"live-restore": True}
    assert "--live-restore" not in launches(host)[0], "a flag that repeats the configuration stops dockerd"
    note = json.loads((tmp_path / "engine.json").read_text())
    assert note == {
        "pid": os.getpid(),
        "start_ticks": ready.started.start_ticks,
        "socket": str(tmp_path / "engine.sock"),
        "log": str(tmp_path / "engine.log"),
    }
    assert news[-1].done


def test_an_installed_engine_is_only_started(tmp_path: Path) -> None:
    host = launching(FakeHost(commands={"dockerd"}))
    ensure_engine(
        fake_machine(host, answers=lambda _: bool(launches(host))),
        state_dir=tmp_path,
        paths=private_paths(tmp_path),
    )
    assert [argv[0] for argv in host.calls] == ["sh"]
    assert "--live-restore" in launches(host)[0]
    assert not (tmp_path / "etc").exists(), "the configuration of an engine we did not install is not ours"


def test_the_service_of_systemd_runs_what_was_installed(tmp_path: Path) -> None:
    host = FakeHost(systemd=True)
    ready = ensure_engine(
        fake_machine(host, answers=lambda _: ["systemctl", "start", "docker"] in host.calls),
        state_dir=tmp_path,
        paths=private_paths(tmp_path),
    )
    assert ready.started is None
    assert launches(host) == []


def test_cgroups_are_mounted_where_nobody_did(tmp_path: Path) -> None:
    host = launching(FakeHost(commands={"apt-get", "dockerd"}, cgroups=False))
    ensure_engine(
        fake_machine(host, answers=lambda _: bool(launches(host))),
        state_dir=tmp_path,
        paths=private_paths(tmp_path),
    )
    assert ["cgroupfs-mount"] in host.calls


def test_a_failed_install_says_what_apt_said(tmp_path: Path) -> None:
    def apt_get(argv: Sequence[str]) -> Finished:
        return Finished(exit_code=100, output=f"E: cannot {argv[1]}")

    host = FakeHost(results={"apt-get": apt_get})
    with pytest.raises(Unavailable) as refusal:
        ensure_engine(
            fake_machine(host, answers=lambda _: False), state_dir=tmp_path, paths=private_paths(tmp_path)
        )
    assert refusal.value.code == "package_install_failed"
    assert "E: cannot install" in refusal.value.message
    assert "E: cannot update" in refusal.value.message


def test_private_paths_are_asked_for_and_not_the_users_engine(tmp_path: Path) -> None:
    asked: list[Endpoint] = []

    def answers(endpoint: Endpoint) -> bool:
        asked.append(endpoint)
        return True

    machine = fake_machine(FakeHost(), answers=answers, environment={"DOCKER_HOST": "tcp://elsewhere:2375"})
    ready = ensure_engine(machine, state_dir=tmp_path, paths=private_paths(tmp_path))
    assert [endpoint.url for endpoint in asked] == [ready.endpoint.url] == [f"unix://{tmp_path}/engine.sock"]
