"""Which process is a container's process 1, by the kernel's words."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from sandkeeper.containers.process_exit import is_another, wait_for_exit
from sandkeeper.core.ids import BirthId

BIRTH = BirthId("sk-1")
MOUNTS = (
    "900 899 0:50 / / rw,relatime - overlay overlay rw\n"
    "910 900 254:0 /var/lib/sandkeeper/r/sk-1 /run/sandkeeper ro,relatime - ext4 /dev/vda rw\n"
)


def process(proc: Path, *, nspid: str, mounts: str) -> None:
    folder = proc / "42"
    folder.mkdir()
    (folder / "status").write_text(f"Name:\tboxd\nPid:\t42\nNSpid:\t{nspid}\nThreads:\t4\n")
    (folder / "mountinfo").write_text(mounts)


@pytest.mark.parametrize(
    ("nspid", "mounts", "expected"),
    [
        ("42\t1", MOUNTS, False),
        ("42\t7", MOUNTS, True),
        ("42", MOUNTS, True),
        ("42\t1", MOUNTS.replace("sk-1", "sk-2"), True),
        ("42\t1", MOUNTS.replace("/run/sandkeeper", "/elsewhere"), True),
        ("42\t1", "", False),  # ending: its mounts are gone before it is
    ],
)
def test_the_birth_is_told_by_the_run_folder(tmp_path: Path, nspid: str, mounts: str, expected: bool) -> None:
    process(tmp_path, nspid=nspid, mounts=mounts)
    assert is_another(BIRTH, 42, proc=tmp_path) is expected


def test_a_process_that_cannot_be_read_may_be_it(tmp_path: Path) -> None:
    assert not is_another(BIRTH, 42, proc=tmp_path)


async def test_a_live_process_that_is_another_is_not_waited_for() -> None:
    await asyncio.wait_for(wait_for_exit(BIRTH, os.getpid()), 5)


async def test_a_pid_that_is_nobody() -> None:
    ended = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await ended.wait()
    await asyncio.wait_for(wait_for_exit(BIRTH, ended.pid), 5)
