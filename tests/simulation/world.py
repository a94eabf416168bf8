"""The simulated machine: one engine, one disk, and the incarnations of one owner on it.

The product's own code runs here: fence, roster, machine, runner, launcher, snapshotter, verbs, reaper. Only what
leaves the process is simulated: engine, journal file, lock, boxes, time.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from sandkeeper.containers.engine import RuntimeSettings
from sandkeeper.core.admission import MachineFacts, Policy
from sandkeeper.core.commands import LaunchRuntime
from sandkeeper.core.errors import Unavailable
from sandkeeper.core.ids import InstallationId, MachineId, OwnerId
from sandkeeper.core.record import SandboxRecord
from sandkeeper.owner import fence as fencing
from sandkeeper.owner.alarms import AlarmClock
from sandkeeper.owner.dispatch import OwnerVerbs
from sandkeeper.owner.keeping import KeepingVerbs
from sandkeeper.owner.launch import Launcher
from sandkeeper.owner.roster import Roster
from sandkeeper.owner.runner import EngineRunner
from sandkeeper.owner.snapshots import Snapshotter
from sandkeeper.ports import Ports
from tests.fakes.disk import MemoryDisk
from tests.fakes.engine import EngineMoment, FakeEngine, FakeWorld
from tests.fakes.epochs import FakeEpochs
from tests.fakes.journal import FakeJournal
from tests.fakes.lock import FakeLock
from tests.simulation.boxes import BoxYard, SimulatedBoxes
from tests.simulation.process import Process
from tests.simulation.promises import Promises
from tests.support.doors import no_bound

INSTALLATION = InstallationId("isim")
MACHINE = MachineId("msim")
OWNER = OwnerId("owsim")
JOURNAL = "owner.db"
LOCK = "owner.lock"
BASE_IMAGE = "sha256:base"
AUDIT_S = 10.0


class Incarnation:
    """One owner process and what it has in memory."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.engine: FakeEngine
        self.roster: Roster
        self.verbs: Any = None
        self.audit: asyncio.Task[Any] | None = None
        self.alarms: asyncio.Task[Any] | None = None
        self.failure: str | None = None

    async def call(self, verb: str, payload: dict[str, Any]) -> Any:
        """Call a verb as a client does.

        Raises:
            Unavailable: It is not up yet, or dies first.
        """
        if self.verbs is None or self.process.is_dead:
            raise Unavailable("nobody listens", code="owner_unreachable", admitted="no")
        return await self.process.answer(self.verbs.call(verb, payload))


