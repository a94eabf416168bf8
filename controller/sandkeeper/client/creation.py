"""Creating sandboxes for one keeper: what is asked for, what a cancel undoes, what ends with the keeper.

Owns the sandboxes that are bound to a keeper. Whether a create is allowed is decided behind the control socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from sandkeeper.client.heartbeat import Heartbeat
from sandkeeper.client.results import Description, Snapshot
from sandkeeper.client.routing import Router
from sandkeeper.client.sandbox import Sandbox
from sandkeeper.core.admission import CreateRequest
from sandkeeper.core.errors import InvalidArgument, NotFound, SandkeeperError, Unavailable
from sandkeeper.core.ids import RequestId, SandboxId, SnapshotId
from sandkeeper.core.named import GotOrCreated
from sandkeeper.core.sizes import parse_size
from sandkeeper.core.spec import OnLost
from sandkeeper.core.verbs import invalid_parameters
from sandkeeper.ports import Ports

END_TIMEOUT_S = 60.0


def create_request(
    *,
    request_id: str,
    size: Any = None,
    snapshot: str | Snapshot | None = None,
    env: Mapping[str, str] | None = None,
    on_lost: str = OnLost.REBUILD,
    labels: Mapping[str, str] | None = None,
    **plain: Any,
) -> CreateRequest:
    """Return the request for what a caller asked for.

    Raises:
        InvalidArgument: Naming the field; nothing was sent.
    """
    snapshot_id = snapshot.id if isinstance(snapshot, Snapshot) else snapshot
    try:
        return CreateRequest(
            request_id=RequestId(request_id),
            size=None if size is None else parse_size(size),
            snapshot=None if snapshot_id is None else SnapshotId(snapshot_id),
            env=dict(env or {}),
            on_lost=OnLost(on_lost),
            labels=dict(labels or {}),
            **plain,
        )
    except ValidationError as error:
        raise invalid_parameters(error, verb="create") from error
    except ValueError as error:
        raise InvalidArgument(f"create: {error}", code="invalid_parameters") from error


class Creation:
    """Creates sandboxes and knows which of them end with the keeper."""

    def __init__(
        self,
        router: Router,
        *,
        handle: Callable[[Description], Sandbox],
        heartbeat: Heartbeat,
        ports: Ports,
    ) -> None:
        self._router = router
        self._heartbeat = heartbeat
        self._handle = handle
        self._ports = ports
        self._bound: dict[SandboxId, Sandbox] = {}
        self._undoing: set[asyncio.Task[None]] = set()

    async def create(self, request: CreateRequest, *, is_undone_by_cancel: bool) -> Sandbox:
        """Create a sandbox; a cancel waits until what it may have made is destroyed, if it is to be undone."""
        creating = self._ports.spawn(self._created(request), name=f"create {request.request_id}")
        try:
            return await asyncio.shield(creating)
        except asyncio.CancelledError:
            if is_undone_by_cancel:
                undoing = self._ports.spawn(self._undo(creating), name=f"undo {request.request_id}")
                self._undoing.add(undoing)
                undoing.add_done_callback(self._undoing.discard)
                await asyncio.shield(undoing)
            raise

    async def end(self) -> list[SandkeeperError]:
        """Destroy all that is bound; return what kept some from being destroyed.

        Raises:
            Unavailable: `destroy_unanswered`: not done in a minute.
        """
        bound = dict(self._bound)
        self._bound.clear()
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await asyncio.gather(*self._undoing, return_exceptions=True)
                answers = await asyncio.gather(*(_destroyed(sandbox) for sandbox in bound.values()))
        except TimeoutError as error:
            raise Unavailable(
                f"not all of {', '.join(bound)} are known to be destroyed after {END_TIMEOUT_S:g} s",
                code="destroy_unanswered",
                advice="see `sandkeeper ps`, and destroy what is left",
                admitted="unknown",
            ) from error
        return [failure for failure in answers if failure is not None]

    async def destroy(self, sandbox: Sandbox) -> None:
        """Destroy one that is bound; when that fails it stays bound, and the end tries again."""
        failure = await _destroyed(sandbox)
        if failure is not None:
            raise failure
        self._bound.pop(sandbox.id, None)

    async def get_or_create(self, request: CreateRequest) -> Sandbox:
        """Return the sandbox that has the name; only one that was made by this call ends with the keeper."""
        request = self._heartbeat.bind(request)
        found: GotOrCreated = await self._router.directory("get_or_create", request, answer=GotOrCreated)
        return self._kept(found.sandbox, is_bound=found.is_new and not request.detached)

    async def _created(self, request: CreateRequest) -> Sandbox:
        request = self._heartbeat.bind(request)
        seen: Description = await self._router.directory("create", request, answer=Description)
        return self._kept(seen, is_bound=not request.detached)

    def _kept(self, seen: Description, *, is_bound: bool) -> Sandbox:
        sandbox = self._handle(seen)
        if is_bound:
            self._bound[sandbox.id] = sandbox
        return sandbox

    async def _undo(self, creating: asyncio.Task[Sandbox]) -> None:
        """Wait for a create nobody waits for any more and destroy what it made."""
        try:
            sandbox = await creating
        except SandkeeperError:
            return  # It refused or failed: there is nothing to undo, and nobody left to tell.
        await sandbox.destroy()
        self._bound.pop(sandbox.id, None)


async def _destroyed(sandbox: Sandbox) -> SandkeeperError | None:
    try:
        await sandbox.destroy()
    except NotFound:
        return None
    except SandkeeperError as error:
        return error
    return None
