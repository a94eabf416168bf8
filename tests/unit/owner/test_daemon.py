"""Finding and ending the `up` of a state folder, by what it left written there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sandkeeper.owner.config import StatePaths, load_config
from sandkeeper.owner.daemon import UpMark, find_up, start_daemon, stop_daemon
from sandkeeper.ports import real_ports
from sandkeeper.store.processes import this_process
from tests.unit.owner.test_roll_call import holder_of


def write_mark(paths: StatePaths, **changes: object) -> UpMark:
    mark = UpMark(**(this_process().model_dump() | {"ray_folder": "/tmp/ray"} | changes))
    paths.up.write_text(mark.model_dump_json())
    return mark


def test_a_ready_one_is_found(tmp_path: Path) -> None:
    paths = StatePaths(tmp_path)
    assert find_up(paths) is None
    assert find_up(StatePaths(tmp_path / "nowhere")) is None
    assert write_mark(paths) == find_up(paths)


@pytest.mark.parametrize(
    "changes",
    [{"start_ticks": 1}, {"pid": 2**22 + 1}, {"boot_id": "another"}],
    ids=["the pid was reused", "it is gone", "the machine was restarted"],
)
def test_one_that_is_gone_is_not_found(tmp_path: Path, changes: dict[str, object]) -> None:
    paths = StatePaths(tmp_path)
    write_mark(paths, **changes)
    assert find_up(paths) is None


@pytest.mark.parametrize("content", ["", "{", '{"pid": 1}'])
def test_a_mark_that_is_half_written_is_none(tmp_path: Path, content: str) -> None:
    paths = StatePaths(tmp_path)
    paths.up.write_text(content)
    assert find_up(paths) is None


async def test_one_that_runs_is_not_started_again(tmp_path: Path) -> None:
    config = load_config(tmp_path)
    mark = write_mark(config.paths)
    assert await start_daemon(config, ports=real_ports()) == mark
    assert not config.paths.logs.exists()


async def test_nobody_to_stop(tmp_path: Path) -> None:
    assert not await stop_daemon(StatePaths(tmp_path), ports=real_ports())


async def test_one_that_is_still_starting_is_stopped_by_its_lock(tmp_path: Path) -> None:
    paths = StatePaths(tmp_path)
    with holder_of(paths.up_lock) as starting:
        assert await stop_daemon(paths, ports=real_ports())
        assert starting.wait(timeout=5) == -15


async def test_a_mark_of_somebody_gone_ends_nobody(tmp_path: Path) -> None:
    paths = StatePaths(tmp_path)
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        write_mark(paths, pid=bystander.pid, start_ticks=1)
        assert not await stop_daemon(paths, ports=real_ports())
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
    assert os.getpid() == this_process().pid
