"""Commands in a sandbox, from their first byte to an honest result.

Owns starting: run to the end, or begin and leave going; and the kill when the caller is cancelled. How a run is
followed through cuts is `following`; what is kept of it is `run_sight`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

from sandkeeper.boxd.events import RunEnded, RunEvent, RunOutput, RunStarted
from sandkeeper.client.box_link import BoxLink
from sandkeeper.client.boxes import Boxes
from sandkeeper.client.following import Following, NoStatus
from sandkeeper.client.run_order import RunOrder
from sandkeeper.client.run_result import RunResult
from sandkeeper.client.run_sight import Kept, OnOutput, Seen
from sandkeeper.client.unhealthy import explained
from sandkeeper.core.errors import Aborted, SandkeeperError
from sandkeeper.core.ids import RunId, SandboxId
from sandkeeper.ports import Ports

KILL_WAIT_S = 20.0


class Runner:
    """Runs commands in sandboxes through their boxes."""

    def __init__(self, boxes: Boxes, *, ports: Ports) -> None:
        self._boxes = boxes
        self._ports = ports

    async def run(
        self, sandbox_id: SandboxId, order: RunOrder, *, on_output: OnOutput | None = None
    ) -> RunResult:
        """Run `order` to its end. A non-zero exit is a result; cancelling kills the command's tree.

        Raises:
            SandkeeperError: Nothing was admitted, or the box breaks its contract; `admitted` says which.
        """
        following = self._following(sandbox_id, order)
        async with self._owned(sandbox_id, order, seen=following.seen):
            kept = Kept(limit_bytes=order.keep_bytes)
            return await self.finish(following, order.run_id, kept=kept, on_output=on_output)

    async def begin(self, sandbox_id: SandboxId, order: RunOrder) -> Seen:
        """Start `order` and leave it going; return what is known of it. Cancelling kills what was begun.

        Raises:
            SandkeeperError: As `run`; without a word of its start, `admitted` is unknown.
        """
        following = self._following(sandbox_id, order)
        async with self._owned(sandbox_id, order, seen=following.seen):
            async with aclosing(following.sights()) as sights:
                async for sight in sights:
                    if isinstance(sight, RunStarted | RunEnded):
                        return following.seen
                    if isinstance(sight, NoStatus):
                        raise Aborted(sight.message, code="run_interrupted", admitted=following.seen.admitted)
            raise Aborted(f"run {order.run_id}: no start event", admitted=following.seen.admitted)

    async def finish(
        self, following: Following, run_id: RunId, *, kept: Kept, on_output: OnOutput | None = None
    ) -> RunResult:
        """Follow a run to its end and return its result."""
        async with aclosing(following.sights()) as sights:
            async for sight in sights:
                match sight:
                    case RunOutput():
                        kept.take(sight)
                        if on_output is not None:
                            on_output(sight.stream, sight.data)
                    case RunEnded():
                        return kept.result(run_id, seen=following.seen, ended=sight)
                    case NoStatus():
                        return kept.statusless(
                            run_id,
                            seen=following.seen,
                            outcome=sight.outcome,
                            message=sight.message,
                            waited_s=self._ports.clock.monotonic_s() - following.seen.began_s,
                        )
                    case _:
                        kept.take(sight)
        raise Aborted(f"run {run_id}: its events stopped without an end", admitted=following.seen.admitted)

    def _following(self, sandbox_id: SandboxId, order: RunOrder) -> Following:
        now_s = self._ports.clock.monotonic_s()
        return Following(
            self._boxes,
            sandbox_id=sandbox_id,
            run_id=order.run_id,
            opening=_starting(order),
            seen=Seen(began_s=now_s, heard_s=now_s),
            ports=self._ports,
            timeout_s=order.timeout_s,
        )

    @asynccontextmanager
    async def _owned(self, sandbox_id: SandboxId, order: RunOrder, *, seen: Seen) -> AsyncIterator[None]:
        """While its caller waits, a run is the caller's: a cancel, or an error of the caller's own, kills it."""
        try:
            yield
        except SandkeeperError as error:
            error.sandbox_id = error.sandbox_id or sandbox_id
            error.request_id = error.request_id or order.run_id
            told = await explained(error, argv=order.argv, boxes=self._boxes, sandbox_id=sandbox_id)
            if told is error:
                raise
            raise told from error
        except (asyncio.CancelledError, Exception) as ended:
            if seen.admitted != "no":
                await self._kill(sandbox_id, order.run_id, ended)
            raise

    async def _kill(self, sandbox_id: SandboxId, run_id: RunId, ended: BaseException) -> None:
        killing = self._ports.spawn(self._killed(sandbox_id, run_id), name=f"kill {run_id}")
        said = await asyncio.shield(killing)
        if said:
            ended.add_note(said)

    async def _killed(self, sandbox_id: SandboxId, run_id: RunId) -> str:
        """Kill the run's tree; return what is left to say about it, which a cancelled caller cannot be told else."""
        try:
            async with asyncio.timeout(KILL_WAIT_S):
                box = await self._boxes.take(sandbox_id)
                left = await box.link.runs.kill_tree(run_id)
        except TimeoutError:
            return f"run {run_id}: not known to be stopped: no answer in {KILL_WAIT_S:g} s"
        except SandkeeperError as error:
            return f"run {run_id}: not known to be stopped: {error}"
        return f"run {run_id}: not stopped: pids {left}" if left else ""


def _starting(order: RunOrder) -> Callable[[BoxLink, Seen], AsyncGenerator[RunEvent, None]]:
    def opening(link: BoxLink, seen: Seen) -> AsyncGenerator[RunEvent, None]:
        streams = ("pty",) if order.terminal is not None else ("stdout", "stderr")
        reached = min(offset for stream, offset in seen.offsets.items() if stream in streams)
        return link.runs.start(
            order.argv,
            run_id=order.run_id,
            cwd=order.cwd,
            env=order.env,
            user=order.user,
            stdin=order.stdin,
            stdin_open=order.stdin_open,
            timeout_ms=_ms(order.timeout_s),
            max_output_bytes=None if order.send_bytes is None else max(0, order.send_bytes - reached),
            stdout_offset=seen.offsets["stdout"],
            stderr_offset=seen.offsets["stderr"],
            pty_offset=seen.offsets["pty"],
            detached=order.detached,
            limits=order.limits,
            terminal=order.terminal,
        )

    return opening


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else max(1, round(seconds * 1000))
