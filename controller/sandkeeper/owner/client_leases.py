"""Leases of clients by heartbeat: what a client made for itself ends when the client is no longer heard.

Owns who was heard when, in memory of the directory only. After a restart of the directory, or when it stood still
itself, every grace starts anew: a silence nobody listened to is no silence. The binding is durable, in the sandbox's
specification; the destruction is an ordinary one, with reason `client_gone`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from sandkeeper.core.errors import NotFound, SandkeeperError
from sandkeeper.core.ids import ClientId, SandboxId
from sandkeeper.core.record import SandboxRecord
from sandkeeper.ports import Ports

log = structlog.get_logger(__name__)

TICK_S = 1.0
STALL_S = 5.0
"""A tick that comes later than this says that the directory stood still, not that its clients did."""
SCAN_EVERY_S = 30.0
AT_ONCE = 8

ReadRecords = Callable[[], Awaitable[list[SandboxRecord]]]
Destroy = Callable[[SandboxRecord], Awaitable[None]]


@dataclass(slots=True)
class _Lease:
    ttl_s: float
    heard_at_s: float


class ClientLeases:
    """The clients of one installation that sandboxes are bound to."""

    def __init__(self, *, read_records: ReadRecords, destroy: Destroy, ports: Ports) -> None:
        self._read_records = read_records
        self._destroy = destroy
        self._ports = ports
        self._leases: dict[ClientId, _Lease] = {}
        self._ending: dict[SandboxId, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(AT_ONCE)
        self._scan_at_s = 0.0
        self._ticked_at_s = ports.clock.monotonic_s()

    def hear(self, client_id: ClientId, *, ttl_s: float) -> None:
        """Note that a client lives, and that it will be heard again within `ttl_s`."""
        self._leases[client_id] = _Lease(ttl_s, self._ports.clock.monotonic_s())

    async def tick(self) -> None:
        """End what belongs to clients that are gone; a chore for every TICK_S.

        Raises:
            SandkeeperError: The records cannot be read now.
        """
        now_s = self._ports.clock.monotonic_s()
        gap_s, self._ticked_at_s = now_s - self._ticked_at_s, now_s
        if gap_s > TICK_S + STALL_S:
            log.warning("directory_stood_still", gap_s=gap_s)
            self._forgive(now_s)
        is_scan = now_s >= self._scan_at_s
        if not is_scan and not any(self._is_gone(client_id) for client_id in self._leases):
            return
        bound = [record for record in await self._read_records() if record.spec.client_id is not None]
        if is_scan:
            self._scan_at_s = now_s + SCAN_EVERY_S
            self._learn(bound)
        for record in bound:
            if record.spec.client_id is not None and self._is_gone(record.spec.client_id):
                self._end(record)
        self._forget({record.spec.client_id for record in bound})

    def close(self) -> None:
        """Give up the destructions under way; the next directory begins them anew. Repeating is safe."""
        for task in self._ending.values():
            task.cancel()

    def _forgive(self, now_s: float) -> None:
        """Begin every grace anew."""
        for lease in self._leases.values():
            lease.heard_at_s = now_s

    def _learn(self, bound: list[SandboxRecord]) -> None:
        """Begin the grace of clients that were never heard here: before a restart, or in the middle of a create."""
        for record in bound:
            client_id = record.spec.client_id
            if client_id is not None and client_id not in self._leases:
                self.hear(client_id, ttl_s=record.spec.client_ttl_s)

    def _forget(self, needed: set[ClientId | None]) -> None:
        """Forget clients that are gone and have nothing left."""
        for client_id in [client_id for client_id in self._leases if self._is_gone(client_id)]:
            if client_id not in needed:
                del self._leases[client_id]

    def _is_gone(self, client_id: ClientId) -> bool:
        lease = self._leases.get(client_id)
        return lease is not None and self._ports.clock.monotonic_s() - lease.heard_at_s > lease.ttl_s

    def _end(self, record: SandboxRecord) -> None:
        if record.sandbox_id in self._ending:
            return
        log.info("client_gone", sandbox_id=record.sandbox_id, client_id=record.spec.client_id)
        task = self._ports.spawn(self._ended(record), name=f"client gone {record.sandbox_id}")
        self._ending[record.sandbox_id] = task
        task.add_done_callback(lambda _: self._ending.pop(record.sandbox_id, None))

    async def _ended(self, record: SandboxRecord) -> None:
        """Destroy one sandbox; what fails is tried again at the next tick."""
        async with self._places:
            client_id = record.spec.client_id
            if client_id is None or not self._is_gone(client_id):
                return
            try:
                await self._destroy(record)
            except NotFound:
                return
            except SandkeeperError as error:
                log.warning("client_gone_unfinished", sandbox_id=record.sandbox_id, code=error.code)
