from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from sandkeeper.core.errors import DataLoss, FailedPrecondition
from sandkeeper.ports import real_ports
from sandkeeper.store.locks import ProcessLock
from sandkeeper.store.processes import ProcessMark, end_process, is_alive, start_ticks, this_process


def lock_at(path: Path) -> ProcessLock:
    return ProcessLock(path, ports=real_ports())


def test_it_names_its_holder(tmp_path: Path) -> None:
    lock = lock_at(tmp_path / "deep" / "owner.lock")
    assert lock.holder() is None
    assert lock.try_acquire()
    assert lock.try_acquire(), "taking what is held is no fault"
    assert lock.is_held
    assert lock_at(lock.path).holder() == this_process()
    lock.release()
    lock.release()
    assert (lock.is_held, lock.holder()) == (False, None)
    assert lock.path.exists()
    assert lock.path.stat().st_mode & 0o777 == 0o600


def test_it_is_exclusive_within_a_process_too(tmp_path: Path) -> None:
    first, second = lock_at(tmp_path / "l"), lock_at(tmp_path / "l")
    assert first.try_acquire()
    assert not second.try_acquire()
    first.release()
    assert second.try_acquire()
    second.release()


async def test_a_process_does_not_end_itself(tmp_path: Path) -> None:
    first, second = lock_at(tmp_path / "l"), lock_at(tmp_path / "l")
    assert first.try_acquire()
    with pytest.raises(FailedPrecondition) as refusal:
        await second.acquire_or_end()
    assert refusal.value.code == "lock_held_here"
    first.release()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', "\0\0"])
async def test_what_a_dead_holder_left_does_not_matter(tmp_path: Path, content: str) -> None:
    path = tmp_path / "l"
    path.write_text(content)
    lock = lock_at(path)
    assert lock.holder() is None
    assert await lock.acquire_or_end() is None
    assert lock.holder() == this_process()
    lock.release()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").touch()
    (tmp_path / "l").symlink_to(tmp_path / "target")
    with pytest.raises(DataLoss) as refusal:
        lock_at(tmp_path / "l").try_acquire()
    assert refusal.value.code == "journal_unwritable"


async def test_a_reused_pid_is_somebody_else() -> None:
    mine = this_process()
    assert is_alive(mine)
    earlier = mine.model_copy(update={"start_ticks": mine.start_ticks - 1})
    other_boot = mine.model_copy(update={"boot_id": "00000000-0000-0000-0000-000000000000"})
    for mark in (earlier, other_boot):
        assert not is_alive(mark)
        assert not await end_process(mark, ports=real_ports()), "and is not ended"


async def test_nobody_is_not_ended() -> None:
    nobody = ProcessMark(pid=2**22 - 1, start_ticks=1)
    if Path(f"/proc/{nobody.pid}").exists():
        pytest.skip("the last pid is in use")
    assert start_ticks(nobody.pid) is None
    assert not is_alive(nobody)
    assert not await end_process(nobody, ports=real_ports())


def test_start_ticks_are_read_past_any_command_name(tmp_path: Path) -> None:
    program = tmp_path / ") R 1 ("
    shutil.copy("/bin/sleep", program)
    child = os.posix_spawn(program, ["sleep", "60"], os.environ)
    try:
        ticks = start_ticks(child)
        assert ticks is not None
        assert ticks >= this_process().start_ticks
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
