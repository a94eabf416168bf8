"""The front door: a keeper of sandboxes on this machine.

Owns joining an installation and what leaving it means. What a sandbox is and may be is decided behind the control
sockets; the server side is imported only where a supervisor has to be started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import ValidationError

from sandkeeper.client.attempt import Attempt, AttemptReport, OnProgress, Score
from sandkeeper.client.attempts import AttemptSet
from sandkeeper.client.boxes import Boxes
from sandkeeper.client.forks import fork_all
from sandkeeper.client.installation import Installation, default_state_dir
from sandkeeper.client.local import ensure_up
from sandkeeper.client.results import Description, Snapshot
from sandkeeper.client.routing import Router
from sandkeeper.client.sandbox import Sandbox
from sandkeeper.client.snapshots import Snapshots
from sandkeeper.core.admission import CreateRequest
from sandkeeper.core.errors import InvalidArgument, NotFound, SandkeeperError
from sandkeeper.core.ids import RequestId, SandboxId
from sandkeeper.core.record import Phase
from sandkeeper.core.sizes import parse_size
from sandkeeper.core.spec import OnLost
from sandkeeper.core.verbs import ListSandboxes, Nothing, OfSandbox, Status
from sandkeeper.ports import Ports, real_ports

LEAVE_TIMEOUT_S = 60.0


class Keeper:
    """Creates and finds sandboxes; an async context manager.

    Leaving destroys the sandboxes made here that are not `detached`.

    Attributes:
        snapshots: The installation's snapshots.
    """

    def __init__(
        self, installation: Installation, *, config: Mapping[str, Any] | None, ports: Ports | None = None
    ) -> None:
        self._installation = installation
        self._config = config
        self._ports = ports or real_ports()
        self._router = Router(installation, ports=self._ports)
        self._boxes = Boxes(self._router)
        self._bound: dict[SandboxId, Sandbox] = {}
        self._undoing: set[asyncio.Task[None]] = set()
        self.snapshots = Snapshots(self._router)

    @classmethod
    def local(cls, state_dir: Path | str | None = None, **config: Any) -> Keeper:
        """Return a keeper of this machine; entering it starts `sandkeeper up` for the folder if none runs.

        Args:
            state_dir: The installation's folder; None = SANDKEEPER_STATE_DIR, else the default one.
            **config: Settings of the supervisor, should it have to be started (`owners`, `policy`, ...).

        Raises:
            FailedPrecondition: On entering: `server_extra_missing` when it has to be started and cannot be.
        """
        return cls(Installation(_folder(state_dir)), config=config)

    @classmethod
    def join(cls, state_dir: Path | str | None = None) -> Keeper:
        """Return a keeper of what runs for the folder already; it never starts anything."""
        return cls(Installation(_folder(state_dir)), config=None)

    async def __aenter__(self) -> Self:
        if self._config is not None:
            await ensure_up(self._installation, config=self._config, ports=self._ports)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leaving = self._ports.spawn(self._leave(), name="leave keeper")
        while not leaving.done():
            try:
                await asyncio.shield(leaving)
            except asyncio.CancelledError:
                # What was made must go, or it stays for ever; the bound on leaving ends it in any case.
                if leaving.cancelled():
                    raise
        leaving.result()

    async def create(
        self,
        *,
        image: str | None = None,
        size: Any = None,
        snapshot: str | Snapshot | None = None,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        workdir: str | None = None,
        on_lost: str = "rebuild",
        lifetime_s: float | None = None,
        labels: Mapping[str, str] | None = None,
        detached: bool = False,
        request_id: str | None = None,
    ) -> Sandbox:
        """Create a sandbox; returns when it runs.

        Args:
            image: Catalogue name; None = the snapshot's, else the policy's default.
            size: Catalogue name, `Size`, or a mapping with `vcpu` and `memory_mib`.
            snapshot: Start from this snapshot (or its id).
            name: A name of your own for it.
            env: Variables of all its commands.
            user: Default user; None = the image's.
            workdir: Default folder; None = the image's.
            on_lost: `rebuild` from the last valid snapshot, `stop`, or `ask`.
            lifetime_s: Destroyed after this time; None = never.
            labels: Marks for listing.
            detached: Stays when this keeper is left.
            request_id: A repeat with the same id gets the same sandbox.

        Raises:
            InvalidArgument, NotFound, PermissionDenied, ResourceExhausted: The rule that refuses; nothing was made.
            Aborted: The launch failed; the message names the step.
        """
        try:
            request = CreateRequest(
                request_id=RequestId(request_id or self._ports.new_token()),
                image=image,
                snapshot=_snapshot_id(snapshot),
                size=None if size is None else parse_size(size),
                name=name,
                env=dict(env or {}),
                user=user,
                workdir=workdir,
                on_lost=OnLost(on_lost),
                lifetime_s=lifetime_s,
                labels=dict(labels or {}),
                detached=detached,
            )
        except ValidationError as error:
            raise _invalid(error) from error
        except ValueError as error:
            raise InvalidArgument(f"create: {error}", code="invalid_parameters") from error
        creating = self._ports.spawn(self._created(request), name=f"create {request.request_id}")
        try:
            return await asyncio.shield(creating)
        except asyncio.CancelledError:
            if request_id is None:
                # Nobody else knows this request id, so nobody else can ever get at what it makes.
                await self._undo(creating)
            raise

    async def get(self, id_or_name: str) -> Sandbox:
        """Return a handle on an existing sandbox, by its id or its name.

        Raises:
            NotFound: There is none.
        """
        sandbox_id = await self._router.locate_any(id_or_name)
        params = OfSandbox(sandbox_id=sandbox_id)
        return self._handle(await self._router.owner(sandbox_id, "describe", params, answer=Description))

    async def list(
        self, state: Sequence[str] | str | None = None, labels: Mapping[str, str] | None = None
    ) -> list[Sandbox]:
        """Return the sandboxes in these phases (None = all but destroyed ones) that have all these labels."""
        return [self._handle(seen) for seen in await self.listed(state, labels=labels)]

    async def listed(
        self, state: Sequence[str] | str | None = None, *, labels: Mapping[str, str] | None = None
    ) -> tuple[Description, ...]:
        """Return what `list` finds as plain descriptions."""
        wanted = (state,) if isinstance(state, str) else state
        try:
            phases = None if wanted is None else tuple(Phase(word) for word in wanted)
        except ValueError as error:
            raise InvalidArgument(str(error), code="phase_unknown") from error
        params = ListSandboxes(phases=phases, labels=dict(labels or {}))
        found: tuple[Description, ...] = await self._router.directory(
            "list", params, answer=tuple[Description, ...]
        )
        return found

    async def fork(
        self,
        snapshot: str | Snapshot,
        count: int = 1,
        *,
        on_made: Callable[[Sandbox], None] | None = None,
        **overrides: Any,
    ) -> tuple[Sandbox, ...]:
        """Create `count` sandboxes from one snapshot; all of them, or none and the first error.

        Args:
            snapshot: The snapshot or its id.
            count: How many, 1 to 256.
            on_made: Told of each as it runs.
            **overrides: As for `create`.
        """
        return await fork_all(self, snapshot, count=count, overrides=overrides, on_made=on_made)

    async def attempts(
        self,
        snapshot: str | Snapshot,
        attempts: Sequence[Attempt],
        *,
        name: str | None = None,
        concurrency: int | None = None,
        score: Score | None = None,
        keep: str = "winner",
        on_progress: OnProgress | None = None,
        **overrides: Any,
    ) -> AttemptReport:
        """Run each attempt in a fork of its own and compare them; see `sandkeeper.client.attempts`."""
        chosen = AttemptSet(
            self,
            snapshot=snapshot,
            attempts=attempts,
            name=name,
            concurrency=concurrency,
            score=score,
            keep=keep,
            on_progress=on_progress,
            overrides=overrides,
            ports=self._ports,
        )
        return await chosen.run()

    async def status(self) -> Status:
        """Return what runs: the directory, the owners and their epochs, the images."""
        found: Status = await self._router.directory("status", Nothing(), answer=Status)
        return found

    async def _created(self, request: CreateRequest) -> Sandbox:
        seen: Description = await self._router.directory("create", request, answer=Description)
        sandbox = self._handle(seen)
        if not request.detached:
            self._bound[sandbox.id] = sandbox
        return sandbox

    async def _undo(self, creating: asyncio.Task[Sandbox]) -> None:
        """Wait for a create nobody waits for any more and destroy what it made."""

        async def undo() -> None:
            try:
                sandbox = await creating
            except SandkeeperError:
                return  # It refused or failed: there is nothing to undo, and nobody left to tell.
            await sandbox.destroy()
            self._bound.pop(sandbox.id, None)

        undoing = self._ports.spawn(undo(), name="undo create")
        self._undoing.add(undoing)
        await asyncio.shield(undoing)
        self._undoing.discard(undoing)

    def _handle(self, seen: Description) -> Sandbox:
        return Sandbox(seen, router=self._router, boxes=self._boxes)

    async def _leave(self) -> None:
        """Destroy what is bound to this keeper, then close; every failure is told, none stops the others."""
        failures: list[Exception] = []
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await asyncio.gather(*self._undoing, return_exceptions=True)
                ends = [_destroyed(sandbox) for sandbox in self._bound.values()]
                failures = [failure for failure in await asyncio.gather(*ends) if failure is not None]
        finally:
            self._bound.clear()
            await self._boxes.close()
            await self._router.close()
        if failures:
            raise failures[0] if len(failures) == 1 else ExceptionGroup("sandboxes left behind", failures)


async def _destroyed(sandbox: Sandbox) -> SandkeeperError | None:
    try:
        await sandbox.destroy()
    except NotFound:
        return None
    except SandkeeperError as error:
        return error
    return None


def _folder(state_dir: Path | str | None) -> Path:
    return default_state_dir() if state_dir is None else Path(state_dir).absolute()


def _snapshot_id(snapshot: str | Snapshot | None) -> Any:
    return snapshot.id if isinstance(snapshot, Snapshot) else snapshot


def _invalid(error: ValidationError) -> InvalidArgument:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or "parameters"
    return InvalidArgument(
        f"create: {field}: {first['msg']}", code="invalid_parameters", details={"field": field}
    )
