"""One owner process: everything an incarnation opens, in order, and closes again.

Owns composition only. Runs on one event loop; whoever embeds it (the Ray actor, a test, a bench) calls
`start`, then `call` or the control socket, then `close`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import structlog

from sandkeeper.containers.boxd_binary import install as install_boxd
from sandkeeper.containers.engine import Engine, RuntimeSettings
from sandkeeper.containers.factory import open_engine
from sandkeeper.control.caller import ControlCaller
from sandkeeper.control.server import ControlServer, VerbTable
from sandkeeper.core.admission import MachineFacts
from sandkeeper.core.commands import LaunchRuntime
from sandkeeper.core.errors import FailedPrecondition
from sandkeeper.core.ids import DEFAULT_TENANT, BirthId, OwnerId, SandboxId
from sandkeeper.core.record import SandboxRecord
from sandkeeper.owner.alarms import AlarmClock
from sandkeeper.owner.boxes import RealBoxes
from sandkeeper.owner.config import Config
from sandkeeper.owner.dispatch import OwnerVerbs
from sandkeeper.owner.fence import enlist_at, fence
from sandkeeper.owner.identity import Identity, load_identity
from sandkeeper.owner.keeping import KeepingVerbs
from sandkeeper.owner.launch import Launcher
from sandkeeper.owner.retention import Retention
from sandkeeper.owner.roster import Roster
from sandkeeper.owner.runner import EngineRunner
from sandkeeper.owner.snapshots import Snapshotter
from sandkeeper.owner.tending import Tender
from sandkeeper.ports import Ports
from sandkeeper.store.journal import OwnerJournal
from sandkeeper.store.locks import ProcessLock
from sandkeeper.store.log_room import make_log_room

log = structlog.get_logger(__name__)

OWNER_OOM_SCORE_ADJ = -500
LOG_ROOM_PER_SANDBOX_BYTES = 128 * 1024
MAX_LOG_ROOM_BYTES = 8 * 1024 * 1024
"""What the log of a busy journal takes between two checkpoints, about."""


class OwnerHost:
    """One incarnation of one owner."""

    def __init__(
        self, owner_id: OwnerId, *, config: Config, ports: Ports, fatal: Callable[[str], None]
    ) -> None:
        self._owner_id = owner_id
        self._config = config
        self._ports = ports
        self._fatal = fatal
        self._stack = AsyncExitStack()
        self._table: VerbTable | None = None
        self._notes: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Fence, open the journal, recover every sandbox, and answer. Verbs wait for their sandbox's recovery.

        Raises:
            SandkeeperError: It could not become the owner; the process must end.
        """
        protect_from_oom()
        config, paths = self._config, self._config.paths.owner(self._owner_id)
        identity = load_identity(config.paths.machine, ports=self._ports)
        fenced = await fence(
            self._owner_id,
            enlist=lambda: enlist_at(config.paths.directory_socket, self._owner_id, ports=self._ports),
            lock=ProcessLock(paths.lock, ports=self._ports),
        )
        self._stack.callback(fenced.lock.release)
        journal = OwnerJournal(paths.journal, machine_id=identity.machine_id, lock=fenced.lock)
        await journal.open()
        self._stack.push_async_callback(journal.close)
        engine = open_engine(
            config.engine,
            installation_id=identity.installation_id,
            ports=self._ports,
            state_dir=config.state_dir,
            environment=os.environ,
        )
        self._stack.push_async_callback(engine.close)
        boxes = RealBoxes(
            config.state_dir,
            epoch=fenced.epoch,
            ports=self._ports,
            on_impostor=lambda birth_id, pid, count: self._note_impostor(
                journal, roster, birth_id, pid, count
            ),
        )
        self._stack.push_async_callback(boxes.close)
        roster = Roster(
            owner_id=self._owner_id,
            machine_id=identity.machine_id,
            epoch=fenced.epoch,
            capacity=config.sandboxes_per_owner,
            journal=journal,
            engine=engine,
            runner=self._runner(engine, boxes, identity=identity),
            boxes=boxes,
            ports=self._ports,
            fatal=self._fatal,
        )
        self._stack.push_async_callback(roster.close)
        count = await roster.load()
        facts = machine_facts()
        clock = AlarmClock(journal, on_fired=roster.announce, ports=self._ports)
        keeping = KeepingVerbs(roster, journal=journal, on_alarm=clock.look_again, ports=self._ports)
        self._table = OwnerVerbs(
            roster,
            journal=journal,
            policy=config.policy,
            machine_facts=facts,
            admit_resize=self._admit_resize,
            ports=self._ports,
        ).table(keeping.entries())
        server = ControlServer(paths.control_socket, table=self._table)
        await server.start()
        self._stack.push_async_callback(server.close)
        retention = Retention(
            journal,
            keep_answers_s=config.keep_answers_s,
            keep_events_s=config.keep_events_s,
            ports=self._ports,
        )
        audit = self._ports.spawn(self._audit(roster, retention), name=f"audit {self._owner_id}")
        audit.add_done_callback(self._on_end)
        self._stack.callback(audit.cancel)
        tending = self._ports.spawn(
            self._tend(roster, Tender(boxes, ports=self._ports)), name=f"tending {self._owner_id}"
        )
        tending.add_done_callback(self._on_end)
        self._stack.callback(tending.cancel)
        alarms = self._ports.spawn(clock.run(), name=f"alarms {self._owner_id}")
        alarms.add_done_callback(self._on_end)
        self._stack.callback(alarms.cancel)
        room_bytes = min(MAX_LOG_ROOM_BYTES, config.sandboxes_per_owner * LOG_ROOM_PER_SANDBOX_BYTES)
        await asyncio.to_thread(make_log_room, paths.journal, size_bytes=room_bytes)
        log.info("owner_started", owner_id=self._owner_id, epoch=fenced.epoch, sandboxes=count)

    async def call(self, verb: str, payload: Any) -> Any:
        """Run one verb of the dispatch table, for callers in this process.

        Raises:
            FailedPrecondition: `owner_not_started`.
            SandkeeperError: What the verb raises.
        """
        if self._table is None:
            raise FailedPrecondition("the owner is still starting", code="owner_not_started")
        return await self._table.call(verb, payload)

    async def close(self) -> None:
        """Close everything in reverse order; containers and commands inside go on. Repeating is safe."""
        self._table = None
        await self._stack.aclose()

    def _runner(self, engine: Engine, boxes: RealBoxes, *, identity: Identity) -> EngineRunner:
        boxd = install_boxd(self._config.state_dir)

        def settings_for(record: SandboxRecord, command: LaunchRuntime) -> RuntimeSettings:
            return RuntimeSettings(
                birth_id=command.birth_id,
                installation_id=identity.installation_id,
                image_id=command.boot.image_id,
                size=command.size,
                boxd_dir=str(boxd.path.parent),
                run_dir=str(boxes.run_folder(command.birth_id)),
                has_sudo=record.spec.has_sudo,
            )

        return EngineRunner(
            engine=engine,
            boxes=boxes,
            launcher=Launcher(engine=engine, boxes=boxes, settings_for=settings_for, ports=self._ports),
            snapshotter=Snapshotter(
                engine=engine,
                boxes=boxes,
                installation_id=identity.installation_id,
                max_snapshot_bytes=self._config.policy.max_snapshot_bytes,
                flatten_at_depth=self._config.policy.flatten_at_depth,
                secrets=self._config.policy.snapshot_secrets,
                ports=self._ports,
            ),
            ports=self._ports,
        )

    async def _admit_resize(self, sandbox_id: SandboxId, memory_mib: int) -> None:
        caller = ControlCaller(self._config.paths.directory_socket)
        try:
            await caller.call("admit_resize", {"sandbox_id": sandbox_id, "memory_mib": memory_mib})
        finally:
            await caller.close()

    async def _audit(self, roster: Roster, retention: Retention) -> None:
        while True:
            await self._ports.sleep(self._config.audit_s)
            await roster.audit()
            await retention.prune_if_due()

    def _on_end(self, loop: asyncio.Task[Any]) -> None:
        """A loop of the owner ends only by its close; a defect in it must not go unnoticed."""
        error = None if loop.cancelled() else loop.exception()
        if error is not None:
            log.critical("loop_ended", name=loop.get_name(), error=repr(error), exc_info=error)
            self._fatal(f"{loop.get_name()} ended with {error!r}")

    async def _tend(self, roster: Roster, tender: Tender) -> None:
        while True:
            await self._ports.sleep(self._config.tend_s)
            await tender.tend(roster.machines())

    def _note_impostor(
        self, journal: OwnerJournal, roster: Roster, birth_id: BirthId, pid: int, count: int
    ) -> None:
        sandbox_id = roster.claimed_by(birth_id)
        if sandbox_id is None:
            return
        work = self._write_note(journal, sandbox_id, {"birth_id": birth_id, "pid": pid, "count": count})
        task = self._ports.spawn(work, name=f"impostor {birth_id}")
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)

    async def _write_note(
        self, journal: OwnerJournal, sandbox_id: SandboxId, details: dict[str, Any]
    ) -> None:
        await journal.note(
            sandbox_id,
            tenant_id=DEFAULT_TENANT,
            kind="box_impostor",
            at=self._ports.clock.now(),
            details=details,
        )


def machine_facts() -> MachineFacts:
    """Return what this machine has, as the kernel says."""
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return MachineFacts(cpu_count=os.cpu_count() or 1, memory_bytes=pages * page_bytes)


def protect_from_oom() -> None:
    """Make this process the last one the kernel picks when memory runs out, where it may."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(OWNER_OOM_SCORE_ADJ))
    except PermissionError:
        log.warning("oom_protection_missing", pid=os.getpid())
