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

from sandkeeper.client.attempt import Attempt, AttemptReport, OnProgress, Score
from sandkeeper.client.attempts import AttemptSet
from sandkeeper.client.boxes import Boxes
from sandkeeper.client.creation import Creation, create_request
from sandkeeper.client.forks import fork_all
from sandkeeper.client.heartbeat import heartbeat_of
from sandkeeper.client.installation import Installation, default_state_dir
from sandkeeper.client.local import ensure_up
from sandkeeper.client.once import run_once
from sandkeeper.client.results import Description, Snapshot
from sandkeeper.client.routing import Router
from sandkeeper.client.run_order import DEFAULT_TIMEOUT_S, MAX_OUTPUT_BYTES, argv_of, checked_timeout_s
from sandkeeper.client.run_result import RunResult
from sandkeeper.client.run_sight import OnOutput
from sandkeeper.client.sandbox import Sandbox
from sandkeeper.client.snapshots import Snapshots
from sandkeeper.core.errors import InvalidArgument
from sandkeeper.core.record import Phase
from sandkeeper.core.spec import CLIENT_TTL_S
from sandkeeper.core.verbs import ListSandboxes, Nothing, OfSandbox, Status
from sandkeeper.ports import Ports, real_ports

IDLE_EXIT_S = 600.0


