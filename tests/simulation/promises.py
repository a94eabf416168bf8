"""What must hold at every step and at the end of a schedule; the promises P1-P3 and P8 as the world can see them.

A broken one raises `BrokenPromiseError` at once where that can be, else it is kept and raised at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sandkeeper.containers.engine import RuntimeSettings
from sandkeeper.core.ids import BirthId, SandboxId
from sandkeeper.core.observation import RuntimeState
from sandkeeper.core.record import Phase, SandboxRecord
from tests.fakes.engine import EngineMoment

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

ACTING = frozenset({"create", "start", "freeze", "thaw", "stop", "remove", "update", "commit"})
_PASSING = (Phase.STARTING, Phase.SNAPSHOTTING, Phase.REBUILDING, Phase.STOPPING, Phase.DESTROYING)
_STATES = {
    Phase.RUNNING: (RuntimeState.RUNNING,),
    Phase.PAUSED: (RuntimeState.FROZEN,),
    Phase.STOPPED: (RuntimeState.EXITED, RuntimeState.CREATED),
    Phase.FAILED: (RuntimeState.EXITED, RuntimeState.CREATED),
}


class BrokenPromiseError(AssertionError):
    """The product broke a promise in this schedule."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a workload had written, and into which generation: a rebuild in between goes back behind it."""

    generation: int
    files: dict[str, bytes]


