"""An owner without a process: roster, verbs and runner on a fake engine and a journal in memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandkeeper.containers.engine import RuntimeSettings
from sandkeeper.control.server import VerbTable
from sandkeeper.core.admission import MachineFacts, Policy
from sandkeeper.core.commands import LaunchRuntime
from sandkeeper.core.ids import DEFAULT_TENANT, BirthId, InstallationId, OwnerId
from sandkeeper.core.record import SandboxRecord
from sandkeeper.owner.dispatch import OwnerVerbs
from sandkeeper.owner.launch import Launcher
from sandkeeper.owner.roster import Roster
from sandkeeper.owner.runner import EngineRunner
from sandkeeper.owner.snapshots import Snapshotter
from sandkeeper.ports import Ports
from tests.fakes.disk import MemoryDisk
from tests.fakes.engine import FakeEngine, FakeWorld
from tests.fakes.journal import FakeJournal
from tests.simulation.boxes import BoxYard, SimulatedBoxes
from tests.simulation.process import Process
from tests.support.doors import no_bound
from tests.unit.core.samples import record
from tests.unit.owner.stage import MACHINE_ID, open_journal

INSTALLATION = InstallationId("i0")
OWNER = OwnerId("ow0")
BASE = "sha256:base"
MAX_SNAPSHOT_BYTES = 1_000_000


@dataclass
class House:
    """What one owner has, and what survives it: `disk`, `world` and `yard`."""

    ports: Ports
    disk: MemoryDisk
    world: FakeWorld
    yard: BoxYard
    journal: FakeJournal
    engine: FakeEngine
    boxes: SimulatedBoxes
    runner: EngineRunner
    roster: Roster
    verbs: VerbTable
    fatal: list[str] = field(default_factory=list)

    async def call(self, verb: str, **params: Any) -> Any:
        """Call a verb as a control socket does."""
        return await self.verbs.call(verb, params)

    async def create(self, name: str = "sb1", request_id: str = "create", **spec: Any) -> Any:
        """Adopt a sandbox as the directory hands it over."""
        wanted = record().spec.model_copy(update=spec)
        return await self.call(
            "adopt",
            request_id=request_id,
            request_fingerprint="f",
            sandbox_id=name,
            tenant_id=DEFAULT_TENANT,
            spec=wanted.model_dump(mode="json"),
        )

    def later(self, verb: str, **params: Any) -> asyncio.Task[Any]:
        """Call a verb and go on."""
        return self.ports.spawn(self.call(verb, **params), name=verb)

    async def record(self, name: str = "sb1") -> SandboxRecord:
        """Return the durable record of a sandbox."""
        found = self.disk.journal("owner.db").records[name]  # type: ignore[index]
        assert isinstance(found, SandboxRecord)
        return found

    def sent(self) -> list[str]:
        """Return the verbs of all engine calls, looks left out."""
        looks = ("inspect", "output_tail", "list_runtimes", "image", "delta_bytes")
        return [verb for verb, _ in self.engine.calls if verb not in looks]


class _Paths:
    def control_path(self, birth_id: BirthId) -> Path:
        return Path(f"c/{birth_id}/control.sock")


async def open_house(
    ports: Ports,
    *,
    before: House | None = None,
    shared: FakeWorld | None = None,
    capacity: int = 64,
    policy: Policy | None = None,
) -> House:
    """Return an owner that has loaded its sandboxes.

    With `before` it is the next incarnation of that one, with `shared` it uses that engine beside others.
    """
    disk = before.disk if before else MemoryDisk()
    yard = before.yard if before else yard_of(shared)
    epoch = before.roster.epoch + 1 if before else 1
    world = before.world if before else shared or FakeWorld(ports)
    if shared is None and before is None:
        world.add_image(BASE)
    if world.boot is None:
        world.boot = yard.boot
    process = f"p{epoch}"
    disk.locks.clear()
    journal = await open_journal(ports, disk, process=process)
    engine = FakeEngine(installation_id=INSTALLATION, ports=ports, world=world)
    boxes = SimulatedBoxes(yard, Process(process), epoch, ports)
    runner = make_runner(engine, boxes, ports)
    fatal: list[str] = []
    roster = Roster(
        owner_id=OWNER,
        machine_id=MACHINE_ID,
        epoch=epoch,
        capacity=capacity,
        journal=journal,
        engine=engine,
        runner=runner,
        boxes=_Paths(),
        ports=ports,
        fatal=fatal.append,
    )
    await roster.load()
    verbs = OwnerVerbs(
        roster,
        journal=journal,
        policy=policy or Policy(),
        admit_resize=no_bound,
        machine_facts=MachineFacts(cpu_count=8, memory_bytes=2**36),
        ports=ports,
    ).table()
    return House(ports, disk, world, yard, journal, engine, boxes, runner, roster, verbs, fatal)


def yard_of(world: FakeWorld | None) -> BoxYard:
    """Return the yard whose boxes that engine boots already, or a new one."""
    known = getattr(world.boot, "__self__", None) if world else None
    return known if isinstance(known, BoxYard) else BoxYard()


def make_runner(engine: FakeEngine, boxes: Any, ports: Ports) -> EngineRunner:
    """Return the product's runner on a fake engine."""

    def settings_for(record: SandboxRecord, command: LaunchRuntime) -> RuntimeSettings:
        return RuntimeSettings(
            birth_id=command.birth_id,
            installation_id=INSTALLATION,
            image_id=command.boot.image_id,
            size=command.size,
            boxd_dir="/boxd",
            run_dir=f"/r/{command.birth_id}",
        )

    return EngineRunner(
        engine=engine,
        boxes=boxes,
        launcher=Launcher(engine=engine, boxes=boxes, settings_for=settings_for, ports=ports),
        snapshotter=Snapshotter(
            engine=engine,
            boxes=boxes,
            installation_id=INSTALLATION,
            max_snapshot_bytes=MAX_SNAPSHOT_BYTES,
            ports=ports,
        ),
        ports=ports,
    )
