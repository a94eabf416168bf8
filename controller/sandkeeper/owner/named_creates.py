"""`get_or_create`: finds the sandbox that has the name and has it run, or creates it.

Owns that concurrent callers with the same parameters end up with one sandbox. What "the same" means is
`core.named`'s.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from sandkeeper.core.admission import CreateRequest, Policy
from sandkeeper.core.errors import AlreadyExists, NotFound, Unavailable
from sandkeeper.core.ids import RequestId
from sandkeeper.core.named import GetOrCreate, check_same
from sandkeeper.core.record import Phase
from sandkeeper.core.verbs import ChangeSandbox
from sandkeeper.owner.owner_calls import OwnerCalls
from sandkeeper.owner.survey import Survey
from sandkeeper.ports import Ports
from sandkeeper.store.catalogue import Catalogue
from sandkeeper.store.catalogue_entries import Reservation

WAIT_S = 120.0
LOOK_FIRST_S = 0.05
LOOK_MOST_S = 1.0


class NamedCreates:
    """The sandboxes of one installation by their names."""

    def __init__(
        self,
        *,
        policy: Policy,
        create: Callable[[CreateRequest], Awaitable[Any]],
        catalogue: Catalogue,
        survey: Survey,
        owners: OwnerCalls,
        ports: Ports,
    ) -> None:
        self._policy = policy
        self._create_new = create
        self._catalogue = catalogue
        self._survey = survey
        self._owners = owners
        self._ports = ports

    async def get_or_create(self, request: GetOrCreate) -> dict[str, Any]:
        """Return the view of the sandbox that has the name, running, and whether this request created it.

        Raises:
            AlreadyExists: `name_taken` with the field that differs.
            Unavailable: `name_in_passing`: one sandbox of that name is ending or never comes up.
            SandkeeperError: What a create or a start raises.
        """
        deadline_s = self._ports.clock.monotonic_s() + WAIT_S
        delay_s = LOOK_FIRST_S
        while True:
            found = await self._catalogue.by_name(request.name)
            if found is None or found.request_id == request.request_id:
                view = await self._create(request)
            else:
                view = await self._join(request, found)
            if view is not None:
                is_new = found is None or found.request_id == request.request_id
                return {"sandbox": view, "is_new": is_new}
            if self._ports.clock.monotonic_s() >= deadline_s:
                raise _in_passing(request)
            await self._ports.sleep(delay_s)
            delay_s = min(LOOK_MOST_S, delay_s * 2)

    async def _create(self, request: GetOrCreate) -> Any:
        """Create it; None when somebody else took the name at the same time."""
        try:
            return await self._create_new(request)
        except AlreadyExists as error:
            if error.code != "name_taken":
                raise
            return None

    async def _join(self, request: GetOrCreate, found: Reservation) -> Any:
        """Have the found one run; None when it is not there yet, or no more."""
        record = await self._survey.record(found.sandbox_id, owner_id=found.owner_id)
        if record is not None and record.phase is Phase.DESTROYED:
            await self._catalogue.release(found.sandbox_id)
            return None
        if record is not None and record.phase is Phase.DESTROYING:
            return None
        check_same(request, known=found.parameters, sandbox_id=found.sandbox_id, policy=self._policy)
        if record is None:
            return None
        verb = "resume" if record.phase is Phase.PAUSED else "start"
        params = ChangeSandbox(
            sandbox_id=found.sandbox_id, request_id=RequestId(f"{request.request_id}-{verb}")
        )
        try:
            return await self._owners.call(found.owner_id, verb, params)
        except NotFound:
            return None


def _in_passing(request: GetOrCreate) -> Unavailable:
    return Unavailable(
        f"the sandbox named {request.name} neither came up nor went away in {WAIT_S:g} s",
        code="name_in_passing",
        advice="look at its events; repeat with the same request id",
        request_id=request.request_id,
        retry_after_s=5.0,
    )
