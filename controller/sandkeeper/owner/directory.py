"""The directory: the one writer of the catalogue, and the front of everything that spans owners.

Owns composition of the directory's process: lock, catalogue, verbs, periodic work. Creates go through
`placement`, snapshots through `snapshot_catalogue`, removal of what nobody claims through the reaper.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import structlog

from sandkeeper.containers.engine import Engine
from sandkeeper.containers.factory import open_engine
from sandkeeper.containers.shelf import open_shelf
from sandkeeper.control.server import ControlServer, VerbTable
from sandkeeper.core import verbs
from sandkeeper.core.admission import CreateRequest
from sandkeeper.core.errors import InvalidArgument, NotFound, SandkeeperError, Unavailable
from sandkeeper.core.ids import OwnerId, SandboxId
from sandkeeper.core.record import Phase
from sandkeeper.core.views import SandboxView, sandbox_view
from sandkeeper.owner.archives import Archives
from sandkeeper.owner.chores import Chores
from sandkeeper.owner.client_leases import TICK_S
from sandkeeper.owner.client_verbs import ClientVerbs
from sandkeeper.owner.config import Config
from sandkeeper.owner.host import machine_facts, protect_from_oom
from sandkeeper.owner.identity import load_identity
from sandkeeper.owner.owner_calls import OwnerCalls
from sandkeeper.owner.placement import Placement
from sandkeeper.owner.reaping import Reaping
from sandkeeper.owner.snapshot_catalogue import SnapshotCatalogue
from sandkeeper.owner.snapshot_retention import Retentions
from sandkeeper.owner.snapshot_verbs import SnapshotVerbs
from sandkeeper.owner.survey import Survey
from sandkeeper.ports import Ports
from sandkeeper.store.catalogue import Catalogue
from sandkeeper.store.catalogue_entries import OwnerRow, Reservation
from sandkeeper.store.locks import ProcessLock
from sandkeeper.store.log_room import make_log_room
from sandkeeper.store.processes import ProcessMark, is_alive

log = structlog.get_logger(__name__)

LOCK_TIMEOUT_S = 15.0
LOG_ROOM_BYTES = 4 * 1024 * 1024
OWNER_START_S = 60.0
FORGET_EVERY_S = 3600.0

SpawnOwner = Callable[[OwnerId], Awaitable[None]]


class Enlist(verbs.Params):
    """A new incarnation of an owner asks for its epoch."""

    owner_id: OwnerId
    pid: int
    start_ticks: int


class AdmitResize(verbs.Params):
    """An owner asks whether a sandbox may have another memory limit."""

    sandbox_id: SandboxId
    memory_mib: int


class DirectoryHost:
    """One incarnation of the directory."""

    def __init__(
        self, *, config: Config, ports: Ports, spawn_owner: SpawnOwner, fatal: Callable[[str], None]
    ) -> None:
        self._config = config
        self._fatal = fatal
        self._ports = ports
        self._spawn_owner = spawn_owner
        self._stack = AsyncExitStack()
        self._catalogue: Catalogue
        self._survey: Survey
        self._engine: Engine
        self._owners: OwnerCalls
        self._snapshots: SnapshotCatalogue
        self._placement: Placement
        self._clients: ClientVerbs
        self._reaping: Reaping
        self._snapshot_verbs: SnapshotVerbs
        self._owner_making = asyncio.Lock()

    async def start(self) -> None:
        """Take the catalogue, answer, and have every owner of the catalogue made.

        Raises:
            SandkeeperError: It could not become the directory; the process must end.
        """
        protect_from_oom()
        config, paths, ports = self._config, self._config.paths, self._ports
        identity = self._identity = load_identity(paths.machine, ports=ports)
        lock = ProcessLock(paths.catalogue_lock, ports=ports)
        await lock.acquire_or_end(timeout_s=LOCK_TIMEOUT_S)
        self._stack.callback(lock.release)
        self._catalogue = Catalogue(paths.catalogue, machine_id=identity.machine_id, lock=lock, ports=ports)
        await self._catalogue.open()
        self._stack.push_async_callback(self._catalogue.close)
        self._engine = open_engine(
            config.engine,
            installation_id=identity.installation_id,
            ports=ports,
            state_dir=config.state_dir,
            environment=os.environ,
        )
        self._stack.push_async_callback(self._engine.close)
        self._shelf = open_shelf(config.engine, references=config.images, environment=os.environ)
        self._stack.push_async_callback(self._shelf.close)
        self._survey = Survey(paths)
        self._stack.push_async_callback(self._survey.close)
        self._owners = OwnerCalls(paths, ports=ports)
        self._stack.push_async_callback(self._owners.close)
        self._snapshots = SnapshotCatalogue(
            installation_id=identity.installation_id,
            catalogue=self._catalogue,
            survey=self._survey,
            engine=self._engine,
            retentions=Retentions(self._catalogue, default_keep_s=config.policy.snapshot_keep_s, ports=ports),
            ports=ports,
        )
        self._placement = Placement(
            machine_id=identity.machine_id,
            policy=config.policy,
            capacity=config.sandboxes_per_owner,
            machine_facts=machine_facts(),
            catalogue=self._catalogue,
            survey=self._survey,
            snapshots=self._snapshots,
            shelf=self._shelf,
            owners=self._owners,
            make_owner=self._make_owner,
            ports=ports,
        )
        self._clients = ClientVerbs(
            policy=config.policy,
            catalogue=self._catalogue,
            survey=self._survey,
            owners=self._owners,
            create=self._create,
            ports=ports,
        )
        self._stack.callback(self._clients.close)
        self._reaping = Reaping(
            config,
            installation_id=identity.installation_id,
            catalogue=self._catalogue,
            survey=self._survey,
            snapshots=self._snapshots,
            engine=self._engine,
            ports=ports,
        )
        archives = Archives(
            installation_id=identity.installation_id,
            machine_id=identity.machine_id,
            default_keep_s=config.policy.snapshot_keep_s,
            catalogue=self._catalogue,
            snapshots=self._snapshots,
            shelf=self._shelf,
            engine=self._engine,
            ports=ports,
        )
        self._stack.push_async_callback(archives.close)
        await archives.recover()
        self._snapshot_verbs = SnapshotVerbs(self._snapshots, archives=archives, reaping=self._reaping)
        server = ControlServer(paths.directory_socket, table=self._table())
        await server.start()
        self._stack.push_async_callback(server.close)
        await self._have_owners()
        self._start_chores()
        await asyncio.to_thread(make_log_room, paths.catalogue, size_bytes=LOG_ROOM_BYTES)
        log.info("directory_started", installation_id=identity.installation_id, pid=os.getpid())

    async def close(self) -> None:
        """Close everything in reverse order. Repeating is safe."""
        await self._stack.aclose()

    def _table(self) -> VerbTable:
        return VerbTable(
            {
                "create": (CreateRequest, self._create),
                **self._clients.entries(),
                "find": (verbs.FindSandbox, self._find),
                "list": (verbs.ListSandboxes, self._list),
                **self._snapshot_verbs.entries(),
                "status": (verbs.Nothing, self._status),
                "sweep": (verbs.Nothing, self._sweep),
                "enlist": (Enlist, self._enlist),
                "admit_resize": (AdmitResize, self._admit_resize),
            }
        )

    async def _create(self, request: CreateRequest) -> Any:
        self._clients.expect(request)
        if await self._catalogue.by_request(request.request_id) is None:
            await self._need_engine()
        fingerprint = verbs.fingerprint_of(request)
        return await self._placement.create(request, fingerprint=fingerprint)

    async def _need_engine(self) -> None:
        """Refuse a new create while the engine cannot be asked: whatever the question came to, nothing was begun."""
        try:
            await self._engine.facts()
        except Unavailable as error:
            error.admitted = "no"
            raise

    async def _find(self, params: verbs.FindSandbox) -> verbs.Location:
        reservation = await self._reservation(params)
        return verbs.Location(
            sandbox_id=reservation.sandbox_id,
            owner_id=reservation.owner_id,
            control_path=str(self._config.paths.owner(reservation.owner_id).control_socket),
        )

    async def _reservation(self, params: verbs.FindSandbox) -> Reservation:
        if (params.sandbox_id is None) == (params.name is None):
            raise InvalidArgument("give either sandbox_id or name", code="invalid_parameters")
        if params.sandbox_id is not None:
            found = await self._catalogue.by_sandbox(params.sandbox_id)
        else:
            found = await self._catalogue.by_name(params.name or "")
        if found is None:
            raise NotFound(
                f"there is no sandbox {params.sandbox_id or params.name}",
                code="sandbox_not_found",
                advice="list sandboxes to see which exist",
            )
        return found

    async def _list(self, params: verbs.ListSandboxes) -> list[SandboxView]:
        owners = await self._owner_ids()
        records = await self._survey.records(owners)
        if params.phases is not None and Phase.DESTROYED in params.phases:
            records = [*await self._survey.destroyed(owners), *records]
        return [
            sandbox_view(record)
            for record in records
            if (params.phases is None or record.phase in params.phases)
            and params.labels.items() <= record.spec.labels.items()
        ]

    async def _sweep(self, params: verbs.Nothing) -> None:
        await self._reaping.reap()
        await self._placement.sweep()
        await self._snapshots.prune()

    async def _status(self, params: verbs.Nothing) -> verbs.Status:
        records = await self._survey.records(await self._owner_ids())
        count = Counter(record.owner_id for record in records)
        return verbs.Status(
            installation_id=self._identity.installation_id,
            machine_id=self._identity.machine_id,
            directory_pid=os.getpid(),
            owners=tuple(
                verbs.OwnerStatus(
                    owner_id=row.owner_id,
                    epoch=row.epoch,
                    pid=row.pid if _is_alive(row) else None,
                    control_path=str(self._config.paths.owner(row.owner_id).control_socket),
                    sandbox_count=count[row.owner_id],
                )
                for row in await self._catalogue.owners()
            ),
            images=self._config.policy.images,
            engine=await self._engine_line(),
            sandbox_count=len(records),
        )

    async def _engine_line(self) -> str:
        try:
            facts = await self._engine.facts()
        except SandkeeperError as error:
            return f"unavailable: {error.message}"
        return f"{facts.server_version} {facts.storage_driver} cgroup v{facts.cgroup_version}"

    async def _admit_resize(self, params: AdmitResize) -> None:
        await self._placement.admit_resize(params.sandbox_id, memory_mib=params.memory_mib)

    async def _enlist(self, params: Enlist) -> dict[str, int]:
        epoch = await self._catalogue.raise_epoch(
            params.owner_id, pid=params.pid, start_ticks=params.start_ticks
        )
        return {"epoch": epoch}

    async def _have_owners(self) -> None:
        """Have every owner of the catalogue made, and so many that a new installation has its first ones."""
        owners = await self._owner_ids()
        for _ in range(len(owners), self._config.owners):
            owners.append(await self._add_owner())
        for owner_id in owners:
            await self._spawn_owner(owner_id)

    async def _make_owner(self) -> OwnerId:
        async with self._owner_making:
            owner_id = await self._add_owner()
            await self._spawn_owner(owner_id)
        deadline_s = self._ports.clock.monotonic_s() + OWNER_START_S
        while True:
            try:
                await self._owners.ping(owner_id, timeout_s=2.0)
            except Unavailable:
                if self._ports.clock.monotonic_s() >= deadline_s:
                    raise
                await self._ports.sleep(0.1)
            else:
                return owner_id

    async def _add_owner(self) -> OwnerId:
        owner_id = OwnerId(f"ow{self._ports.new_token()}")
        return (await self._catalogue.add_owner(owner_id)).owner_id

    async def _owner_ids(self) -> list[OwnerId]:
        return [row.owner_id for row in await self._catalogue.owners()]

    def _start_chores(self) -> None:
        chores = Chores(ports=self._ports, fatal=self._fatal)
        self._stack.callback(chores.close)
        every_s = self._config.reap_every_s
        chores.start("client leases", self._clients.tick, every_s=TICK_S)
        chores.start("reap", self._reaping.reap, every_s=every_s)
        chores.start("sweep reservations", self._placement.sweep, every_s=every_s)
        chores.start("prune snapshots", self._snapshots.prune, every_s=every_s)
        chores.start("forget creates", self._forget_creates, every_s=FORGET_EVERY_S)

    async def _forget_creates(self) -> None:
        """Forget creates of sandboxes long gone, when their answers are forgotten too."""
        kept_since = self._ports.clock.now() - timedelta(seconds=self._config.keep_answers_s)
        await self._catalogue.prune_reservations(before=kept_since)


def _is_alive(row: OwnerRow) -> bool:
    """Return whether the newest incarnation of an owner exists."""
    if row.pid is None or row.start_ticks is None:
        return False
    return is_alive(ProcessMark(pid=row.pid, start_ticks=row.start_ticks))
