"""A handle on one sandbox: its verbs, its commands, its files.

Owns no state of the sandbox: `describe()` asks the owner each time, the attributes are what the last answer said.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sandkeeper.client.alarms import SandboxAlarms
from sandkeeper.client.boxes import Boxes
from sandkeeper.client.diff import Diff
from sandkeeper.client.diffing import Tree, difference
from sandkeeper.client.files import SandboxFiles
from sandkeeper.client.forks import check_count
from sandkeeper.client.results import Description, Event, RunResult, Snapshot
from sandkeeper.client.routing import Router
from sandkeeper.client.run_order import (
    DEFAULT_TIMEOUT_S,
    MAX_OUTPUT_BYTES,
    RunOrder,
    argv_of,
    checked_timeout_s,
    limits_of,
)
from sandkeeper.client.run_sight import OnOutput
from sandkeeper.client.state import SandboxState
from sandkeeper.client.working import Working
from sandkeeper.core.alarms import Alarm
from sandkeeper.core.errors import FailedPrecondition, InvalidArgument
from sandkeeper.core.ids import RequestId, RunId, SandboxId
from sandkeeper.core.sizes import Size, parse_size
from sandkeeper.core.spec import Keep
from sandkeeper.core.verbs import (
    ChangeSandbox,
    OfSandbox,
    ReadEvents,
    ResizeSandbox,
    StopSandbox,
    TakeSnapshot,
    checked,
)

EVENTS_WAIT_S = 20.0

FORK_KEEP_S = 3600.0
Forking = Callable[..., Awaitable["tuple[Sandbox, ...]"]]
"""Creates sandboxes of a snapshot; the keeper's `fork`."""


