"""The process lock between real processes: waited for, left, taken from the dead, the stuck and the stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import pytest

from sandkeeper.core.errors import Unavailable
from sandkeeper.ports import real_ports
from sandkeeper.store.locks import ProcessLock
from sandkeeper.store.processes import end_process, is_alive, start_ticks, this_process
from tests.support.store_process import next_line, store_child

pytestmark = pytest.mark.crash


@pytest.fixture
def lock(tmp_path: Path) -> ProcessLock:
    return ProcessLock(tmp_path / "owner.lock", ports=real_ports())


def state_of(child: subprocess.Popen[str]) -> str:
    return Path(f"/proc/{child.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


async def stop(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGSTOP)
    while state_of(child) != "T":
        await asyncio.sleep(0.001)


async def test_a_holder_that_leaves_is_waited_for(lock: ProcessLock) -> None:
    with store_child("hold", str(lock.path)) as child:
        assert next_line(child) == "held"
        assert not lock.try_acquire()
        holder = lock.holder()
        assert holder is not None
        assert holder.pid == child.pid
        taking = asyncio.create_task(lock.acquire_or_end(grace_s=30, timeout_s=60))
        await asyncio.sleep(0)
        assert child.stdin is not None
        child.stdin.close()
        assert await taking is None, "nobody was ended"
        assert child.wait(timeout=30) == 0
    lock.release()


async def test_a_holder_that_stays_is_reported(lock: ProcessLock) -> None:
    with store_child("hold", str(lock.path)) as child:
        assert next_line(child) == "held"
        with pytest.raises(Unavailable) as held:
            await lock.acquire(timeout_s=0.05)
        assert (held.value.code, held.value.details["pid"]) == ("lock_held", child.pid)
        assert child.poll() is None


async def test_a_stopped_holder_is_ended_before_the_lock_is_taken(lock: ProcessLock) -> None:
    with store_child("hold", str(lock.path)) as child:
        assert next_line(child) == "held"
        await stop(child)
        ended = await lock.acquire_or_end(timeout_s=30)
        assert ended is not None
        assert ended.pid == child.pid
        assert not is_alive(ended)
        assert child.wait(timeout=30) == -signal.SIGKILL
        assert lock.is_held
    assert lock.holder() == this_process()
    lock.release()


async def test_a_killed_holder_leaves_a_free_lock(lock: ProcessLock) -> None:
    with store_child("hold", str(lock.path)) as child:
        assert next_line(child) == "held"
        child.kill()
        child.wait(timeout=30)
        assert lock.holder() is None
        assert lock.try_acquire()
    lock.release()


async def test_a_program_the_holder_started_does_not_keep_the_lock(lock: ProcessLock) -> None:
    with store_child("start", str(lock.path)) as child:
        program = int(next_line(child))
        try:
            assert next_line(child) == "held"
            ended = await lock.acquire_or_end(timeout_s=30)
            assert ended is not None
            assert ended.pid == child.pid
            assert start_ticks(program) is not None, "and it is left alone"
        finally:
            os.kill(program, signal.SIGKILL)
    lock.release()


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "another boot"}])
async def test_a_reused_pid_is_never_ended(lock: ProcessLock, change: dict[str, object]) -> None:
    """The lock is held by one process while the file names another one's pid at another time."""
    with store_child("hold", str(lock.path)) as holder, store_child("hold", f"{lock.path}2") as bystander:
        assert next_line(holder) == "held"
        assert next_line(bystander) == "held"
        ticks = start_ticks(bystander.pid)
        assert ticks is not None
        truth = this_process().model_copy(update={"pid": bystander.pid, "start_ticks": ticks})
        assert is_alive(truth)
        lock.path.write_text(truth.model_copy(update=change).model_dump_json())
        with pytest.raises(Unavailable) as held:
            await lock.acquire_or_end(timeout_s=0.1)
        assert held.value.code == "lock_held"
        assert bystander.poll() is None
        assert holder.poll() is None


async def test_ending_a_process_twice_is_no_fault() -> None:
    with store_child("hold", "/dev/null/never") as child:
        ticks = start_ticks(child.pid)
        assert ticks is not None
        mark = this_process().model_copy(update={"pid": child.pid, "start_ticks": ticks})
        await end_process(mark, ports=real_ports(), timeout_s=30)
        assert not await end_process(mark, ports=real_ports(), timeout_s=30)
        assert not is_alive(mark)
