"""The start of an engine: stale pid files, two tries, flags."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sandkeeper.containers.dockerd import EnginePaths, remove_stale_pid_files, start_engine, telling_words
from sandkeeper.containers.host import Finished
from sandkeeper.core.errors import FailedPrecondition, Unavailable
from tests.fakes.host import FakeHost, StepClock, fake_machine

NO_SUCH_PID = 2**22 + 1  # above the kernel's highest pid_max


@pytest.fixture
def paths(tmp_path: Path) -> EnginePaths:
    return EnginePaths(
        socket=tmp_path / "engine.sock",
        pid_file=tmp_path / "engine.pid",
        log=tmp_path / "engine.log",
        containerd_pid_file=tmp_path / "containerd.pid",
        config_file=tmp_path / "daemon.json",
    )


def launcher(paths: EnginePaths, *, words: str, pid: int) -> Callable[[Sequence[str]], Finished]:
    """A `sh` whose dockerd becomes process `pid` and writes `words` to its log."""

    def sh(_argv: Sequence[str]) -> Finished:
        with paths.log.open("a") as log:
            log.write(words + "\n")
        return Finished(exit_code=0, output=f"{pid}\n")

    return sh


def test_a_pid_file_of_a_gone_process_is_removed(paths: EnginePaths) -> None:
    paths.pid_file.write_text(str(NO_SUCH_PID))
    assert remove_stale_pid_files(paths) == [paths.pid_file]
    assert not paths.pid_file.exists()


def test_a_pid_file_whose_process_is_something_else_is_removed(paths: EnginePaths) -> None:
    paths.pid_file.write_text(f"{os.getpid()}\n")
    paths.containerd_pid_file.write_text(str(os.getpid()))
    assert remove_stale_pid_files(paths) == [paths.pid_file, paths.containerd_pid_file]


def test_a_pid_file_with_nonsense_is_removed(paths: EnginePaths) -> None:
    paths.pid_file.write_text("")
    assert remove_stale_pid_files(paths) == [paths.pid_file]


def test_a_silent_engine_is_left_alone(paths: EnginePaths) -> None:
    own_name = Path("/proc/self/comm").read_text()
    Path("/proc/self/comm").write_text("dockerd")
    try:
        paths.pid_file.write_text(str(os.getpid()))
        host = FakeHost()
        with pytest.raises(FailedPrecondition) as refusal:
            start_engine(fake_machine(host, answers=lambda _: False), paths=paths)
    finally:
        Path("/proc/self/comm").write_text(own_name.strip())
    assert refusal.value.code == "engine_running_silent"
    assert paths.pid_file.exists()
    assert host.calls == []


def test_a_start_that_fails_is_tried_once_more(paths: EnginePaths) -> None:
    host = FakeHost(results={"sh": launcher(paths, words="first trouble", pid=NO_SUCH_PID)})
    with pytest.raises(Unavailable) as refusal:
        start_engine(fake_machine(host, answers=lambda _: False), paths=paths)
    assert refusal.value.code == "engine_start_failed"
    assert "first trouble" in refusal.value.message
    assert len(host.calls) == 2


def test_the_second_try_does_without_a_bridge_where_that_was_the_trouble(paths: EnginePaths) -> None:
    host = FakeHost()

    def sh(argv: Sequence[str]) -> Finished:
        is_bridgeless = "--bridge=none" in argv[2]
        words = "" if is_bridgeless else "failed to start daemon: Error initializing network controller"
        return launcher(paths, words=words, pid=os.getpid() if is_bridgeless else NO_SUCH_PID)(argv)

    host.results["sh"] = sh
    started = start_engine(fake_machine(host, answers=lambda _: len(host.calls) == 2), paths=paths)
    assert started.pid == os.getpid()


def test_the_wait_ends_at_its_timeout(paths: EnginePaths) -> None:
    clock = StepClock()
    host = FakeHost(results={"sh": launcher(paths, words="starting up", pid=os.getpid())})
    with pytest.raises(Unavailable):
        start_engine(fake_machine(host, answers=lambda _: False, clock=clock), paths=paths, timeout_s=5.0)
    assert 10.0 <= clock.at_s < 11.0


def test_the_engine_is_detached_and_logs_to_its_file(paths: EnginePaths) -> None:
    host = FakeHost(results={"sh": launcher(paths, words="", pid=os.getpid())})
    start_engine(fake_machine(host, answers=lambda _: True), paths=paths)
    script = host.calls[0][2]
    assert script.startswith("setsid dockerd --live-restore")
    assert f"--host=unix://{paths.socket}" in script
    assert f"</dev/null >>{paths.log} 2>&1 & echo $!" in script


def test_a_broken_configuration_is_named(paths: EnginePaths) -> None:
    paths.config_file.write_text("{")
    with pytest.raises(FailedPrecondition) as refusal:
        start_engine(fake_machine(FakeHost(), answers=lambda _: False), paths=paths)
    assert refusal.value.code == "engine_config_invalid"


def test_the_reason_is_not_drowned_by_what_comes_after_it() -> None:
    chatter = 'time="2026-01-01T00:00:00Z" level=info msg="reconnecting"\n'
    assert (
        telling_words(chatter + "failed to start daemon: no\n" + chatter * 100)
        == "failed to start daemon: no"
    )
    assert telling_words(chatter * 100).endswith('msg="reconnecting"')