class Keeper:
    """Creates and finds sandboxes; an async context manager.

    Leaving destroys the sandboxes made here that are not `detached`.

    Attributes:
        snapshots: The installation's snapshots.
    """

    def __init__(
        self,
        installation: Installation,
        *,
        config: Mapping[str, Any] | None,
        client_id: str | None = None,
        client_ttl_s: float = CLIENT_TTL_S,
        ports: Ports | None = None,
    ) -> None:
        self._installation = installation
        self._config = config
        self._ports = ports or real_ports()
        self._router = Router(installation, ports=self._ports)
        self._boxes = Boxes(self._router)
        self._is_known_client = client_id is not None
        self._heartbeat = heartbeat_of(
            installation, client_id=client_id or f"cl{self._ports.new_token()}", ttl_s=client_ttl_s
        )
        self._creation = Creation(
            self._router, handle=self._handle, heartbeat=self._heartbeat, ports=self._ports
        )
        self.snapshots = Snapshots(self._router)

    @classmethod
    def local(
        cls,
        state_dir: Path | str | None = None,
        *,
        client_id: str | None = None,
        client_ttl_s: float = CLIENT_TTL_S,
        **config: Any,
    ) -> Keeper:
        """Return a keeper of this machine; entering it starts `sandkeeper up` for the folder if none runs.

        Args:
            state_dir: The installation's folder; None = SANDKEEPER_STATE_DIR, else the default one.
            client_id: Who this client is; one that comes back under its id, in time, keeps what is bound to it.
            client_ttl_s: What is bound to this client is destroyed when it is not heard for so long: when it
                is left without a word. 1 to 3600.
            **config: Settings of the supervisor, should it have to be started (`owners`, `policy`, ...). One started
                here ends after 10 minutes without sandboxes, unless `idle_exit_s` says otherwise.

        Raises:
            FailedPrecondition: On entering: `server_extra_missing` when it has to be started and cannot be.
        """
        return cls(
            Installation(_folder(state_dir)),
            config={"idle_exit_s": IDLE_EXIT_S} | config,
            client_id=client_id,
            client_ttl_s=client_ttl_s,
        )

    @classmethod
    def join(
        cls,
        state_dir: Path | str | None = None,
        *,
        client_id: str | None = None,
        client_ttl_s: float = CLIENT_TTL_S,
    ) -> Keeper:
        """Return a keeper of what runs for the folder already; it never starts anything. Otherwise as `local`."""
        return cls(
            Installation(_folder(state_dir)), config=None, client_id=client_id, client_ttl_s=client_ttl_s
        )

    async def __aenter__(self) -> Self:
        if self._config is not None:
            await ensure_up(self._installation, config=self._config, ports=self._ports)
        if self._is_known_client:
            self._heartbeat.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leaving = self._ports.spawn(self._leave(), name="leave keeper")
        cancelled: asyncio.CancelledError | None = None
        while not leaving.done():
            try:
                await asyncio.shield(leaving)
            except asyncio.CancelledError as cancel:
                # What was made must go, or it stays for ever; the bound on leaving ends it in any case.
                cancelled = cancel
        if cancelled is not None:
            raise cancelled
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
        request = create_request(
            request_id=request_id or self._ports.new_token(),
            image=image,
            size=size,
            snapshot=snapshot,
            name=name,
            env=env,
            user=user,
            workdir=workdir,
            on_lost=on_lost,
            lifetime_s=lifetime_s,
            labels=labels,
            detached=detached,
        )
        # Nobody else knows an id made here, so nobody else could ever get at what a cancelled create makes.
        return await self._creation.create(request, is_undone_by_cancel=request_id is None)

    async def once(
        self,
        command: str | Sequence[str],
        *,
        image: str | None = None,
        size: Any = None,
        snapshot: str | Snapshot | None = None,
        files: Mapping[str, bytes | str] | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        cwd: str | None = None,
        stdin: bytes | str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
        on_output: OnOutput | None = None,
    ) -> RunResult:
        """Run one command in a sandbox made for it, which is destroyed in any case, also by a cancel.

        Args:
            command: Argv or shell line, as for `sandbox.run`.
            image: As for `create`; so are `size`, `snapshot`, `env` and `user`.
            size: Its limits.
            snapshot: Start from this one.
            files: Content by path, written before the command starts; relative paths start at the user's home.
            env: Variables.
            user: User of the files and of the command; None = the image's.
            cwd: Folder; None = the image's.
            stdin: Input; None = none.
            timeout_s: The command's own time; making the sandbox does not count.
            max_output_bytes: Output kept, per stream.
            on_output: Told every piece of output as it comes.

        Raises:
            Aborted: `run_interrupted`: the runtime was lost or did not answer; what the command did is not known.
            SandkeeperError: As for `create`, `files.write` and `run`. A result is only ever the command's own.
        """
        argv, wait_s = argv_of(command), checked_timeout_s(timeout_s)
        return await run_once(
            self.create(image=image, size=size, snapshot=snapshot, env=env, user=user, on_lost="stop"),
            files=dict(files or {}),
            working=lambda sandbox: sandbox.run(
                argv,
                cwd=cwd,
                stdin=stdin,
                timeout_s=wait_s,
                max_output_bytes=max_output_bytes,
                on_output=on_output,
            ),
            destroying=self._creation.destroy,
            ports=self._ports,
        )

    async def get_or_create(
        self, name: str, *, detached: bool = True, request_id: str | None = None, **parameters: Any
    ) -> Sandbox:
        """Return the sandbox that has this name, running; create it when there is none.

        Args:
            name: Its name.
            detached: Stays when this keeper is left: the default, as a name is for coming back. Otherwise one that
                this call creates goes with this keeper; one that was there is left alone.
            request_id: A repeat with the same id gets the same sandbox.
            **parameters: As for `create`. They must be those the sandbox was created with.

        Raises:
            AlreadyExists: `name_taken`: it was created with other parameters; `field` in the details says which.
            Unavailable: `name_in_passing`: one of that name neither comes up nor goes away.
            SandkeeperError: As for `create` and `start`.
        """
        request = create_request(
            request_id=request_id or self._ports.new_token(), name=name, detached=detached, **parameters
        )
        return await self._creation.get_or_create(request)

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

    def _handle(self, seen: Description) -> Sandbox:
        return Sandbox(seen, router=self._router, boxes=self._boxes, forking=self.fork)

    async def _leave(self) -> None:
        """Destroy what is bound to this keeper, then close; every failure is told, none stops the others."""
        try:
            failures = await self._creation.end()
        finally:
            await self._heartbeat.close()
            await self._boxes.close()
            await self._router.close()
        if failures:
            raise failures[0] if len(failures) == 1 else ExceptionGroup("sandboxes left behind", failures)


def _folder(state_dir: Path | str | None) -> Path:
    return default_state_dir() if state_dir is None else Path(state_dir).absolute()
