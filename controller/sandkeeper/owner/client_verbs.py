"""The directory's verbs for clients: heartbeats, and sandboxes by name.

Owns what binds a client to its sandboxes: composition of the leases, and the destruction of what a client leaves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from sandkeeper.control.server import VerbEntries
from sandkeeper.core.admission import CreateRequest, Policy
from sandkeeper.core.ids import RequestId
from sandkeeper.core.named import GetOrCreate
from sandkeeper.core.record import SandboxRecord
from sandkeeper.core.verbs import DestroySandbox, Heartbeat
from sandkeeper.owner.client_leases import ClientLeases
from sandkeeper.owner.named_creates import NamedCreates
from sandkeeper.owner.owner_calls import OwnerCalls
from sandkeeper.owner.survey import Survey
from sandkeeper.ports import Ports
from sandkeeper.store.catalogue import Catalogue

DESTROY_TIMEOUT_S = 60.0


class ClientVerbs:
    """The clients of one installation."""

    def __init__(
        self,
        *,
        policy: Policy,
        catalogue: Catalogue,
        survey: Survey,
        owners: OwnerCalls,
        create: Callable[[CreateRequest], Awaitable[Any]],
        ports: Ports,
    ) -> None:
        self._catalogue = catalogue
        self._survey = survey
        self._owners = owners
        self._ports = ports
        self._leases = ClientLeases(read_records=self._read_records, destroy=self._destroy, ports=ports)
        self._named = NamedCreates(
            policy=policy, create=create, catalogue=catalogue, survey=survey, owners=owners, ports=ports
        )

    def entries(self) -> VerbEntries:
        """Return their part of the directory's dispatch table."""
        return {
            "heartbeat": (Heartbeat, self._heartbeat),
            "get_or_create": (GetOrCreate, self._named.get_or_create),
        }

    def expect(self, request: CreateRequest) -> None:
        """Count the create of something bound to a client as word from it, before there is anything to find."""
        if request.client_id is not None and not request.detached:
            self._leases.hear(request.client_id, ttl_s=request.client_ttl_s)

    async def tick(self) -> None:
        """End what belongs to clients that are gone; a chore for every `client_leases.TICK_S`."""
        await self._leases.tick()

    def close(self) -> None:
        """Give up the destructions under way; the next directory begins them anew. Repeating is safe."""
        self._leases.close()

    async def _heartbeat(self, params: Heartbeat) -> dict[str, float]:
        self._leases.hear(params.client_id, ttl_s=params.ttl_s)
        return {"ttl_s": params.ttl_s}

    async def _read_records(self) -> list[SandboxRecord]:
        return await self._survey.records([row.owner_id for row in await self._catalogue.owners()])

    async def _destroy(self, record: SandboxRecord) -> None:
        params = DestroySandbox(
            sandbox_id=record.sandbox_id,
            request_id=RequestId(f"client-gone-{self._ports.new_token()}"),
            reason="client_gone",
        )
        await self._owners.call(record.owner_id, "destroy", params, timeout_s=DESTROY_TIMEOUT_S)
