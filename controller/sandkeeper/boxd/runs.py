"""Commands in the box: start or attach, collect, signal, kill the tree, list.

Owns the run half of boxd's protocol, in typed events. A run is named by its client-made id: starting the same
id again attaches to it. Never invents a result: an exit code is what boxd's end event says, everything else
is an error that says whether the command was admitted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from sandkeeper.boxd import errors
from sandkeeper.boxd.event_reader import STREAMS, RunEventReader
from sandkeeper.boxd.events import (
    RunEnded,
    RunEvent,
    RunLimits,
    RunLost,
    RunOutcome,
    RunOutput,
    RunStarted,
    Stream,
    TerminalSize,
)
from sandkeeper.boxd.exchange import Exchange, FrameReader
from sandkeeper.boxd.run_controls import RunControls
from sandkeeper.boxd.run_documents import outcome_of, selector, start_document
from sandkeeper.boxd.transport import Transport
from sandkeeper.boxd.wire import BadFrame
from sandkeeper.core.errors import NotFound, SandkeeperError
from sandkeeper.core.ids import RunId
from sandkeeper.ports import Ports

MAX_OUTPUT_BYTES = 1024 * 1024
"""Default cap of collected output, per stream."""
TAIL_WAIT_S = 1.0
LATE_START_PAUSES_S = (0.02, 0.1, 0.4)
"""When a start was sent and then cancelled, boxd may read the kill before the start: the kill is tried again."""


class Runs(RunControls):
    """Commands of one box, over its link's transport: starting and following them, and all of `RunControls`."""

    def __init__(self, transport: Transport, *, ports: Ports) -> None:
        super().__init__(transport)
        self._ports = ports
        self._kills: set[asyncio.Task[Any]] = set()

    async def start(
        self,
        argv: Sequence[str],
        *,
        run_id: RunId,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | None = None,
        stdin_open: bool = False,
        timeout_ms: int | None = None,
        max_output_bytes: int | None = None,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
        pty_offset: int = 0,
        detached: bool = False,
        keeps_awake: bool | None = None,
        limits: RunLimits | None = None,
        terminal: TerminalSize | None = None,
    ) -> AsyncGenerator[RunEvent, None]:
        """Start `argv` as `run_id`, or attach to that run, and yield its events; the last is `RunEnded`.

        Leaving the iteration early leaves the command running. After `connection_lost` or `runtime_silent`
        the caller goes on with the same call and the offsets reached. Close the iterator (`aclosing`).

        Args:
            argv: Program and arguments; never a shell line.
            run_id: Made by the caller, 1-64 of letters, digits, `_` and `-`.
            cwd: Folder; None = the box's default.
            env: Variables beside the box's.
            user: User name; None = the box's default.
            stdin: Bytes to feed, then end of file; None = no input.
            stdin_open: Keep stdin open for `send_stdin` (without `stdin`).
            timeout_ms: boxd kills the tree after this time of the box; the host gives up a grace later.
            max_output_bytes: Output sent per stream; the rest is only counted. None = all.
            stdout_offset: First byte wanted of stdout, when attaching.
            stderr_offset: First byte wanted of stderr, when attaching.
            pty_offset: First byte wanted of the terminal's output, when attaching.
            detached: In a session of its own, and not waited for by idle rules.
            keeps_awake: Whether it counts as activity; None = unless detached.
            limits: Limits beside the timeout.
            terminal: Size of the pseudo-terminal to run on; its output is the stream `pty`. None = no terminal.

        Raises:
            InvalidArgument: `exec_not_found`, `exec_denied`, `bad_cwd`, `unknown_user`, `run_id_invalid`,
                `stdin_too_large`, `request_not_encodable`; nothing ran.
            AlreadyExists: `run_id_conflict`: that id ran another argv.
            Unavailable: `draining`, `not_started`, `runtime_unreachable`, `runtime_silent`.
            ResourceExhausted: `pids_exhausted`.
            FailedPrecondition: `stale_epoch`, `wrong_generation`.
            Aborted: `connection_lost`, `box_answer_invalid`; `admitted` is `yes` once the start was seen.
        """
        document = start_document(
            argv,
            run_id=run_id,
            cwd=cwd,
            env=env,
            user=user,
            stdin=stdin,
            stdin_open=stdin_open,
            timeout_ms=timeout_ms,
            max_output_bytes=max_output_bytes,
            detached=detached,
            stdout_offset=stdout_offset,
            stderr_offset=stderr_offset,
            pty_offset=pty_offset,
            keeps_awake=keeps_awake,
            limits=limits,
            terminal=terminal,
        )
        step = f"run {run_id}"
        until_s = None
        if timeout_ms is not None:
            grace_s = self._transport.deadlines.grace_s
            until_s = self._ports.clock.monotonic_s() + timeout_ms / 1000 + grace_s
        exchange = await self._transport.open_stream("/process.Process/Start", document, step=step)
        offsets: dict[Stream, int] = {"stdout": stdout_offset, "stderr": stderr_offset, "pty": pty_offset}
        async with aclosing(self._follow(exchange, step=step, offsets=offsets, until_s=until_s)) as events:
            async for event in events:
                yield event

    async def attach(
        self,
        run_id: RunId,
        *,
        offsets: Mapping[Stream, int] | None = None,
        max_output_bytes: int | None = None,
    ) -> AsyncGenerator[RunEvent, None]:
        """Follow a run that was started before, by anybody, and yield its events; the last is `RunEnded`.

        Output that is kept no more comes as `RunLost`. Close the iterator (`aclosing`).

        Args:
            run_id: Its id.
            offsets: First byte wanted per stream; None = from the beginning.
            max_output_bytes: Output sent per stream; the rest is only counted. None = all.

        Raises:
            NotFound: No such run in this generation, or its result is kept no more.
            SandkeeperError: As `start`.
        """
        wanted = dict.fromkeys(STREAMS, 0) | dict(offsets or {})
        ours: dict[str, Any] = {f"{stream}Offset": wanted[stream] for stream in STREAMS}
        if max_output_bytes is not None:
            ours["maxOutputBytes"] = max_output_bytes
        step = f"attach to run {run_id}"
        document = {"process": selector(run_id), "sandkeeper": ours}
        exchange = await self._transport.open_stream("/process.Process/Connect", document, step=step)
        async with aclosing(self._follow(exchange, step=step, offsets=wanted, until_s=None)) as events:
            async for event in events:
                yield event

    async def _follow(
        self, exchange: Exchange, *, step: str, offsets: Mapping[Stream, int], until_s: float | None
    ) -> AsyncGenerator[RunEvent, None]:
        """Read the events of one stream to its end, each checked."""
        deadlines = self._transport.deadlines
        try:
            reader = RunEventReader(offsets=offsets)
            frames = FrameReader(exchange)
            while (frame := await frames.next(wait_s=deadlines.silence_s)) is not None and not frame.is_end:
                try:
                    event = reader.read(frame.document)
                except BadFrame as error:
                    raise exchange.invalid(str(error)) from error
                if reader.is_started:
                    exchange.admitted = "yes"
                if until_s is not None and self._ports.clock.monotonic_s() > until_s:
                    raise errors.silent(deadlines.grace_s, step=f"{step}: its timeout", admitted="yes")
                if isinstance(event, RunEnded):
                    await _read_tail(frames)
                    yield event
                    return
                if event is not None:
                    yield event
            refused = frame.document.get("error") if frame is not None else None
            if isinstance(refused, dict):
                raise errors.refusal(refused, step=step, admitted="yes" if reader.is_started else "no")
            raise exchange.invalid("the stream ended without an end event")
        finally:
            exchange.close()

    async def collect(
        self,
        argv: Sequence[str],
        *,
        run_id: RunId,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | None = None,
        timeout_ms: int | None = None,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
        limits: RunLimits | None = None,
    ) -> RunOutcome:
        """Run `argv` to its end and return what came of it; a non-zero exit is a result.

        A repeat with the same `run_id` returns the same run's result. When the calling task is cancelled the
        run's tree is killed before the cancellation goes on.

        Raises:
            SandkeeperError: As `start`.
        """
        started: RunStarted | None = None
        kept = {"stdout": bytearray(), "stderr": bytearray()}
        has_loss = False
        events = self.start(
            argv,
            run_id=run_id,
            cwd=cwd,
            env=env,
            user=user,
            stdin=stdin,
            timeout_ms=timeout_ms,
            max_output_bytes=max_output_bytes,
            limits=limits,
        )
        try:
            async with aclosing(events):
                async for event in events:
                    match event:
                        case RunOutput():
                            room = max_output_bytes - len(kept[event.stream])
                            kept[event.stream] += event.data[:room]
                        case RunStarted():
                            started = event
                        case RunLost():
                            has_loss = True
                        case RunEnded():
                            return outcome_of(
                                run_id, started=started, ended=event, kept=kept, has_loss=has_loss
                            )
        except asyncio.CancelledError:
            await self._kill_for_cancel(run_id, was_started=started is not None)
            raise
        raise errors.invalid_answer("no end event", step=f"run {run_id}", admitted="yes")

    async def settle(self) -> None:
        """Wait for kills that cancelled calls left under way."""
        if self._kills:
            await asyncio.wait(self._kills)

    async def _kill_for_cancel(self, run_id: RunId, *, was_started: bool) -> None:
        kill = self._ports.spawn(self._try_kill(run_id, was_started=was_started), name=f"kill {run_id}")
        self._kills.add(kill)
        kill.add_done_callback(self._kills.discard)
        await asyncio.shield(kill)

    async def _try_kill(self, run_id: RunId, *, was_started: bool) -> None:
        """Kill a run whose caller is gone; one that boxd does not know yet may be on its way there."""
        for pause_s in () if was_started else LATE_START_PAUSES_S:
            try:
                await self.kill_tree(run_id)
            except NotFound:
                await self._ports.sleep(pause_s)
            except SandkeeperError:
                break
            else:
                return
        try:
            await self.kill_tree(run_id)
        except SandkeeperError:
            # The cancelled caller gets no answer any more; a box that cannot be reached or does not know the
            # run is the owner's to judge, and a repeat of the run id tells what became of it.
            return


async def _read_tail(frames: FrameReader) -> None:
    """Read what follows the end event, so that the connection can be used again."""
    try:
        while await frames.next(wait_s=TAIL_WAIT_S) is not None:
            pass
    except SandkeeperError:
        # The result is already known; the connection is closed instead of kept.
        return
