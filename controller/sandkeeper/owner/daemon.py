"""Starts, finds and ends the `up` of a state folder, from any process of the same user.

Never imports Ray: the daemon is a process of its own.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from pydantic import ValidationError

from sandkeeper.core.errors import FailedPrecondition, Unavailable
from sandkeeper.owner.config import Config, StatePaths
from sandkeeper.ports import Ports
from sandkeeper.store.locks import ProcessLock
from sandkeeper.store.processes import ProcessMark, end_process, is_alive, signal_process

UP_RUNNING_STATUS = 3
"""Exit status of a daemon that found another one in its place."""
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.05
TAIL_BYTES = 4096


class UpMark(ProcessMark):
    """What `up.json` says once `up` is ready: the supervisor's process, and its Ray's session folder."""

    ray_folder: str


def find_up(paths: StatePaths) -> UpMark | None:
    """Return the ready `up` of a state folder, or None."""
    try:
        running = UpMark.model_validate_json(paths.up.read_text())
    except (FileNotFoundError, ValidationError):
        return None
    return running if is_alive(running) else None


def make_state_folder(paths: StatePaths) -> None:
    """Make the state folder and its logs, for this user alone. Repeating is safe.

    Raises:
        FailedPrecondition: `state_folder_unusable`.
    """
    try:
        paths.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        paths.root.chmod(0o700)
        paths.logs.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise FailedPrecondition(
            f"{paths.root} cannot be a state folder: {error.strerror or error}",
            code="state_folder_unusable",
            advice="name a folder on a writable local disk",
        ) from error


async def start_daemon(config: Config, *, ports: Ports) -> UpMark:
    """Start `up` for the state folder unless one runs, and wait until it is ready. Repeating is safe.

    Raises:
        FailedPrecondition: `state_folder_unusable`.
        Unavailable: `up_failed`: it ended, or was not ready in two minutes; the message has its last words.
    """
    found = find_up(config.paths)
    if found is not None:
        return found
    make_state_folder(config.paths)
    words = config.paths.logs / "up.out"
    daemon = _spawn(config, words)
    deadline_s = ports.clock.monotonic_s() + START_TIMEOUT_S
    while (found := find_up(config.paths)) is None:
        has_ended = daemon.poll() is not None
        if has_ended and not _is_other_there(config.paths, ports=ports):
            if daemon.returncode != UP_RUNNING_STATUS:
                raise _failed(f"it ended with {daemon.returncode}", words)
            # The one that was in the way was on its way out.
            daemon = _spawn(config, words)
        if ports.clock.monotonic_s() >= deadline_s:
            raise _failed(f"not ready in {START_TIMEOUT_S:g} s", words)
        await ports.sleep(POLL_S)
    return found


async def stop_daemon(paths: StatePaths, *, ports: Ports) -> bool:
    """End the `up` of a state folder, whatever it is doing; return whether one was there. Containers go on.

    Raises:
        Unavailable: `process_not_ending`: not even by SIGKILL.
    """
    found = find_up(paths)
    holder: ProcessMark | None = found or ProcessLock(paths.up_lock, ports=ports).holder()
    if holder is None or not signal_process(holder, signal.SIGTERM):
        return False
    deadline_s = ports.clock.monotonic_s() + STOP_TIMEOUT_S
    while is_alive(holder):
        if ports.clock.monotonic_s() >= deadline_s:
            await end_process(holder, ports=ports)
            break
        await ports.sleep(POLL_S)
    return True


def _spawn(config: Config, words: Path) -> subprocess.Popen[bytes]:
    with words.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "sandkeeper.owner.supervisor", config.model_dump_json()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _is_other_there(paths: StatePaths, *, ports: Ports) -> bool:
    """Return whether another `up` has the state folder, on its way in or out."""
    return ProcessLock(paths.up_lock, ports=ports).holder() is not None


def _failed(problem: str, words: Path) -> Unavailable:
    tail = words.read_bytes()[-TAIL_BYTES:].decode(errors="replace").strip()
    return Unavailable(
        f"`sandkeeper up` did not come up: {problem}",
        code="up_failed",
        advice=f"see {words.parent}; `sandkeeper doctor` names what is missing",
        details={"output_tail": tail},
    )
