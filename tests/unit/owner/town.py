"""A directory's surroundings: a real catalogue on disk, and owners in memory behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sandkeeper.containers.shelf import AnyShelf
from sandkeeper.core.admission import CreateRequest, MachineFacts, Policy
from sandkeeper.core.ids import InstallationId, OwnerId, RequestId, SandboxId
from sandkeeper.core.record import SandboxRecord
from sandkeeper.core.verbs import Params, fingerprint_of
from sandkeeper.owner.config import StatePaths
from sandkeeper.owner.placement import Placement
from sandkeeper.owner.snapshot_catalogue import SnapshotCatalogue
from sandkeeper.owner.snapshot_retention import Retentions
from sandkeeper.owner.survey import Survey
from sandkeeper.ports import Ports, RealClock, real_ports
from sandkeeper.store.catalogue import Catalogue
from sandkeeper.store.entries import Claims
from tests.fakes.disk import JournalContent
from tests.fakes.engine import FakeEngine, FakeWorld
from tests.fakes.journal import claims_of
from tests.support.store_samples import MACHINE, held_lock
from tests.unit.owner.house import BASE, INSTALLATION, House, open_house


class MovableClock(RealClock):
    """The real clock, which a test sets forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.ahead_s)


class DiskReader:
    """Reads an owner's journal in memory as `OwnerReader` reads a file."""

    def __init__(self, house: House) -> None:
        self._house = house

    def __getattr__(self, name: str) -> Any:
        return getattr(self._house.journal, name)

    async def claims(self) -> Claims:
        return claims_of(self._content)

    @property
    def _content(self) -> JournalContent:
        return self._house.disk.journal("owner.db")

    async def close(self) -> None:
        """Nothing is open."""


class TownSurvey(Survey):
    """The product's survey over owners in memory."""

    def __init__(self, town: Town) -> None:
        super().__init__(StatePaths(Path("/nowhere")))
        self._town = town

    async def _reader(self, owner_id: OwnerId) -> Any:
        house = self._town.houses.get(owner_id)
        return None if house is None or owner_id in self._town.without_file else DiskReader(house)


@dataclass
class Town:
    """One installation.

    Attributes:
        calls: Verbs called on owners, in order.
        failures: Errors the next calls of a verb raise instead of reaching the owner.
        without_file: Owners whose journal is missing.
    """

    ports: Ports
    clock: MovableClock
    catalogue: Catalogue
    world: FakeWorld
    capacity: int
    houses: dict[OwnerId, House] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    failures: dict[str, list[Exception]] = field(default_factory=dict)
    without_file: set[OwnerId] = field(default_factory=set)
    survey: Survey = field(init=False)
    snapshots: SnapshotCatalogue = field(init=False)
    placement: Placement = field(init=False)
    engine: FakeEngine = field(init=False)

    async def call(self, owner_id: OwnerId, verb: str, params: Params, *, timeout_s: float = 1.0) -> Any:
        self.calls.append(verb)
        if self.failures.get(verb):
            raise self.failures[verb].pop(0)
        return await self.houses[owner_id].verbs.call(verb, params.model_dump(mode="json"))

    async def make_owner(self) -> OwnerId:
        owner_id = OwnerId(f"ow{len(self.houses)}")
        await self.catalogue.add_owner(owner_id)
        self.houses[owner_id] = await open_house(self.ports, capacity=self.capacity, shared=self.world)
        return owner_id

    async def create(self, request_id: str = "r1", **wishes: Any) -> Any:
        request = CreateRequest(request_id=RequestId(request_id), **wishes)
        return await self.placement.create(request, fingerprint=fingerprint_of(request))

    async def destroy(self, sandbox_id: str) -> None:
        reservation = await self.catalogue.by_sandbox(SandboxId(sandbox_id))
        assert reservation is not None
        house = self.houses[reservation.owner_id]
        await house.call("destroy", sandbox_id=sandbox_id, request_id=f"destroy {sandbox_id}")

    async def taken(self) -> list[str]:
        return [row.sandbox_id for row in await self.catalogue.reservations()]

    def records(self) -> list[SandboxRecord]:
        return [
            record
            for house in self.houses.values()
            for record in house.disk.journal("owner.db").records.values()
        ]


@asynccontextmanager
async def open_town(
    folder: Path, *, owners: int = 1, capacity: int = 64, policy: Policy | None = None
) -> AsyncIterator[Town]:
    """Open an installation with some owners."""
    clock = MovableClock()
    ports = replace(real_ports(), clock=clock)
    lock = held_lock(folder)
    async with Catalogue(folder / "catalogue.db", machine_id=MACHINE, lock=lock, ports=ports) as catalogue:
        world = FakeWorld(ports)
        world.add_image(BASE)
        town = Town(ports, clock, catalogue, world, capacity)
        town.engine = FakeEngine(installation_id=INSTALLATION, ports=ports, world=world)
        town.survey = TownSurvey(town)
        town.snapshots = SnapshotCatalogue(
            installation_id=InstallationId(INSTALLATION),
            catalogue=catalogue,
            survey=town.survey,
            engine=town.engine,
            retentions=Retentions(catalogue, default_keep_s=Policy().snapshot_keep_s, ports=ports),
            ports=ports,
        )
        town.placement = Placement(
            machine_id=MACHINE,
            policy=policy or Policy(),
            capacity=capacity,
            machine_facts=MachineFacts(cpu_count=8, memory_bytes=2**36),
            catalogue=catalogue,
            survey=town.survey,
            snapshots=town.snapshots,
            shelf=AnyShelf(),
            owners=town,  # type: ignore[arg-type]
            make_owner=town.make_owner,
            ports=ports,
        )
        for _ in range(owners):
            await town.make_owner()
        try:
            yield town
        finally:
            for house in town.houses.values():
                await house.roster.close()
    lock.release()
