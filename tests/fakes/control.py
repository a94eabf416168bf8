"""An installation that speaks the control protocol and keeps everything in a dict: for the client and the CLI.

The sockets, the server and the documents are the real ones; what is behind them is not. Boxes are not served: a lease
leads nowhere. Runs on a thread of its own, so that a command may run its own loop.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sandkeeper.control.server import ControlServer, VerbTable
from sandkeeper.core import snapshot_verbs, verbs
from sandkeeper.core.admission import CreateRequest
from sandkeeper.core.errors import AlreadyExists, FailedPrecondition, NotFound, SandkeeperError
from sandkeeper.core.ids import DEFAULT_TENANT, BirthId, MachineId, OwnerId, SandboxId
from sandkeeper.core.named import GetOrCreate
from sandkeeper.core.record import Phase, SandboxRecord
from sandkeeper.core.sizes import NAMED_SIZES
from sandkeeper.core.spec import BootImage, SandboxSpec
from sandkeeper.core.views import EventView, SandboxView, SnapshotView, sandbox_view

OWNER = "ow1"
AT = datetime(2030, 1, 1, tzinfo=UTC)


class FakeControl:
    """One directory and one owner.

    Attributes:
        sandboxes: By id.
        snapshots: By id.
        journal: Events in order.
        calls: Verb and parameters, as they came.
        failures: Errors to answer with instead, by verb; each used once.
        is_odd: Descriptions have a shape no client knows.
    """

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.sandboxes: dict[str, SandboxView] = {}
        self.snapshots: dict[str, SnapshotView] = {}
        self.journal: list[EventView] = []
        self.calls: list[tuple[str, Any]] = []
        self.failures: dict[str, list[SandkeeperError]] = {}
        self.is_odd = False
        self.owner_path = state_dir / "owners" / OWNER / "control.sock"
        self._answers: dict[str, SandboxView] = {}
        self._numbers = itertools.count(1)
        self._servers: list[ControlServer] = []

    def directory_table(self) -> VerbTable:
        return VerbTable(
            {
                "create": (CreateRequest, self._counted("create", self._create)),
                "get_or_create": (GetOrCreate, self._counted("get_or_create", self._get_or_create)),
                "heartbeat": (verbs.Heartbeat, self._counted("heartbeat", self._heartbeat)),
                "find": (verbs.FindSandbox, self._counted("find", self._find)),
                "list": (verbs.ListSandboxes, self._counted("list", self._list)),
                "snapshots": (verbs.Nothing, self._counted("snapshots", self._snapshots)),
                "snapshot": (verbs.OfSnapshot, self._counted("snapshot", self._snapshot)),
                "delete_snapshot": (verbs.DeleteSnapshot, self._counted("delete_snapshot", self._delete)),
                "pin_snapshot": (snapshot_verbs.PinSnapshot, self._counted("pin_snapshot", self._pin)),
                "unpin_snapshot": (
                    snapshot_verbs.UnpinSnapshot,
                    self._counted("unpin_snapshot", self._snapshot),
                ),
                "gc": (snapshot_verbs.CollectGarbage, self._counted("gc", self._collect)),
                "export_snapshot": (
                    snapshot_verbs.ExportSnapshot,
                    self._counted("export_snapshot", self._export),
                ),
                "import_snapshot": (
                    snapshot_verbs.ImportSnapshot,
                    self._counted("import_snapshot", self._import),
                ),
                "status": (verbs.Nothing, self._counted("status", self._status)),
            }
        )

    def owner_table(self) -> VerbTable:
        moves = {
            "start": Phase.RUNNING,
            "pause": Phase.PAUSED,
            "resume": Phase.RUNNING,
            "destroy": Phase.DESTROYED,
        }
        changes = {
            verb: (verbs.ChangeSandbox, self._counted(verb, self._moving(phase)))
            for verb, phase in moves.items()
        }
        return VerbTable(
            changes
            | {
                "describe": (verbs.OfSandbox, self._counted("describe", self._describe)),
                "stop": (verbs.StopSandbox, self._counted("stop", self._moving(Phase.STOPPED))),
                "resize": (verbs.ResizeSandbox, self._counted("resize", self._resize)),
                "take_snapshot": (verbs.TakeSnapshot, self._counted("take_snapshot", self._take)),
                "lease": (verbs.OfSandbox, self._counted("lease", self._lease)),
                "events": (verbs.ReadEvents, self._counted("events", self._events)),
            }
        )

    async def start(self) -> None:
        self.write_up_file()
        directory = ControlServer(self.state_dir / "directory.sock", table=self.directory_table())
        await directory.start()
        self._servers.append(directory)
        await self.start_owner()

    async def start_owner(self) -> None:
        """Let the owner answer, at `owner_path`."""
        owner = ControlServer(self.owner_path, table=self.owner_table())
        await owner.start()
        self._servers.append(owner)

    async def stop_owner(self) -> None:
        """Take the owner away: its socket refuses."""
        await self._servers.pop().close()

    async def close(self) -> None:
        for server in self._servers:
            await server.close()

    def write_up_file(self) -> None:
        """Say that this very process is the supervisor."""
        stat = Path("/proc/self/stat").read_text()
        ticks = int(stat[stat.rindex(")") + 2 :].split()[19])
        self.state_dir.mkdir(parents=True, exist_ok=True)
        (self.state_dir / "up.json").write_text(json.dumps({"pid": os.getpid(), "start_ticks": ticks}))

    def called(self, verb: str) -> list[Any]:
        """Return the parameters of every call of a verb."""
        return [params for name, params in self.calls if name == verb]

    def _counted(self, verb: str, run: Any) -> Any:
        async def call(params: Any) -> Any:
            self.calls.append((verb, params))
            if self.failures.get(verb):
                raise self.failures[verb].pop(0)
            return await run(params)

        return call

    async def _create(self, params: CreateRequest) -> SandboxView:
        known = self._answers.get(params.request_id)
        if known is not None:
            return known
        if params.name and any(seen.name == params.name for seen in self.sandboxes.values()):
            raise AlreadyExists(f"{params.name} is taken", code="name_taken")
        if params.snapshot and params.snapshot not in self.snapshots:
            raise NotFound(f"there is no snapshot {params.snapshot}", code="snapshot_not_found")
        boot = BootImage(image_id="sha256:1", base_digest="sha256:1", snapshot_id=params.snapshot)
        spec = SandboxSpec(
            image=params.image or "base",
            boot=boot,
            size=params.size or NAMED_SIZES["basic"],
            env=params.env,
            on_lost=params.on_lost,
            lifetime_s=params.lifetime_s,
            labels=params.labels,
            detached=params.detached,
        )
        record = SandboxRecord(
            sandbox_id=SandboxId(f"sb{next(self._numbers)}"),
            tenant_id=DEFAULT_TENANT,
            machine_id=MachineId("m1"),
            owner_id=OwnerId(OWNER),
            name=params.name,
            spec=spec,
            phase=Phase.RUNNING,
            generation=1,
            birth_id=BirthId("sk-1"),
            boot=boot,
            created_at=AT,
            updated_at=AT,
        )
        view = sandbox_view(record)
        self.sandboxes[view.id] = self._answers[params.request_id] = view
        self._note(view.id, "runtime_started", phase="running")
        return view

    async def _get_or_create(self, params: GetOrCreate) -> dict[str, Any]:
        for seen in self.sandboxes.values():
            if seen.name == params.name and seen.phase is not Phase.DESTROYED:
                return {"sandbox": seen, "is_new": False}
        return {"sandbox": await self._create(params), "is_new": True}

    async def _heartbeat(self, params: verbs.Heartbeat) -> dict[str, float]:
        return {"ttl_s": params.ttl_s}

    async def _find(self, params: verbs.FindSandbox) -> dict[str, Any]:
        for seen in self.sandboxes.values():
            if params.sandbox_id == seen.id or (params.name is not None and params.name == seen.name):
                return {"sandbox_id": seen.id, "owner_id": OWNER, "control_path": str(self.owner_path)}
        raise NotFound("there is no such sandbox", code="sandbox_not_found")

    async def _list(self, params: verbs.ListSandboxes) -> list[SandboxView]:
        return [
            seen
            for seen in self.sandboxes.values()
            if (seen.phase in params.phases if params.phases else seen.phase is not Phase.DESTROYED)
            and params.labels.items() <= seen.labels.items()
        ]

    async def _snapshots(self, params: verbs.Nothing) -> list[SnapshotView]:
        return list(self.snapshots.values())

    async def _snapshot(self, params: verbs.OfSnapshot) -> SnapshotView:
        found = self.snapshots.get(params.snapshot_id)
        if found is None:
            raise NotFound(f"there is no snapshot {params.snapshot_id}", code="snapshot_not_found")
        return found

    async def _pin(self, params: snapshot_verbs.PinSnapshot) -> SnapshotView:
        pinned = (await self._snapshot(params)).model_copy(update={"expires_at": None})
        self.snapshots[params.snapshot_id] = pinned
        return pinned

    async def _collect(self, params: snapshot_verbs.CollectGarbage) -> snapshot_verbs.GarbageReport:
        items = tuple(
            snapshot_verbs.Garbage(kind="snapshot", name=name, why="expired", size_bytes=2048)
            for name in self.snapshots
        )
        if not params.dry_run:
            self.snapshots.clear()
        return snapshot_verbs.GarbageReport(dry_run=params.dry_run, items=items)

    async def _export(self, params: snapshot_verbs.ExportSnapshot) -> snapshot_verbs.Exported:
        found = await self._snapshot(params)
        Path(params.path).write_text(found.model_dump_json())
        return snapshot_verbs.Exported(path=params.path, sha256="a" * 64, size_bytes=5)

    async def _import(self, params: snapshot_verbs.ImportSnapshot) -> SnapshotView:
        text = Path(params.path).read_text()
        made = SnapshotView.model_validate_json(text).model_copy(update={"id": "snback", "name": params.name})
        self.snapshots[made.id] = made
        return made

    async def _delete(self, params: verbs.DeleteSnapshot) -> None:
        await self._snapshot(params)
        del self.snapshots[params.snapshot_id]

    async def _status(self, params: verbs.Nothing) -> dict[str, Any]:
        owner = {
            "owner_id": OWNER,
            "epoch": 3,
            "pid": 42,
            "control_path": str(self.owner_path),
            "sandbox_count": len(self.sandboxes),
        }
        return {
            "installation_id": "i1",
            "machine_id": "m1",
            "directory_pid": 41,
            "owners": [owner],
            "images": ["base"],
            "engine": "fake",
            "sandbox_count": len(self.sandboxes),
        }

    async def _describe(self, params: verbs.OfSandbox) -> Any:
        if self.is_odd:
            return {"id": 7}
        return self.sandboxes[params.sandbox_id]

    def _moving(self, phase: Phase) -> Any:
        async def move(params: verbs.ChangeSandbox) -> SandboxView:
            self._note(params.sandbox_id, f"moved_to_{phase.value}", phase=phase.value)
            return self._replaced(params.sandbox_id, phase=phase)

        return move

    async def _resize(self, params: verbs.ResizeSandbox) -> SandboxView:
        return self._replaced(params.sandbox_id, size=params.size)

    async def _take(self, params: verbs.TakeSnapshot) -> SnapshotView:
        view = SnapshotView.model_validate(
            {
                "id": f"sn{next(self._numbers)}",
                "name": params.name,
                "sandbox_id": params.sandbox_id,
                "generation": 1,
                "size_bytes": 1000,
                "delta_bytes": 10,
                "base_digest": "sha256:0",
                "parent": None,
                "depth": 1,
                "ledger_position": 0,
                "freeze_ms": 1.5,
                "created_at": AT,
                "expires_at": None,
            }
        )
        self.snapshots[view.id] = view
        return view

    async def _lease(self, params: verbs.OfSandbox) -> dict[str, Any]:
        seen = self.sandboxes[params.sandbox_id]
        if seen.phase is not Phase.RUNNING:
            raise FailedPrecondition(
                f"the sandbox is {seen.phase.value}",
                code="sandbox_not_running",
                advice="start it first",
                details={"phase": seen.phase.value},
            )
        path = str(self.state_dir / "c" / "nowhere.sock")
        return {"sandbox_id": seen.id, "control_path": path, "birth_id": "sk-1", "generation": 1, "epoch": 3}

    async def _events(self, params: verbs.ReadEvents) -> dict[str, Any]:
        found = [
            event
            for event in self.journal
            if event.sandbox_id == params.sandbox_id and event.seq > params.after
        ][: params.limit]
        return {"events": found, "cursor": found[-1].seq if found else params.after}

    def _note(self, sandbox_id: str, kind: str, **details: Any) -> None:
        seq = len(self.journal) + 1
        self.journal.append(
            EventView.model_validate(
                {"seq": seq, "sandbox_id": sandbox_id, "at": AT, "kind": kind, "details": details}
            )
        )

    def _replaced(self, sandbox_id: str, **changes: Any) -> SandboxView:
        self.sandboxes[sandbox_id] = self.sandboxes[sandbox_id].model_copy(update=changes)
        return self.sandboxes[sandbox_id]


@contextmanager
def control_on_a_thread(state_dir: Path) -> Iterator[FakeControl]:
    """Serve a fake installation from another thread, as a process of its own would."""
    control = FakeControl(state_dir)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fake control")
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(control.start(), loop).result(timeout=10)
        yield control
        asyncio.run_coroutine_threadsafe(control.close(), loop).result(timeout=10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=10)
        loop.close()