class Promises:
    """Watches one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._sandbox_of: dict[BirthId, SandboxId] = {}
        self.broken: list[str] = []
        self.created: set[SandboxId] = set()
        self.destroyed: set[SandboxId] = set()
        self.snapshots: dict[str, dict[str, bytes]] = {}
        self.last_outage_at_s = -1000.0

    def before_call(self, process: Process, moment: EngineMoment) -> None:
        """An owner is about to act on the engine: it holds the lock, and what it does is durable already."""
        if moment.verb not in ACTING:
            return
        holder = self._world.disk.locks.get("owner.lock")
        if holder != process.name:
            self._break(f"P1: {process.name} calls {moment.verb} while {holder} holds the lock")
        birth_id = BirthId(moment.name)
        claimant = self.claimant(birth_id)
        if moment.verb in ("create", "start", "commit") and claimant is None:
            self._break(f"P2: {moment.verb} of {birth_id}, which no durable record claims")
        if moment.verb == "commit" and claimant is not None and claimant.pending is None:
            self._break(f"write-then-do: commit of {birth_id} without a durable command")
        if claimant is not None:
            self._sandbox_of[birth_id] = claimant.sandbox_id

    def after_effect(self, moment: EngineMoment) -> None:
        """The engine has done something: no sandbox has two live containers."""
        if moment.verb != "start":
            return
        sandbox_id = self._sandbox_of.get(BirthId(moment.name))
        alive = [
            birth_id
            for birth_id, runtime in self._world.machine.runtimes.items()
            if runtime.is_alive and self._sandbox_of.get(birth_id) == sandbox_id
        ]
        if len(alive) > 1:
            self._break(f"P2: {sandbox_id} has {len(alive)} live containers: {alive}")

    def answered(self, verb: str, answer: dict[str, Any], *, files: Written) -> None:
        """A verb was answered with success: that is durable, and true."""
        if verb == "adopt":
            self.created.add(SandboxId(answer["id"]))
        elif verb == "destroy":
            self.destroyed.add(SandboxId(answer["id"]))
        elif verb == "take_snapshot":
            self._snapshot_answered(answer, files)

    def claimant(self, birth_id: BirthId) -> SandboxRecord | None:
        """Return the durable record that claims a container."""
        for record in self._world.disk.journal("owner.db").records.values():
            if record.birth_id == birth_id:
                return record
        return None

    def at_end(self) -> None:
        """Everything has settled: records, engine and answers agree, and nothing is left over.

        Raises:
            BrokenPromiseError: Naming the first promise broken anywhere in the schedule.
        """
        records = self._world.disk.journal("owner.db").records
        for sandbox_id in self.created - records.keys():
            self._note(f"P3: the answered create of {sandbox_id} is gone")
        for sandbox_id in self.destroyed:
            if records[sandbox_id].phase is not Phase.DESTROYED:
                self._note(f"P3: {sandbox_id} was destroyed and is {records[sandbox_id].phase}")
        for record in records.values():
            self._check_record(record)
        for birth_id in self._world.machine.runtimes:
            if self.claimant(birth_id) is None:
                self._note(f"P2: container {birth_id} is left and no record claims it")
        self._check_images()
        for incarnation in self._world.incarnations:
            if incarnation.failure is not None and "journal_fenced" not in incarnation.failure:
                self._note(f"an owner ended itself: {incarnation.failure}")
        self.raise_broken()

    def raise_broken(self) -> None:
        """Raise for the promises broken so far, if any was."""
        if self.broken:
            raise BrokenPromiseError("; ".join(dict.fromkeys(self.broken)))

    def _snapshot_answered(self, answer: dict[str, Any], written: Written) -> None:
        files = written.files if written.generation == answer["generation"] else {}
        self.snapshots[answer["id"]] = files
        snapshot = self._world.disk.journal("owner.db").snapshots.get(answer["id"])
        if snapshot is None:
            self._note(f"P3: the answered snapshot {answer['id']} is in no durable record")
            return
        image = self._world.machine.images.get(snapshot.boot.image_id)
        if image is None or not files.items() <= dict(image.files).items():
            self._note(f"P8: snapshot {answer['id']} has not what was written before it")
        record = self._world.disk.journal("owner.db").records[snapshot.sandbox_id]
        runtime = self._world.machine.runtimes.get(record.birth_id) if record.birth_id else None
        is_quiet = record.phase is Phase.RUNNING and record.pending is None
        is_frozen = runtime is not None and runtime.state is RuntimeState.FROZEN
        was_away = self._world.ports.clock.monotonic_s() - self.last_outage_at_s < 15
        if is_quiet and is_frozen and not was_away:
            self._note(f"P8: {snapshot.sandbox_id} was answered a snapshot and is left frozen")

    def _check_record(self, record: SandboxRecord) -> None:
        name = f"{record.sandbox_id} ({record.phase.value}, generation {record.generation})"
        if record.pending is not None or record.phase in _PASSING:
            self._note(f"{name} has not settled: {record.pending}")
            return
        runtime = self._world.machine.runtimes.get(record.birth_id) if record.birth_id else None
        if record.birth_id is None:
            if record.phase in (Phase.RUNNING, Phase.PAUSED):
                self._note(f"{name} claims no container")
            return
        if runtime is None:
            self._note(f"P2: {name} claims {record.birth_id}, which is not there")
            return
        if record.phase in _STATES and runtime.state not in _STATES[record.phase]:
            self._note(f"{name}: its container is {runtime.state.value}")
        self._check_box(record, runtime.settings, name)
        snapshot = self.snapshots.get(record.boot.snapshot_id or "")
        if snapshot is not None and not snapshot.items() <= runtime.files.items():
            self._note(f"P8: {name} has not the files of its snapshot {record.boot.snapshot_id}")

    def _check_box(self, record: SandboxRecord, settings: RuntimeSettings, name: str) -> None:
        if record.phase is not Phase.RUNNING:
            return
        box = self._world.yard.boxes.get(settings.birth_id)
        if box is None or box.generation != record.generation:
            self._note(f"{name}: its box works for {box and box.generation}")
        elif box.is_draining:
            self._note(f"{name}: its box takes no work")

    def _check_images(self) -> None:
        tags = {tag for image in self._world.machine.images.values() for tag in image.tags}
        for tag in tags:
            if ":pending-" in tag:
                self._note(f"image {tag} is left")
        for snapshot_id in self.snapshots:
            if not any(tag.endswith(f":{snapshot_id}") for tag in tags):
                self._note(f"P3: the answered snapshot {snapshot_id} has no image")

    def _note(self, text: str) -> None:
        self.broken.append(text)

    def _break(self, text: str) -> None:
        self.broken.append(text)
        raise BrokenPromiseError(text)
