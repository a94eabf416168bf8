"""One command in a sandbox, from its first byte to an honest result.

Owns the loop that follows a run through cut connections, new leases and new owners: it attaches again with the
same run id while the generation is the same, and says `interrupted` when it is not. It never starts a command a
second time once the first may have been admitted, and never makes an exit code up.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from sandkeeper.client.boxes import Box, Boxes, wants_renewal
from sandkeeper.client.run_order import RunOrder
from sandkeeper.client.run_result import RunResult, RunResultOutcome
from sandkeeper.client.run_sight import OnOutput, Seen, result_of, take
from sandkeeper.core.errors import Aborted, SandkeeperError
from sandkeeper.core.ids import RunId, SandboxId
from sandkeeper.ports import Ports

NO_WORD_FOR_S = 60.0
"""How long a run may go without any word before its result is `unknown`."""
PAUSED_FOR_S = 86_400.0
GRACE_S = 45.0
"""Beyond the run's own timeout: boxd's kill and the attaching again."""
BACKOFF_FIRST_S = 0.05
BACKOFF_MOST_S = 1.0
KILL_WAIT_S = 20.0

_STANDING_STILL = ("paused", "snapshotting")


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
        now_s = self._ports.clock.monotonic_s()
        seen = Seen(began_s=now_s, heard_s=now_s)
        try:
            return await self._follow(sandbox_id, order, seen, on_output)
        except asyncio.CancelledError as cancel:
            if seen.admitted != "no":
                await self._kill(sandbox_id, order.run_id, cancel)
            raise
        except SandkeeperError as error:
            error.sandbox_id = error.sandbox_id or sandbox_id
            error.request_id = error.request_id or order.run_id
            raise

    async def _follow(
        self, sandbox_id: SandboxId, order: RunOrder, seen: Seen, on_output: OnOutput | None
    ) -> RunResult:
        delay_s = 0.0
        is_first = True
        while True:
            try:
                box = await (self._boxes.take(sandbox_id) if is_first else self._boxes.renew(sandbox_id))
            except SandkeeperError as error:
                if seen.admitted == "no":
                    raise
                if error.code == "sandbox_paused" and seen.admitted == "unknown":
                    # Nobody has seen it begin: the caller may resume and repeat with the same request id.
                    error.admitted = "unknown"
                    raise
                if error.details.get("phase") in _STANDING_STILL:
                    await self._wait_while_still(seen, error)
                    continue
                return self._without_status(order, seen, error)
            is_first = False
            if seen.admitted != "no" and box.lease.generation != seen.generation:
                return self._interrupted(order, seen, f"runtime {seen.generation} was lost while it ran")
            heard_s = seen.heard_s
            try:
                return await self._listen(sandbox_id, box, order, seen, on_output)
            except SandkeeperError as error:
                if error.admitted != "no":
                    seen.admitted = "yes" if seen.admitted == "yes" else error.admitted
                if not wants_renewal(error):
                    raise
                if seen.heard_s > heard_s:
                    # It was attached until now, however long the command has been silent.
                    seen.heard_s = self._ports.clock.monotonic_s()
                if self._is_over(order, seen):
                    if seen.admitted == "no":
                        raise
                    return self._unknown(order, seen, error)
            delay_s = (
                0.0 if seen.heard_s > heard_s else min(BACKOFF_MOST_S, max(BACKOFF_FIRST_S, delay_s * 2))
            )
            if delay_s:
                await self._ports.sleep(delay_s)

    async def _listen(
        self, sandbox_id: SandboxId, box: Box, order: RunOrder, seen: Seen, on_output: OnOutput | None
    ) -> RunResult:
        """Start or attach once and take what comes, to the end event."""
        left = None if order.send_bytes is None else max(0, order.send_bytes - min(seen.offsets.values()))
        events = box.link.runs.start(
            order.argv,
            run_id=order.run_id,
            cwd=order.cwd,
            env=order.env,
            user=order.user,
            stdin=order.stdin,
            timeout_ms=max(1, round(order.timeout_s * 1000)),
            max_output_bytes=left,
            stdout_offset=seen.offsets["stdout"],
            stderr_offset=seen.offsets["stderr"],
        )
        before = seen.admitted
        if before == "no":
            seen.generation = box.lease.generation
            # From the first byte sent on, only boxd can say that nothing was begun.
            seen.admitted = "unknown"
        try:
            async with aclosing(events):
                async for event in events:
                    seen.heard_s = self._ports.clock.monotonic_s()
                    ended = take(event, order, seen, on_output)
                    if ended is not None:
                        self._boxes.heard(sandbox_id)
                        return result_of(order, seen, ended)
        except SandkeeperError as error:
            if error.admitted == "no" and seen.admitted == "unknown":
                seen.admitted = before
            raise
        raise Aborted(f"run {order.run_id}: its events stopped without an end", admitted=seen.admitted)

    def _is_over(self, order: RunOrder, seen: Seen) -> bool:
        now_s = self._ports.clock.monotonic_s()
        is_overdue = now_s - seen.began_s - seen.paused_s > order.timeout_s + GRACE_S
        return is_overdue or now_s - seen.heard_s > NO_WORD_FOR_S

    async def _wait_while_still(self, seen: Seen, error: SandkeeperError) -> None:
        """A frozen run's deadline is frozen too: wait for the thaw, without counting."""
        if seen.paused_s > PAUSED_FOR_S:
            raise error
        began_s = self._ports.clock.monotonic_s()
        await self._ports.sleep(BACKOFF_MOST_S)
        now_s = self._ports.clock.monotonic_s()
        seen.paused_s += now_s - began_s
        seen.heard_s = now_s

    async def _kill(self, sandbox_id: SandboxId, run_id: RunId, cancel: asyncio.CancelledError) -> None:
        killing = self._ports.spawn(self._killed(sandbox_id, run_id), name=f"kill {run_id}")
        said = await asyncio.shield(killing)
        if said:
            cancel.add_note(said)

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

    def _without_status(self, order: RunOrder, seen: Seen, error: SandkeeperError) -> RunResult:
        """The owner gives no lease for an admitted run: the runtime is gone, or nobody knows."""
        if error.category in ("FailedPrecondition", "NotFound", "DataLoss", "Aborted"):
            return self._interrupted(order, seen, str(error))
        return self._unknown(order, seen, error)

    def _interrupted(self, order: RunOrder, seen: Seen, message: str) -> RunResult:
        return self._statusless(order, seen, outcome="interrupted", message=message)

    def _unknown(self, order: RunOrder, seen: Seen, error: SandkeeperError) -> RunResult:
        return self._statusless(order, seen, outcome="unknown", message=str(error))

    def _statusless(
        self, order: RunOrder, seen: Seen, *, outcome: RunResultOutcome, message: str
    ) -> RunResult:
        return RunResult(
            exit_code=None,
            outcome=outcome,
            signal=0,
            oom_killed=False,
            stdout_bytes=bytes(seen.kept["stdout"]),
            stderr_bytes=bytes(seen.kept["stderr"]),
            truncated=True,
            stdout_size_bytes=seen.offsets["stdout"],
            stderr_size_bytes=seen.offsets["stderr"],
            duration_ms=round((self._ports.clock.monotonic_s() - seen.began_s) * 1000, 3),
            generation=seen.generation,
            run_id=order.run_id,
            admitted=seen.admitted,
            message=message,
        )
