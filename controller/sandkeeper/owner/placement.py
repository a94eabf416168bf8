"""Creates sandboxes: admission, reservation, choice of owner, hand-over.

Owns that a create is refused before anything exists, or is one sandbox however often it is asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from sandkeeper.containers.shelf import Shelf
from sandkeeper.core.admission import CreateRequest, MachineFacts, Policy, Usage, admit
from sandkeeper.core.errors import AlreadyExists, NotFound, ResourceExhausted, SandkeeperError
from sandkeeper.core.ids import MachineId, OwnerId, RequestId, new_sandbox_id
from sandkeeper.core.record import Phase
from sandkeeper.core.spec import SandboxSpec
from sandkeeper.core.verbs import AdoptSpec, ChangeSandbox
from sandkeeper.owner.owner_calls import OwnerCalls
from sandkeeper.owner.snapshot_catalogue import SnapshotCatalogue
from sandkeeper.owner.survey import Survey
from sandkeeper.ports import Ports
from sandkeeper.store.catalogue import Catalogue
from sandkeeper.store.catalogue_entries import Reservation

log = structlog.get_logger(__name__)

UNSTORED_AFTER_S = 60.0
MakeOwner = Callable[[], Awaitable[OwnerId]]


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

    async def create(self, request: CreateRequest, *, fingerprint: str) -> Any:
        """Create a sandbox and return its view when it runs. A repeat of the request id waits for the same one.

        Raises:
            SandkeeperError: Refused (nothing exists) or begun and failed (nothing is left but its journal).
        """
        known = await self._catalogue.by_request(request.request_id)
        if known is not None and known.fingerprint == fingerprint:
            answer = await self._survey.answer(request.request_id, owner_id=known.owner_id)
            if answer is not None:
                return answer
        with self._snapshots.lease(request.snapshot):
            spec = await self._admit(request, is_known=known is not None)
            reservation = await self._reserve(request, spec=spec, fingerprint=fingerprint)
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
                    await self._undo(reservation)
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

    async def _admit(self, request: CreateRequest, *, is_known: bool) -> SandboxSpec:
        try:
            return await self._admit_once(request, is_known=is_known)
        except ResourceExhausted:
            await self.sweep()
            return await self._admit_once(request, is_known=is_known)

    async def _admit_once(self, request: CreateRequest, *, is_known: bool) -> SandboxSpec:
        found = None if request.snapshot is None else await self._snapshots.find(request.snapshot)
        name = request.image or (found.image if found else self._policy.default_image)
        image = await self._shelf.find(name) if name in self._policy.images else None
        taken = [row for row in await self._catalogue.reservations() if row.released_at is None]
        usage = Usage(len(taken), sum(row.memory_mib for row in taken))
        return admit(
            request,
            policy=self._policy,
            machine=self._machine_facts,
            usage=Usage(0, 0) if is_known else usage,
            catalogue={} if image is None else {name: image},
            snapshot=found.snapshot if found else None,
            snapshot_image=found.image if found else None,
        )

    async def _reserve(self, request: CreateRequest, *, spec: SandboxSpec, fingerprint: str) -> Reservation:
        wanted = Reservation(
            machine_id=self._machine_id,
            request_id=request.request_id,
            fingerprint=fingerprint,
            name=request.name,
            sandbox_id=new_sandbox_id(self._ports.new_token()),
            owner_id=await self._choose_owner(),
            memory_mib=spec.size.memory_mib,
            at=self._ports.clock.now(),
        )
        try:
            return (await self._catalogue.reserve(wanted)).reservation
        except AlreadyExists as error:
            if error.code != "name_taken":
                raise
        await self.sweep()
        return (await self._catalogue.reserve(wanted)).reservation

    async def _choose_owner(self) -> OwnerId:
        """Return the least loaded owner with a free place, making one when all are full."""
        free = await self._free_owner()
        if free is None:
            await self.sweep()
            free = await self._free_owner()
        return free or await self._make_owner()

    async def _free_owner(self) -> OwnerId | None:
        taken = [row.owner_id for row in await self._catalogue.reservations() if row.released_at is None]
        load = Counter(taken)
        owners = [row.owner_id for row in await self._catalogue.owners()]
        free = [owner_id for owner_id in owners if load[owner_id] < self._capacity]
        return min(free, key=lambda owner_id: load[owner_id], default=None)

    async def _undo(self, reservation: Reservation) -> None:
        """Destroy what a failed create left, so that its name and memory are free; its journal stays."""
        params = ChangeSandbox(
            sandbox_id=reservation.sandbox_id, request_id=RequestId(f"{reservation.request_id}-undo")
        )
        try:
            await self._owners.call(reservation.owner_id, "destroy", params, timeout_s=10.0)
        except NotFound:
            await self._catalogue.release(reservation.sandbox_id)
        except SandkeeperError as error:
            log.warning("undo_unfinished", sandbox_id=reservation.sandbox_id, code=error.code)
