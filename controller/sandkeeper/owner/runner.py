"""Performs the commands of sandboxes with an engine and their boxes.

Owns the order of engine calls within one command, and that each command ends in exactly one reply. Every
step may be repeated after a crash. Never changes a record, never decides what a failure means for the phase.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import structlog

from sandkeeper.containers.engine import Engine
from sandkeeper.core import commands as cmd
from sandkeeper.core import events as ev
from sandkeeper.core.errors import NotFound, SandkeeperError
from sandkeeper.core.ids import BirthId
from sandkeeper.core.observation import RuntimeObservation, RuntimeState
from sandkeeper.core.record import SandboxRecord
from sandkeeper.core.recovery import Correction, lost_event
from sandkeeper.owner.boxes import Boxes
from sandkeeper.owner.launch import Launcher
from sandkeeper.owner.snapshots import Snapshotter
from sandkeeper.ports import Ports

log = structlog.get_logger(__name__)

STOP_GRACE_S = 5.0
TAIL_BYTES = 4096
RETRY_S = 0.5
MAX_RETRY_S = 10.0
ASKED = 2
SETTLE_TRIES = 20
SETTLE_S = 0.05


@dataclass(frozen=True, slots=True)
class EngineRunner:
    """Performs commands on one engine (see `machine.Runner`)."""

    engine: Engine
    boxes: Boxes
    launcher: Launcher
    snapshotter: Snapshotter
    ports: Ports

    async def perform(self, record: SandboxRecord, command: cmd.Command) -> ev.Reply:
        """Perform one command and return its reply; failures are replies too."""
        match command:
            case cmd.LaunchRuntime():
                return await self.launcher.launch(record, command)
            case cmd.StartKept():
                return await self.launcher.start_kept(record, command)
            case cmd.CommitSnapshot():
                return await self.snapshotter.take(record, command)
            case cmd.RemoveRuntime():
                return await self._remove(command)
            case cmd.FreezeRuntime() | cmd.ThawRuntime() | cmd.UpdateRuntime() | cmd.StopRuntime():
                return await self._try(record, command)
            case _:
                assert_never(command)

    async def observe(self, record: SandboxRecord) -> RuntimeObservation | None:
        """Look at the claimed container, and ask its box who it is when it should be answering.

        A box counts as not answering only if it was running before and after it was asked, twice: a freeze that a
        dead owner had asked for may land in between, and is to be undone, not mourned.
        """
        birth_id = _birth(record)
        for _ in range(ASKED):
            seen = await self.engine.inspect(birth_id)
            if seen is None or seen.state is not RuntimeState.RUNNING or seen.pid is None:
                return seen
            if record.pending is not None or not record.running_since_at:
                return seen
            if await self._readopt(record, seen.pid):
                return seen.model_copy(update={"is_answering": True})
        seen = await self.engine.inspect(birth_id)
        if seen is None or seen.state is not RuntimeState.RUNNING:
            return seen
        return seen.model_copy(update={"is_answering": False})

    async def correct(self, record: SandboxRecord, correction: Correction) -> None:
        """Freeze, thaw or stop the container, as the record says it should be."""
        birth_id = _birth(record)
        match correction:
            case Correction.FREEZE:
                await self.engine.freeze(birth_id)
            case Correction.THAW:
                await self.engine.thaw(birth_id)
                await self._readopt_now(record)
            case Correction.STOP:
                await self.engine.stop(birth_id, grace_s=STOP_GRACE_S)

    async def wait_lost(self, record: SandboxRecord) -> ev.RuntimeLost:
        """Wait until process 1 has gone, and return what the engine then says."""
        birth_id = _birth(record)
        delay_s = RETRY_S
        while True:
            try:
                seen = await self.engine.inspect(birth_id)
                if seen is not None and seen.pid is not None:
                    await self.engine.wait_exit(birth_id, seen.pid)
                return await self._evidence(record)
            except SandkeeperError as error:
                log.warning("watch_waits", birth_id=birth_id, code=error.code, message=error.message)
                await self.ports.sleep(delay_s)
                delay_s = min(MAX_RETRY_S, delay_s * 2)

    async def _evidence(self, record: SandboxRecord) -> ev.RuntimeLost:
        """Ask the engine until it has noticed the end, or long enough: then what it says is the evidence."""
        birth_id = _birth(record)
        seen = await self.engine.inspect(birth_id)
        for _ in range(SETTLE_TRIES):
            if seen is None or seen.state is RuntimeState.EXITED:
                break
            await self.ports.sleep(SETTLE_S)
            seen = await self.engine.inspect(birth_id)
        if seen is None:
            return ev.RuntimeLost(
                generation=record.generation, reason="vanished", message="the engine knows no such container"
            )
        return lost_event(record.generation, seen, output_tail=await self._tail(birth_id))

    async def _tail(self, birth_id: BirthId) -> str:
        """Return the last output, or nothing when the container was removed between two looks."""
        try:
            return await self.engine.output_tail(birth_id, max_bytes=TAIL_BYTES)
        except NotFound as error:
            log.info("output_lost", birth_id=birth_id, code=error.code)
            return ""

    async def _remove(self, command: cmd.RemoveRuntime) -> ev.Reply:
        """Remove the container, however long the engine takes: nothing else may follow before."""
        delay_s = RETRY_S
        while True:
            try:
                await self.engine.remove(command.birth_id)
                await self.boxes.discard(command.birth_id)
                return ev.RuntimeRemoved(command_id=command.command_id)
            except SandkeeperError as error:
                log.warning(
                    "remove_failed", birth_id=command.birth_id, code=error.code, message=error.message
                )
                await self.ports.sleep(delay_s)
                delay_s = min(MAX_RETRY_S, delay_s * 2)

    async def _try(
        self,
        record: SandboxRecord,
        command: cmd.FreezeRuntime | cmd.ThawRuntime | cmd.UpdateRuntime | cmd.StopRuntime,
    ) -> ev.Reply:
        command_id = command.command_id
        try:
            match command:
                case cmd.FreezeRuntime():
                    await self._freeze(record, command)
                    return ev.RuntimeFrozen(command_id=command_id)
                case cmd.ThawRuntime():
                    await self.engine.thaw(command.birth_id)
                    await self._readopt_now(record)
                    return ev.RuntimeThawed(command_id=command_id)
                case cmd.UpdateRuntime():
                    await self.engine.update(command.birth_id, command.size)
                    return ev.RuntimeResized(command_id=command_id)
                case cmd.StopRuntime():
                    return await self._stop(command)
        except SandkeeperError as error:
            return ev.CommandFailed(
                command_id=command_id,
                category=error.category,
                code=error.code,
                message=f"{command.kind}: {error.message}",
                advice=error.advice,
            )

    async def _freeze(self, record: SandboxRecord, command: cmd.FreezeRuntime) -> None:
        """Freeze, unless an earlier incarnation has: a frozen box would not answer the quiesce."""
        seen = await self.engine.inspect(command.birth_id)
        if seen is not None and seen.state is RuntimeState.FROZEN:
            return
        await self.boxes.quiesce(record, reason="pause")
        try:
            await self.engine.freeze(command.birth_id)
        except SandkeeperError:
            await self._resume(record)
            raise

    async def _resume(self, record: SandboxRecord) -> None:
        """Let a box that was not frozen after all work again; by itself it would after its drain ends."""
        try:
            await self.boxes.resume(record)
        except SandkeeperError as error:
            log.warning("box_not_resumed", birth_id=record.birth_id, code=error.code, message=error.message)

    async def _stop(self, command: cmd.StopRuntime) -> ev.Reply:
        if await self.engine.inspect(command.birth_id) is None:
            await self.boxes.discard(command.birth_id)
            return ev.RuntimeRemoved(command_id=command.command_id)
        await self.engine.stop(command.birth_id, grace_s=STOP_GRACE_S)
        return ev.RuntimeStopped(command_id=command.command_id)

    async def _readopt_now(self, record: SandboxRecord) -> None:
        seen = await self.engine.inspect(_birth(record))
        if seen is not None and seen.pid is not None:
            await self._readopt(record, seen.pid)

    async def _readopt(self, record: SandboxRecord, pid: int) -> bool:
        """Tell a living box who owns it now; False when it does not answer as this generation."""
        birth_id = _birth(record)
        try:
            self.boxes.prepare(birth_id, is_fresh=False)
            await self.boxes.hand_over(birth_id, pid=pid)
            await self.boxes.go(record)
            await self.boxes.resume(record)
        except SandkeeperError as error:
            log.warning("box_unanswering", birth_id=birth_id, code=error.code, message=error.message)
            return False
        return True


def _birth(record: SandboxRecord) -> BirthId:
    if record.birth_id is None:
        raise AssertionError(f"{record.sandbox_id} claims no runtime")
    return record.birth_id
