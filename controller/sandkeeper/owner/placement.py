"""Creates sandboxes: admission, reservation, choice of owner, hand-over.

Owns that a create is refused before anything exists, or is one sandbox however often it is asked for.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import structlog

from sandkeeper.containers.shelf import Shelf
from sandkeeper.core.admission import (
    CatalogueImage,
    CreateRequest,
    MachineFacts,
    Policy,
    Usage,
    admit,
    check_memory,
)
from sandkeeper.core.errors import AlreadyExists, NotFound, ResourceExhausted, SandkeeperError
from sandkeeper.core.ids import MachineId, OwnerId, RequestId, SandboxId, new_sandbox_id
from sandkeeper.core.named import parameters_of
from sandkeeper.core.record import Phase
from sandkeeper.core.rows_of_facts import ENGINE_GONE
from sandkeeper.core.spec import SandboxSpec
from sandkeeper.core.verbs import AdoptSpec, ChangeSandbox
from sandkeeper.owner.owner_calls import OwnerCalls
from sandkeeper.owner.snapshot_catalogue import SnapshotCatalogue
from sandkeeper.owner.survey import FoundSnapshot, Survey
from sandkeeper.ports import Ports
from sandkeeper.store.catalogue import Catalogue
from sandkeeper.store.catalogue_entries import Reservation

log = structlog.get_logger(__name__)

UNSTORED_AFTER_S = 60.0
UNDO_S = 10.0
UNDO_WITHOUT_ENGINE_S = 0.5
MakeOwner = Callable[[], Awaitable[OwnerId]]


@dataclass(frozen=True, slots=True)
class _Materials:
    """What a create stands on: the snapshot found, and the image by its name, where they are there."""

    found: FoundSnapshot | None
    catalogue: dict[str, CatalogueImage]


class Placement:
    """The creates of one installation."""

    def __init__(
        self,
        *,
        machine_id: MachineId,
        policy: Policy,
        capacity: int,
        machine_facts: MachineFacts,
        catalogue: Catalogue,
        survey: Survey,
        snapshots: SnapshotCatalogue,
        shelf: Shelf,
        owners: OwnerCalls,
        make_owner: MakeOwner,
        ports: Ports,
    ) -> None:
        self._machine_id = machine_id
        self._policy = policy
        self._capacity = capacity
        self._machine_facts = machine_facts
        self._catalogue = catalogue
        self._survey = survey
        self._snapshots = snapshots
        self._shelf = shelf
        self._owners = owners
        self._make_owner = make_owner
        self._ports = ports
        self._placing = asyncio.Lock()

    async def create(self, request: CreateRequest, *, fingerprint: str) -> Any:
        """Create a sandbox and return its view when it runs. A repeat of the request id waits for the same one.

        Raises:
            SandkeeperError: Refused (nothing exists) or begun and failed (nothing is left but its journal).
        """
        known = await self._catalogue.by_request(request.request_id)
        if known is not None:
            _check_same(known, fingerprint)
            answer = await self._survey.answer(request.request_id, owner_id=known.owner_id)
            if answer is not None:
                return answer
        with self._snapshots.lease(request.snapshot):
            materials = await self._look_up(request)
            if known is not None and await self._is_over(known):
                known = None
            if known is not None:
                spec, reservation = self._admit(request, materials, Usage(0, 0)), known
            else:
                spec, reservation = await self._place(request, materials, fingerprint=fingerprint)
            params = AdoptSpec(
                request_id=request.request_id,
                request_fingerprint=fingerprint,
                sandbox_id=reservation.sandbox_id,
                tenant_id=reservation.tenant_id,
                name=reservation.name,
                spec=spec,
            )
            try:
                return await self._owners.call(reservation.owner_id, "adopt", params)
            except SandkeeperError as error:
                error.sandbox_id = reservation.sandbox_id
                if error.code not in ("request_id_conflict", "in_progress", "owner_unreachable"):
                    await self._undo(reservation, error)
                raise

    async def sweep(self) -> None:
        """Free names and memory of sandboxes that are gone, or that no owner ever stored."""
        now = self._ports.clock.now()
        for reservation in await self._catalogue.reservations():
            if reservation.released_at is not None:
                continue
            record = await self._survey.record(reservation.sandbox_id, owner_id=reservation.owner_id)
            age_s = (now - reservation.at).total_seconds()
            if record is None and age_s < UNSTORED_AFTER_S:
                continue
            if record is None or record.phase is Phase.DESTROYED:
                await self._catalogue.release(reservation.sandbox_id)
            elif record.spec.size.memory_mib != reservation.memory_mib:
                memory_mib = record.spec.size.memory_mib
                await self._catalogue.resize(reservation.sandbox_id, memory_mib=memory_mib)

    async def admit_resize(self, sandbox_id: SandboxId, *, memory_mib: int) -> None:
        """Count a sandbox with another memory limit from now on, if there is room for it. Safe to repeat.

        Raises:
            ResourceExhausted: `machine_memory_full`: nothing was changed.
        """
        async with self._placing:
            others = [
                row
                for row in await self._catalogue.reservations()
                if row.released_at is None and row.sandbox_id != sandbox_id
            ]
            check_memory(
                memory_mib,
                policy=self._policy,
                machine=self._machine_facts,
                usage=Usage(len(others), sum(row.memory_mib for row in others)),
            )
            await self._catalogue.resize(sandbox_id, memory_mib=memory_mib)

    async def _look_up(self, request: CreateRequest) -> _Materials:
        found = None if request.snapshot is None else await self._snapshots.restorable(request.snapshot)
        name = request.image or (found.image if found else self._policy.default_image)
        image = await self._shelf.find(name) if name in self._policy.images else None
        return _Materials(found, {} if image is None else {name: image})

    def _admit(self, request: CreateRequest, materials: _Materials, usage: Usage) -> SandboxSpec:
        return admit(
            request,
            policy=self._policy,
            machine=self._machine_facts,
            usage=usage,
            catalogue=materials.catalogue,
            snapshot=materials.found.snapshot if materials.found else None,
            snapshot_image=materials.found.image if materials.found else None,
        )

    async def _is_over(self, known: Reservation) -> bool:
        """Return whether an unanswered create came to nothing, after forgetting it: a repeat begins anew."""
        if known.released_at is None:
            record = await self._survey.record(known.sandbox_id, owner_id=known.owner_id)
            if record is None or record.phase is not Phase.DESTROYED:
                return False
            await self._catalogue.release(known.sandbox_id)
        await self._catalogue.forget_released(known.request_id)
        return True

    async def _place(
        self, request: CreateRequest, materials: _Materials, *, fingerprint: str
    ) -> tuple[SandboxSpec, Reservation]:
        """Admit a create and reserve its place; what is full may be so of sandboxes that are gone."""
        try:
            placed = await self._take_place(request, materials, fingerprint=fingerprint)
        except (ResourceExhausted, AlreadyExists) as error:
            if error.code == "request_id_conflict":
                raise
            placed = None
        if placed is None:
            await self.sweep()
            placed = await self._take_place(request, materials, fingerprint=fingerprint)
        while placed is None:
            await self._make_owner()
            placed = await self._take_place(request, materials, fingerprint=fingerprint)
        return placed

    async def _take_place(
        self, request: CreateRequest, materials: _Materials, *, fingerprint: str
    ) -> tuple[SandboxSpec, Reservation] | None:
        """Admit and reserve in one go, so that no two creates count on the same room; None: all owners are full."""
        async with self._placing:
            taken = [row for row in await self._catalogue.reservations() if row.released_at is None]
            usage = Usage(len(taken), sum(row.memory_mib for row in taken))
            spec = self._admit(request, materials, usage)
            owner_id = await self._free_owner(taken)
            if owner_id is None:
                return None
            wanted = Reservation(
                machine_id=self._machine_id,
                request_id=request.request_id,
                fingerprint=fingerprint,
                name=request.name,
                sandbox_id=new_sandbox_id(self._ports.new_token()),
                owner_id=owner_id,
                memory_mib=spec.size.memory_mib,
                parameters=None if request.name is None else parameters_of(request),
                at=self._ports.clock.now(),
            )
            return spec, (await self._catalogue.reserve(wanted)).reservation

    async def _free_owner(self, taken: list[Reservation]) -> OwnerId | None:
        """Return the least loaded owner with a free place."""
        load = Counter(row.owner_id for row in taken)
        owners = [row.owner_id for row in await self._catalogue.owners()]
        free = [owner_id for owner_id in owners if load[owner_id] < self._capacity]
        return min(free, key=lambda owner_id: load[owner_id], default=None)

    async def _undo(self, reservation: Reservation, failure: SandkeeperError) -> None:
        """Destroy what a failed create left, so that its name and memory are free; its journal stays.

        Without an engine the removal has to wait: it is asked for, and the caller gets the error now.
        """
        timeout_s = UNDO_WITHOUT_ENGINE_S if failure.code == ENGINE_GONE else UNDO_S
        params = ChangeSandbox(
            sandbox_id=reservation.sandbox_id, request_id=RequestId(f"undo-{reservation.sandbox_id}")
        )
        try:
            await self._owners.call(reservation.owner_id, "destroy", params, timeout_s=timeout_s)
        except NotFound:
            await self._catalogue.release(reservation.sandbox_id)
        except SandkeeperError as error:
            log.warning("undo_unfinished", sandbox_id=reservation.sandbox_id, code=error.code)


def _check_same(known: Reservation, fingerprint: str) -> None:
    if known.fingerprint != fingerprint:
        raise AlreadyExists(
            f"request {known.request_id} was made before with other parameters",
            code="request_id_conflict",
            advice="use a new request id for a different request",
            sandbox_id=known.sandbox_id,
            request_id=known.request_id,
        )
