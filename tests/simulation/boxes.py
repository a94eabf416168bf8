"""The insides of simulated runtimes, and one owner's view of them (`owner.boxes.Boxes`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from sandkeeper.core.errors import FailedPrecondition, Unavailable
from sandkeeper.core.ids import BirthId
from sandkeeper.core.record import SandboxRecord
from sandkeeper.owner.tending import Look
from sandkeeper.ports import Ports
from tests.fakes.engine import FakeRuntime
from tests.simulation.process import Process

BOOT_S = 30.0
SILENCE_S = 10.0
CALL_S = 0.001


@dataclass(eq=False)
class SimulatedBox:
    """boxd as an owner sees it: it works for one generation and refuses lower epochs."""

    generation: int = 0
    epoch: int = 0
    is_draining: bool = False
    is_frozen: bool = False
    is_dead: bool = False
    idle_s: float = 0.0
    files: dict[str, bytes] = field(default_factory=dict)

    def freeze(self) -> None:
        self.is_frozen = True

    def thaw(self) -> None:
        self.is_frozen = False

    def die(self) -> None:
        self.is_dead = True


@dataclass(eq=False)
class BoxYard:
    """All boxes of the simulated machine, by birth id."""

    boxes: dict[BirthId, SimulatedBox] = field(default_factory=dict)

    def boot(self, runtime: FakeRuntime) -> SimulatedBox:
        """Start a box in a runtime; called by the fake engine at each start."""
        box = self.boxes[runtime.birth_id] = SimulatedBox(files=runtime.files)
        return box


@dataclass(eq=False)
class SimulatedBoxes:
    """The boxes as one process reaches them."""

    yard: BoxYard
    process: Process
    epoch: int
    ports: Ports

    def prepare(self, birth_id: BirthId, *, is_fresh: bool) -> None:
        """Nothing to bind here."""

    async def hand_over(self, birth_id: BirthId, *, pid: int) -> None:
        await self.process.point(f"hand_over {birth_id}")
        box = self.yard.boxes.get(birth_id)
        if box is None or box.is_dead or box.is_frozen:
            await self.ports.sleep(BOOT_S)
            raise Unavailable(f"{birth_id} did not boot", code="boxd_not_booted", admitted="yes")

    async def go(self, record: SandboxRecord) -> None:
        box = await self._call("go", record)
        if box.generation not in (0, record.generation):
            raise FailedPrecondition("another generation", code="wrong_generation")
        box.generation = record.generation

    async def bring_up(self, record: SandboxRecord) -> None:
        await self._call("bring_up", record)

    async def look(self, record: SandboxRecord) -> Look:
        box = await self._call("look", record)
        return Look(box.idle_s)

    async def quiesce_if_idle(self, record: SandboxRecord) -> bool:
        (await self._call("quiesce_if_idle", record)).is_draining = True
        return True

    async def quiesce(self, record: SandboxRecord, *, reason: str) -> None:
        (await self._call("quiesce", record)).is_draining = True

    async def resume(self, record: SandboxRecord) -> None:
        (await self._call("resume", record)).is_draining = False

    async def save_metadata(self, record: SandboxRecord) -> str | None:
        await self._call("save_metadata", record)
        return None

    async def read_head(self, record: SandboxRecord, path: str, *, max_bytes: int) -> bytes | None:
        box = await self._call("read_head", record)
        content = box.files.get(path)
        return None if content is None else content[:max_bytes]

    async def overwrite(self, record: SandboxRecord, path: str, content: bytes) -> None:
        (await self._call("overwrite", record)).files[path] = content

    async def discard(self, birth_id: BirthId) -> None:
        await self.process.point(f"discard {birth_id}")
        self.yard.boxes.pop(birth_id, None)

    async def _call(self, verb: str, record: SandboxRecord) -> SimulatedBox:
        await self.process.point(f"{verb} {record.birth_id}")
        await self.ports.sleep(CALL_S)
        box = self.yard.boxes.get(record.birth_id) if record.birth_id else None
        if box is None or box.is_dead:
            raise Unavailable("nobody listens", code="runtime_unreachable", admitted="no")
        if box.is_frozen:
            await self.ports.sleep(SILENCE_S)
            if box.is_frozen or box.is_dead:
                raise Unavailable("no answer", code="runtime_silent", admitted="unknown")
        if self.epoch < box.epoch:
            raise FailedPrecondition("a newer owner was here", code="stale_epoch")
        box.epoch = self.epoch
        await self.process.point(f"{verb} answered {record.birth_id}")
        return box
