"""`sandkeeper up`: starts Ray and the directory actor, and ends what has fallen silent.

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

from sandkeeper.control.caller import ControlCaller
from sandkeeper.core.errors import AlreadyExists, SandkeeperError, Unavailable
from sandkeeper.core.ids import OwnerId
from sandkeeper.core.verbs import Status
from sandkeeper.owner.config import Config
from sandkeeper.owner.daemon import UpMark
from sandkeeper.owner.identity import load_identity
from sandkeeper.owner.logs import log_to_file
from sandkeeper.owner.ray_cluster import RayCluster
from sandkeeper.ports import Ports, real_ports
from sandkeeper.store.locks import ProcessLock
from sandkeeper.store.processes import end_process, this_process

log = structlog.get_logger(__name__)

PING_EVERY_S = 5.0
PING_TIMEOUT_S = 5.0
STRIKES = 3
READY_TIMEOUT_S = 90.0
POLL_S = 0.05


class Supervisor:
    """The foreground work of `sandkeeper up`."""

    def __init__(self, config: Config, *, ports: Ports) -> None:
        self._config = config
        self._paths = config.paths
        self._ports = ports
        self._directory = ControlCaller(self._paths.directory_socket)
        self._owners: dict[OwnerId, ControlCaller] = {}
        self._strikes: dict[str, int] = {}
        self._idle_since_s: float | None = None
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Run until a signal, or until there has been no sandbox for `idle_exit_s`.

        Raises:
            AlreadyExists: `up_running`: another `up` has this state folder.
            Unavailable: The directory or an owner did not come up.
        """
        self._paths.root.mkdir(mode=0o700, parents=True, exist_ok=True)
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
        ray_folder = Path(tempfile.mkdtemp(prefix="sk-ray-"))
        try:
            await self._run_with_ray(ray_folder)
        finally:
            self._paths.up.unlink(missing_ok=True)
            await self._close_callers()
            shutil.rmtree(ray_folder, ignore_errors=True)
            lock.release()

    async def _run_with_ray(self, ray_folder: Path) -> None:
        load_identity(self._paths.machine, ports=self._ports)
        cluster = RayCluster(self._config, folder=ray_folder)
        await asyncio.to_thread(cluster.start)
        try:
            status = await self._wait_ready()
            mark = UpMark(**this_process().model_dump(), ray_folder=str(ray_folder))
            self._paths.up.write_text(mark.model_dump_json())
            log.info("up_ready", owners=len(status.owners), pid=os.getpid())
            while not self._stop.is_set():
                await self._watch_once()
                try:
                    async with asyncio.timeout(PING_EVERY_S):
                        await self._stop.wait()
                except TimeoutError:
                    continue
        finally:
            await asyncio.to_thread(cluster.stop)

    async def _wait_ready(self) -> Status:
        """Wait until the directory and every owner answer."""
        deadline_s = self._ports.clock.monotonic_s() + READY_TIMEOUT_S
        while True:
            try:
                status = Status.model_validate(await self._directory.call("status", {}, timeout_s=10.0))
                if len(status.owners) >= self._config.owners:
                    await asyncio.gather(
                        *(self._owner(row.owner_id).call("ping", {}, timeout_s=5.0) for row in status.owners)
                    )
                    return status
            except Unavailable:
                if self._ports.clock.monotonic_s() >= deadline_s or self._stop.is_set():
                    raise
            await self._ports.sleep(POLL_S)

    async def _watch_once(self) -> None:
        try:
            status = Status.model_validate(await self._directory.call("status", {}, timeout_s=PING_TIMEOUT_S))
            self._strikes.pop("directory", None)
        except SandkeeperError:
            await self._strike("directory", self._paths.catalogue_lock)
            return
        await asyncio.gather(*(self._ping(row.owner_id) for row in status.owners))
        self._note_idleness(status.sandbox_count)

    async def _ping(self, owner_id: OwnerId) -> None:
        try:
            await self._owner(owner_id).call("ping", {}, timeout_s=PING_TIMEOUT_S)
            self._strikes.pop(owner_id, None)
        except SandkeeperError:
            await self._strike(owner_id, self._paths.owner(owner_id).lock)

    async def _strike(self, name: str, lock: Path) -> None:
        """Count a silence; after three of them end the process, so that Ray makes a new one."""
        self._strikes[name] = self._strikes.get(name, 0) + 1
        if self._strikes[name] < STRIKES:
            return
        holder = ProcessLock(lock, ports=self._ports).holder()
        log.warning("process_silent", name=name, pid=holder.pid if holder else None)
        try:
            if holder is not None and await end_process(holder, ports=self._ports):
                self._strikes.pop(name, None)
        except SandkeeperError as error:
            # It cannot be ended now; the next silence tries again, and the others must go on being watched.
            log.error("process_not_ended", name=name, code=error.code, message=error.message)

    def _note_idleness(self, sandbox_count: int) -> None:
        limit_s = self._config.idle_exit_s
        if limit_s is None or sandbox_count:
            self._idle_since_s = None
            return
        now_s = self._ports.clock.monotonic_s()
        if self._idle_since_s is None:
            self._idle_since_s = now_s
        if now_s - self._idle_since_s >= limit_s:
            log.info("up_idle", idle_s=limit_s)
            self._stop.set()

    def _owner(self, owner_id: OwnerId) -> ControlCaller:
        if owner_id not in self._owners:
            self._owners[owner_id] = ControlCaller(self._paths.owner(owner_id).control_socket)
        return self._owners[owner_id]

    async def _close_callers(self) -> None:
        for caller in (self._directory, *self._owners.values()):
            await caller.close()


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
        sys.exit(1)


if __name__ == "__main__":
    main()