class World:
    """Everything that survives an owner."""

    def __init__(self, ports: Ports, *, dice: random.Random) -> None:
        self.ports = ports
        self.dice = dice
        self.disk = MemoryDisk()
        self.yard = BoxYard()
        self.machine = FakeWorld(ports, boot=self.yard.boot)
        self.machine.add_image(BASE_IMAGE, files={"/etc/base": b"base"}, tags=["sandkeeper/base:1"])
        self.promises = Promises(self)
        self.incarnations: list[Incarnation] = []

    @property
    def owner(self) -> Incarnation:
        """The newest incarnation."""
        return self.incarnations[-1]

    async def incarnate(self, *, crash_at: int | None) -> Incarnation:
        """Start the next owner process, as Ray does, and return it once it answers (or has died)."""
        process = Process(f"owner-{len(self.incarnations) + 1}", crash_at=crash_at)
        incarnation = Incarnation(process)
        self.incarnations.append(incarnation)
        start = self.ports.spawn(self._start(incarnation), name=f"start {process.name}")
        try:
            await process.answer(_joined(start))
        except Unavailable:
            return incarnation
        return incarnation

    async def _start(self, incarnation: Incarnation) -> None:
        process = incarnation.process
        epochs = FakeEpochs(self.disk, MACHINE, self.ports, before_commit=process.point)
        await epochs.add_owner(OWNER)
        fenced = await fencing.fence(
            OWNER,
            enlist=lambda: epochs.raise_epoch(OWNER, pid=len(self.incarnations), start_ticks=0),
            lock=FakeLock(self.disk, LOCK, process.name, end_process=self._end),
        )
        journal = FakeJournal(
            self.disk,
            JOURNAL,
            MACHINE,
            fenced.lock,
            self.ports,
            commit_s=0.002,
            before_commit=lambda what: process.point(f"commit {what}"),
            after_commit=lambda what: process.point(f"committed {what}"),
        )
        await journal.open()
        engine = incarnation.engine = FakeEngine(
            installation_id=INSTALLATION,
            ports=self.ports,
            world=self.machine,
            hook=lambda moment: self._at(process, moment),
        )
        process.on_death += [engine.crash, journal.kill]
        boxes = SimulatedBoxes(self.yard, process, fenced.epoch, self.ports)
        incarnation.roster = Roster(
            owner_id=OWNER,
            machine_id=MACHINE,
            epoch=fenced.epoch,
            capacity=64,
            journal=journal,
            engine=engine,
            runner=self._runner(engine, boxes),
            boxes=_Paths(),
            ports=self.ports,
            fatal=lambda reason: self._fatal(incarnation, reason),
        )
        await incarnation.roster.load()
        clock = AlarmClock(journal, on_fired=incarnation.roster.announce, ports=self.ports)
        keeping = KeepingVerbs(
            incarnation.roster, journal=journal, on_alarm=clock.look_again, ports=self.ports
        )
        incarnation.verbs = OwnerVerbs(
            incarnation.roster,
            journal=journal,
            policy=Policy(),
            admit_resize=no_bound,
            machine_facts=MachineFacts(cpu_count=8, memory_bytes=2**36),
            ports=self.ports,
        ).table(keeping.entries())
        incarnation.alarms = self.ports.spawn(clock.run(), name=f"alarms {process.name}")
        incarnation.alarms.add_done_callback(lambda ended: self._alarms_ended(incarnation, ended))
        incarnation.audit = self.ports.spawn(self._audit(incarnation), name=f"audit {process.name}")

    def _runner(self, engine: FakeEngine, boxes: SimulatedBoxes) -> EngineRunner:
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
            launcher=Launcher(engine=engine, boxes=boxes, settings_for=settings_for, ports=self.ports),
            snapshotter=Snapshotter(
                flatten_at_depth=3,
                secrets="warn",
                engine=engine,
                boxes=boxes,
                installation_id=INSTALLATION,
                max_snapshot_bytes=2**40,
                ports=self.ports,
            ),
            ports=self.ports,
        )

    async def _audit(self, incarnation: Incarnation) -> None:
        while not incarnation.process.is_dead:
            await self.ports.sleep(AUDIT_S)
            await incarnation.process.point("audit")
            await incarnation.roster.audit()

    async def _at(self, process: Process, moment: EngineMoment) -> None:
        if moment.stage == "call":
            await process.point(f"{moment.verb} {moment.name}")
            self.promises.before_call(process, moment)
        elif moment.stage == "before":
            await self.ports.sleep(self.dice.choice((0.0, 0.01, 0.05, 0.3, 2.0)))
        elif moment.stage == "after":
            self.promises.after_effect(moment)
        else:
            await process.point(f"{moment.verb} answered {moment.name}")

    async def _end(self, name: str) -> None:
        for incarnation in self.incarnations:
            if incarnation.process.name == name:
                incarnation.process.kill()

    def _alarms_ended(self, incarnation: Incarnation, ended: asyncio.Task[Any]) -> None:
        """As in the host: the owner cannot go on without its alarm clock."""
        error = None if ended.cancelled() else ended.exception()
        if error is not None and not incarnation.process.is_dead:
            self._fatal(incarnation, f"the alarm clock ended with {error!r}")

    def _fatal(self, incarnation: Incarnation, reason: str) -> None:
        incarnation.failure = reason
        incarnation.process.kill()


class _Paths:
    def control_path(self, birth_id: Any) -> Any:
        return f"/c/{birth_id}"


async def _joined(task: Any) -> Any:
    return await task