class Sandbox(Working):
    """One sandbox. Every mutating verb takes a `request_id`: a repeat with the same one gets the same answer.

    Attributes:
        files: Its files.
        state: Durable key-value pairs beside it.
        alarms: Its alarms.
    """

    def __init__(
        self, seen: Description, *, router: Router, boxes: Boxes, forking: Forking | None = None
    ) -> None:
        super().__init__(seen.id, boxes=boxes, ports=router.ports)
        self._forking = forking
        self._seen = seen
        self._router = router
        self._boxes = boxes
        self.files = SandboxFiles(seen.id, boxes=boxes, ports=router.ports)
        self.state = SandboxState(seen.id, router=router)
        self.alarms = SandboxAlarms(seen.id, router=router)

    @property
    def id(self) -> SandboxId:
        """Its id."""
        return self._seen.id

    @property
    def name(self) -> str | None:
        """Its name, if it was given one."""
        return self._seen.name

    @property
    def phase(self) -> str:
        """Where it stood at the last answer."""
        return self._seen.phase.value

    @property
    def generation(self) -> int:
        """Number of its newest runtime at the last answer."""
        return self._seen.generation

    @property
    def image(self) -> str:
        """Catalogue image it was created from."""
        return self._seen.image

    @property
    def size(self) -> Size:
        """Its limits at the last answer."""
        return self._seen.size

    async def describe(self) -> Description:
        """Return the truth: what the owner has recorded now."""
        return await self._told("describe", OfSandbox(sandbox_id=self.id))

    async def start(self, *, request_id: str | None = None) -> Description:
        """Start it; returns when it runs. Files are those of the last stop, never older ones."""
        return await self._change("start", request_id)

    async def pause(self, *, request_id: str | None = None) -> Description:
        """Freeze its processes; they keep their memory."""
        return await self._change("pause", request_id)

    async def resume(self, *, request_id: str | None = None) -> Description:
        """Let its frozen processes go on."""
        return await self._change("resume", request_id)

    async def stop(self, *, keep: str = "snapshot", request_id: str | None = None) -> Description:
        """Stop it, keeping its `files`, a `snapshot`, or `nothing`."""
        if keep not in {kind.value for kind in Keep}:
            raise InvalidArgument(
                f"keep is files, snapshot or nothing, not {keep!r:.40}", code="keep_invalid"
            )
        params = StopSandbox(sandbox_id=self.id, request_id=self._request(request_id), keep=Keep(keep))
        return await self._told("stop", params)

    async def resize(self, size: Any, *, request_id: str | None = None) -> Description:
        """Change its limits; `size` as at create."""
        params = ResizeSandbox(
            sandbox_id=self.id, request_id=self._request(request_id), size=parse_size(size)
        )
        return await self._told("resize", params)

    async def destroy(self, *, request_id: str | None = None) -> Description:
        """Destroy it for good; its snapshots stay. May be repeated."""
        return await self._change("destroy", request_id)

    async def snapshot(
        self, name: str | None = None, *, keep_s: float | None = None, request_id: str | None = None
    ) -> Snapshot:
        """Commit its file system as an immutable snapshot; its processes stand still while it is taken.

        Raises:
            Aborted: It did not happen, and the last valid snapshot is unchanged.
            PermissionDenied: `snapshot_too_large`.
            ResourceExhausted: `disk_full`.
        """
        params = checked(
            TakeSnapshot,
            verb="snapshot",
            sandbox_id=self.id,
            request_id=self._request(request_id),
            name=name,
            keep_s=keep_s,
        )
        taken: Snapshot = await self._router.owner(self.id, "take_snapshot", params, answer=Snapshot)
        return taken

    async def fork(
        self, count: int = 1, *, keep_s: float = FORK_KEEP_S, **overrides: Any
    ) -> tuple[Sandbox, ...]:
        """Take a snapshot and create `count` sandboxes from it; all of them, or none and the first error.

        Memory and processes stay with this one; in the copies the start command runs anew.

        Args:
            count: How many, 1 to 256.
            keep_s: Seconds the snapshot stays once no copy stands on it any more.
            **overrides: As for `keeper.create`.

        Raises:
            SandkeeperError: As `snapshot` and `keeper.fork`.
        """
        if self._forking is None:
            raise FailedPrecondition("this handle cannot create sandboxes", code="handle_alone")
        check_count(count)
        taken = await self.snapshot(keep_s=keep_s)
        return await self._forking(taken, count, **overrides)

    async def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        quiet_timeout_s: float | None = None,
        cpu_limit_s: float | None = None,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
        on_output: OnOutput | None = None,
        request_id: str | None = None,
    ) -> RunResult:
        """Run a command to its end and say what came of it.

        A list is an argv and goes as it is; a text is a line for `/bin/sh -c`. A non-zero exit is a result, not
        an exception. The command survives cut connections and owners; when its runtime is lost the outcome is
        `interrupted`. Cancelling the call kills the command's process tree.

        Args:
            command: Argv or shell line.
            cwd: Folder; None = the sandbox's default.
            env: Variables beside the sandbox's.
            user: User name; None = the sandbox's default.
            stdin: Input; None = none.
            timeout_s: The tree is killed after this time; the outcome is then `timeout`.
            quiet_timeout_s: The tree is killed after this long without any output; `timeout`, reason `quiet`.
            cpu_limit_s: The tree is killed when it has used this much CPU time; `timeout`, reason `cpu`.
            max_output_bytes: Output kept, per stream; the true sizes are in the result.
            on_output: Told every piece of output as it comes, beyond `max_output_bytes` too.
            request_id: Names the run: the same id attaches to the same run instead of starting another.

        Raises:
            InvalidArgument: `exec_not_found`, `exec_denied`, `bad_cwd`, `unknown_user`, `argv_invalid`.
            FailedPrecondition: It does not run, and why; `sandbox_unhealthy`: it has no shell or can make no process.
            ResourceExhausted: `pids_exhausted`.
        """
        order = RunOrder(
            argv=argv_of(command),
            run_id=RunId(request_id or f"r{self._router.ports.new_token()}"),
            cwd=cwd,
            env=dict(env or {}),
            user=user,
            stdin=stdin.encode() if isinstance(stdin, str) else stdin,
            timeout_s=checked_timeout_s(timeout_s),
            limits=limits_of(quiet_timeout_s=quiet_timeout_s, cpu_limit_s=cpu_limit_s),
            keep_bytes=max_output_bytes,
            send_bytes=None if on_output is not None else max_output_bytes,
        )
        return await self._runner.run(self.id, order, on_output=on_output)

    async def diff(self, since: Snapshot | str | None = None) -> Diff:
        """Return what changed since a snapshot: `changes`, and `patch()` of the texts among them.

        Args:
            since: The snapshot or its id; None = its last one.

        Raises:
            FailedPrecondition: `no_snapshot`: there is none to compare with.
            NotFound: There is no such snapshot.
        """
        snapshot_id = since.id if isinstance(since, Snapshot) else since
        if snapshot_id is None:
            snapshot_id = (await self.describe()).boot_snapshot
        if snapshot_id is None or self._forking is None:
            raise FailedPrecondition("there is no snapshot to compare with", code="no_snapshot")
        ports = self._router.ports
        return await difference(
            Tree(self.id, boxes=self._boxes, ports=ports),
            snapshot_id,
            forking=self._forking,
            tree_of=lambda fork: Tree(fork.id, boxes=self._boxes, ports=ports),
        )

    async def alarm(
        self,
        at: datetime | None = None,
        payload: Any = None,
        *,
        in_s: float | None = None,
        alarm_id: str | None = None,
        request_id: str | None = None,
    ) -> Alarm:
        """Set an alarm that fires as an `alarm_fired` event, over restarts of everything; as `alarms.set`."""
        return await self.alarms.set(at, payload, in_s=in_s, alarm_id=alarm_id, request_id=request_id)

    async def events(self, *, after: int = 0, follow: bool = False) -> AsyncIterator[Event]:
        """Yield its journal from `after` on; with `follow` also what is still to come."""
        cursor = after
        while True:
            params = ReadEvents(sandbox_id=self.id, after=cursor, wait_s=EVENTS_WAIT_S if follow else 0.0)
            page: dict[str, Any] = await self._router.owner(self.id, "events", params, answer=dict[str, Any])
            events = [Event.model_validate(entry) for entry in page["events"]]
            for event in events:
                cursor = max(cursor, event.seq)
                yield event
            is_stuck = not events and int(page["cursor"]) <= cursor
            cursor = max(cursor, int(page["cursor"]))
            if is_stuck and not follow:
                return

    async def _change(self, verb: str, request_id: str | None) -> Description:
        return await self._told(verb, ChangeSandbox(sandbox_id=self.id, request_id=self._request(request_id)))

    async def _told(self, verb: str, params: OfSandbox) -> Description:
        if verb != "describe":
            # The lease at hand is about the runtime as it was before.
            await self._boxes.forget(self.id)
        self._seen = await self._router.owner(self.id, verb, params, answer=Description)
        return self._seen

    def _request(self, request_id: str | None) -> RequestId:
        return RequestId(request_id or self._router.ports.new_token())
