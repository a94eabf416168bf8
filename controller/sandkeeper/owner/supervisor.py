"""`sandkeeper up`: starts Ray and the directory actor, and has what fell silent ended.

Owns the life of one installation's processes on this machine. Decides nothing about sandboxes: when it dies,
all of it dies, containers go on, and the next `up` finds them.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import structlog

from sandkeeper.core.errors import AlreadyExists, SandkeeperError, Unavailable
from sandkeeper.owner.config import Config
from sandkeeper.owner.daemon import UP_RUNNING_STATUS, UpMark, make_state_folder
from sandkeeper.owner.identity import load_identity
from sandkeeper.owner.logs import log_to_file
from sandkeeper.owner.ray_cluster import RayCluster
from sandkeeper.owner.roll_call import RollCall
from sandkeeper.ports import Ports, real_ports
from sandkeeper.store.locks import ProcessLock
from sandkeeper.store.processes import this_process

log = structlog.get_logger(__name__)

PING_EVERY_S = 5.0
LOOKS_PER_ROUND = 5
RAY_PREFIX = "sk-ray-"


class Supervisor:
    """The foreground work of `sandkeeper up`."""

    def __init__(self, config: Config, *, ports: Ports) -> None:
        self._config = config
        self._paths = config.paths
        self._ports = ports
        self._roll_call = RollCall(config, ports=ports)
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Run until a signal, or until there has been no sandbox for `idle_exit_s`.

        Raises:
            FailedPrecondition: `state_folder_unusable`.
            AlreadyExists: `up_running`: another `up` has this state folder.
            Unavailable: The directory or an owner did not come up, or `ray_lost`.
        """
        make_state_folder(self._paths)
        lock = ProcessLock(self._paths.up_lock, ports=self._ports)
        if not lock.try_acquire():
            raise AlreadyExists(
                f"an `up` for {self._paths.root} runs already: {lock.holder()}",
                code="up_running",
                advice="use it, or end it with `sandkeeper down`",
            )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        ray_folder = self._new_ray_folder()
        try:
            await self._run_with_ray(ray_folder)
        finally:
            await self._roll_call.close()
            shutil.rmtree(ray_folder, ignore_errors=True)
            self._paths.ray_folder.unlink(missing_ok=True)
            lock.release()

    def _new_ray_folder(self) -> Path:
        """Make the folder of this Ray (short, for its sockets), and remove that of an `up` that was killed."""
        note = self._paths.ray_folder
        if note.exists():
            left = Path(note.read_text())
            if left.name.startswith(RAY_PREFIX) and left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
                log.info("ray_folder_removed", folder=str(left))
        folder = Path(tempfile.mkdtemp(prefix=RAY_PREFIX))
        note.write_text(str(folder))
        return folder

    async def _run_with_ray(self, ray_folder: Path) -> None:
        load_identity(self._paths.machine, ports=self._ports)
        cluster = RayCluster(self._config, folder=ray_folder)
        await asyncio.to_thread(cluster.start)
        try:
            status = await self._roll_call.wait_ready(stop=self._stop)
            mark = UpMark(**this_process().model_dump(), ray_folder=str(ray_folder))
            self._paths.up.write_text(mark.model_dump_json())
            log.info("up_ready", owners=len(status.owners), pid=os.getpid())
            while not self._stop.is_set():
                await self._roll_call.once()
                if self._roll_call.is_idle:
                    log.info("up_idle", idle_s=self._config.idle_exit_s)
                    return
                await self._wait(cluster)
        finally:
            # Whoever asks from here on must not be told that it is up.
            self._paths.up.unlink(missing_ok=True)
            await asyncio.to_thread(cluster.stop)

    async def _wait(self, cluster: RayCluster) -> None:
        """Wait until the next round, or the end, with an eye on Ray.

        Raises:
            Unavailable: `ray_lost`.
        """
        for _ in range(LOOKS_PER_ROUND):
            if not cluster.is_whole:
                raise Unavailable(
                    "a process of Ray has ended, so owners that die would not come back",
                    code="ray_lost",
                    advice="start `sandkeeper up` again; containers and their commands go on",
                )
            try:
                async with asyncio.timeout(PING_EVERY_S / LOOKS_PER_ROUND):
                    await self._stop.wait()
                    return
            except TimeoutError:
                continue


def run_up(config: Config) -> None:
    """Run `up` in this process until it is told to end. Blocks.

    Raises:
        SandkeeperError: See `Supervisor.run`.
    """
    asyncio.run(Supervisor(config, ports=real_ports()).run())


def main() -> None:
    """Entry of the daemon that `daemon.start_daemon` starts: the configuration is the only argument."""
    config = Config.model_validate_json(sys.argv[1])
    log_to_file(config.paths.logs / "up.log")
    try:
        run_up(config)
    except SandkeeperError as error:
        log.critical("up_failed", code=error.code, message=error.message)
        sys.stderr.write(f"sandkeeper up: {error}\n")
        sys.exit(UP_RUNNING_STATUS if error.code == "up_running" else 1)


if __name__ == "__main__":
    main()
