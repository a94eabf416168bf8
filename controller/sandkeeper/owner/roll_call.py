"""Asks the directory and every owner whether they are there, and ends those that have fallen silent.

Owns strikes and idleness of one installation. Never starts a process: what it ends, Ray makes again.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from sandkeeper.control.caller import ControlCaller
from sandkeeper.core.errors import SandkeeperError, Unavailable
from sandkeeper.core.ids import OwnerId
from sandkeeper.core.verbs import Status
from sandkeeper.owner.config import Config
from sandkeeper.ports import Ports
from sandkeeper.store.locks import ProcessLock
from sandkeeper.store.processes import end_process

log = structlog.get_logger(__name__)

PING_TIMEOUT_S = 5.0
STRIKES = 3
READY_TIMEOUT_S = 90.0
POLL_S = 0.05


class RollCall:
    """Who answers on the control sockets of one state folder."""

    def __init__(self, config: Config, *, ports: Ports) -> None:
        self._config = config
        self._paths = config.paths
        self._ports = ports
        self._directory = ControlCaller(self._paths.directory_socket)
        self._owners: dict[OwnerId, ControlCaller] = {}
        self._strikes: dict[str, int] = {}
        self._idle_since_s: float | None = None

    async def wait_ready(self, *, stop: asyncio.Event) -> Status:
        """Wait until the directory and every owner answer.

        Raises:
            Unavailable: They did not in a minute and a half, or `stop` was set: whoever is missing.
        """
        deadline_s = self._ports.clock.monotonic_s() + READY_TIMEOUT_S
        while True:
            try:
                return await self._everybody()
            except Unavailable:
                if self._ports.clock.monotonic_s() >= deadline_s or stop.is_set():
                    raise
            await self._ports.sleep(POLL_S)

    async def once(self) -> None:
        """Ask everybody once; whoever is silent for the third time in a row is ended."""
        try:
            status = await self._status(timeout_s=PING_TIMEOUT_S)
            self._strikes.pop("directory", None)
        except Unavailable:
            await self._strike("directory", self._paths.catalogue_lock)
            return
        except SandkeeperError as error:
            # An answer, though no good one: whoever gives it is not silent.
            log.warning("status_failed", code=error.code, message=error.message)
            self._strikes.pop("directory", None)
            return
        await asyncio.gather(*(self._ping(row.owner_id) for row in status.owners))
        self._note_idleness(status.sandbox_count)

    @property
    def is_idle(self) -> bool:
        """Whether there has been no sandbox for `idle_exit_s`."""
        limit_s = self._config.idle_exit_s
        if limit_s is None or self._idle_since_s is None:
            return False
        return self._ports.clock.monotonic_s() - self._idle_since_s >= limit_s

    async def close(self) -> None:
        """Give all connections up. Repeating is safe."""
        for caller in (self._directory, *self._owners.values()):
            await caller.close()

    async def _everybody(self) -> Status:
        status = await self._status(timeout_s=10.0)
        if len(status.owners) < self._config.owners:
            raise Unavailable(
                f"{len(status.owners)} of {self._config.owners} owners are made", code="owner_starting"
            )
        calls = (self._owner(row.owner_id).call("ping", {}, timeout_s=5.0) for row in status.owners)
        await asyncio.gather(*calls)
        return status

    async def _status(self, *, timeout_s: float) -> Status:
        return Status.model_validate(await self._directory.call("status", {}, timeout_s=timeout_s))

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
        if sandbox_count:
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = self._ports.clock.monotonic_s()

    def _owner(self, owner_id: OwnerId) -> ControlCaller:
        if owner_id not in self._owners:
            self._owners[owner_id] = ControlCaller(self._paths.owner(owner_id).control_socket)
        return self._owners[owner_id]
