"""Brings a runtime up: container, process 1, listener, go. Every step is idempotent through the birth id.

Owns the order of a launch and what is reported when a step fails. Never removes what it made: a failed
launch is removed by the command that follows its reply.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from sandkeeper.containers.engine import Engine, RuntimeSettings
from sandkeeper.core import commands as cmd
from sandkeeper.core import events as ev
from sandkeeper.core.errors import Aborted, DataLoss, SandkeeperError
from sandkeeper.core.ids import BirthId
from sandkeeper.core.observation import RuntimeObservation, RuntimeState
from sandkeeper.core.record import SandboxRecord
from sandkeeper.core.snapshots import snapshot_missing
from sandkeeper.owner.boxes import Boxes
from sandkeeper.ports import Ports

log = structlog.get_logger(__name__)

TAIL_BYTES = 4096
STOP_GRACE_S = 2.0
FINAL_CODES = frozenset({"image_missing", "snapshot_missing", "state_lost", "boxd_protocol"})

SettingsFor = Callable[[SandboxRecord, cmd.LaunchRuntime], RuntimeSettings]


@dataclass(frozen=True, slots=True)
class Launcher:
    """Launches runtimes on one engine."""

    engine: Engine
    boxes: Boxes
    settings_for: SettingsFor
    ports: Ports

    async def launch(self, record: SandboxRecord, command: cmd.LaunchRuntime) -> ev.Reply:
        """Create and start the container and wait until boxd works for it."""
        if command.delay_s:
            await self.ports.sleep(command.delay_s)
        try:
            async with asyncio.timeout(record.spec.start_timeout_s):
                self.boxes.prepare(command.birth_id, is_fresh=True)
                await self._create(record, command)
                await self._bring_up(record, command.birth_id)
        except (SandkeeperError, OSError) as error:
            return await self._failure(record, command, error)
        return ev.RuntimeStarted(command_id=command.command_id)

    async def start_kept(self, record: SandboxRecord, command: cmd.StartKept) -> ev.Reply:
        """Start a kept container again; when it fails the container is stopped again, with its files."""
        try:
            async with asyncio.timeout(record.spec.start_timeout_s):
                if await self.engine.inspect(command.birth_id) is None:
                    raise _state_lost(record)
                self.boxes.prepare(command.birth_id, is_fresh=True)
                await self.engine.update(command.birth_id, command.size)
                await self._bring_up(record, command.birth_id)
        except (SandkeeperError, OSError) as error:
            reply = await self._failure(record, command, error)
            if not reply.is_final:
                await self._stop_again(command.birth_id)
            return reply
        return ev.RuntimeStarted(command_id=command.command_id)

    async def _create(self, record: SandboxRecord, command: cmd.LaunchRuntime) -> None:
        try:
            await self.engine.create(self.settings_for(record, command))
        except DataLoss as error:
            if error.code != "image_missing" or command.boot.snapshot_id is None:
                raise
            raise snapshot_missing(command.boot.snapshot_id) from error

    async def _bring_up(self, record: SandboxRecord, birth_id: BirthId) -> None:
        seen = await self.engine.inspect(birth_id)
        if seen is None or seen.state is not RuntimeState.RUNNING:
            await self.engine.start(birth_id)
            seen = await self.engine.inspect(birth_id)
        if seen is None or seen.pid is None:
            raise _died(birth_id, seen)
        exited = self.ports.spawn(self.engine.wait_exit(birth_id, seen.pid), name=f"exit {birth_id}")
        ready = self.ports.spawn(self._make_ready(record, birth_id, seen.pid), name=f"ready {birth_id}")
        try:
            await asyncio.wait((exited, ready), return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                raise _died(birth_id, await self.engine.inspect(birth_id))
            ready.result()
        finally:
            exited.cancel()
            ready.cancel()
            await asyncio.gather(exited, ready, return_exceptions=True)

    async def _make_ready(self, record: SandboxRecord, birth_id: BirthId, pid: int) -> None:
        await self.boxes.hand_over(birth_id, pid=pid)
        await self.boxes.go(record)
        await self.boxes.bring_up(record)

    async def _failure(
        self,
        record: SandboxRecord,
        command: cmd.LaunchRuntime | cmd.StartKept,
        error: SandkeeperError | OSError,
    ) -> ev.LaunchFailed:
        match error:
            case SandkeeperError():
                code, message = error.code, f"{command.kind}: {error.message}"
            case TimeoutError():
                code, message = (
                    "start_timeout",
                    f"{command.kind}: not ready in {record.spec.start_timeout_s} s",
                )
            case _:
                # The folders and sockets of the box: `Boxes.prepare` is what touches this machine's disk.
                code = "disk_full" if error.errno == errno.ENOSPC else "box_folder_failed"
                message = f"{command.kind}: {error.strerror or error}"
        details = error.details if isinstance(error, SandkeeperError) else {}
        seen, tail = None, ""
        try:
            seen = await self.engine.inspect(command.birth_id)
            last_words = await self.engine.output_tail(command.birth_id, max_bytes=TAIL_BYTES)
            tail = str(details.get("output_tail") or last_words)
        except SandkeeperError as second:
            message = f"{message}; no evidence: {second.code}"
        return ev.LaunchFailed(
            command_id=command.command_id,
            reason=code,
            message=message,
            exit_code=details.get("exit_code", seen.exit_code if seen else None),
            oom_killed=seen.oom_killed if seen else False,
            output_tail=tail,
            is_final=code in FINAL_CODES,
        )

    async def _stop_again(self, birth_id: BirthId) -> None:
        try:
            await self.engine.stop(birth_id, grace_s=STOP_GRACE_S)
        except SandkeeperError as error:
            # The record says stopped: the next check of the sandbox finds it running and stops it then.
            log.warning("stop_failed", birth_id=birth_id, code=error.code, message=error.message)


def _died(birth_id: BirthId, seen: RuntimeObservation | None) -> Aborted:
    exit_code = seen.exit_code if seen else None
    return Aborted(
        f"process 1 of {birth_id} ended before it was ready, exit code {exit_code}",
        code="launch_died",
        admitted="yes",
        details={"exit_code": exit_code},
    )


def _state_lost(record: SandboxRecord) -> DataLoss:
    age = f", the last valid snapshot is {record.boot.snapshot_id}" if record.boot.snapshot_id else ""
    return DataLoss(
        f"the stopped container is gone, its files are lost{age}",
        code="state_lost",
        advice="start it again to go back to that state knowingly, or destroy it",
        sandbox_id=record.sandbox_id,
    )
