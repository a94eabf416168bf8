"""Waiting for the end of a container's process 1, without the engine.

Owns the check that a host pid still is that process, and the wait on its pidfd. Never signals a process.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from sandkeeper.containers.settings import RUN_FOLDER
from sandkeeper.core.ids import BirthId

_PROC = Path("/proc")


async def wait_for_exit(birth_id: BirthId, pid: int) -> None:
    """Return when process `pid`, process 1 of the container `birth_id`, is gone or has never been that.

    The pidfd is opened first and the process looked at afterwards: what was checked is what is waited for, even
    where the number has been given to another process in between.
    """
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if not is_another(birth_id, pid):
            await _readable(handle)
    finally:
        os.close(handle)


def is_another(birth_id: BirthId, pid: int, *, proc: Path = _PROC) -> bool:
    """Say whether `pid` certainly is not process 1 of the container `birth_id`.

    That process is number 1 in its own pid namespace and sees the run folder of `birth_id`. Only the kernel's words
    about it are read, never a path inside the container; without CAP_SYS_ADMIN it cannot change its mounts. A
    process that is just ending, or one whose mounts this user may not see, is not certainly another.
    """
    status = _read(proc / str(pid) / "status")
    if status and _innermost_pid(status) != 1:
        return True
    mounts = _read(proc / str(pid) / "mountinfo")
    return bool(mounts) and not any(
        _is_run_folder(line.split(), birth_id=birth_id) for line in mounts.splitlines()
    )


def _read(path: Path) -> str:
    """Return what the kernel says, or nothing where the process is ending (EINVAL, ESRCH) or not ours to see."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _innermost_pid(status: str) -> int | None:
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return None


def _is_run_folder(fields: list[str], *, birth_id: BirthId) -> bool:
    """Read one line of mountinfo (proc(5)): the fourth field is the mount's root, the fifth its target."""
    return len(fields) > 4 and fields[4] == RUN_FOLDER and fields[3].rpartition("/")[2] == birth_id


async def _readable(handle: int) -> None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def end() -> None:
        loop.remove_reader(handle)
        if not ended.done():
            ended.set_result(None)

    loop.add_reader(handle, end)
    try:
        await ended
    finally:
        loop.remove_reader(handle)
