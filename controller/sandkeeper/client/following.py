"""Following one run through cut connections, new leases and new owners, to its end or to the word that there is none.

Owns the loop that attaches again with the same run id while the generation is the same. It never starts a command a
second time once the first may have been admitted, and never makes an exit code up: what has no wait status comes as
`NoStatus`. What becomes of the output is its caller's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from sandkeeper.boxd.events import RunEnded, RunEvent
from sandkeeper.client.box_link import BoxLink
from sandkeeper.client.boxes import Box, Boxes, wants_renewal
from sandkeeper.client.run_result import RunResultOutcome
from sandkeeper.client.run_sight import Seen
from sandkeeper.core.errors import Aborted, SandkeeperError
from sandkeeper.core.ids import RunId, SandboxId
from sandkeeper.ports import Ports

NO_WORD_FOR_S = 60.0
"""How long a run may go without any word before its result is `unknown`."""
PAUSED_FOR_S = 86_400.0
GRACE_S = 45.0
"""Beyond the run's own timeout: boxd's kill and the attaching again."""
HOST_GRACE_S = 1.0
"""Beyond the run's own timeout: then this side looks whether the box still answers."""
LOOK_AGAIN_S = 2.0
GREETING_S = 0.4
PHASE_S = 0.4
BACKOFF_FIRST_S = 0.05
BACKOFF_MOST_S = 1.0

_STANDING_STILL = ("paused", "snapshotting")

Opening = Callable[[BoxLink, Seen], AsyncGenerator[RunEvent, None]]
"""Starts the run, or attaches to it, from the offsets seen."""


@dataclass(frozen=True, slots=True)
class NoStatus:
    """The last thing there is to say of a run without a wait status, and why there is none."""

    outcome: RunResultOutcome
    message: str


class Following:
    """One run seen from here, by one reader.

    Attributes:
        seen: What is known of it so far; offsets are where this reader is.
    """

    def __init__(
        self,
        boxes: Boxes,
        *,
        sandbox_id: SandboxId,
        run_id: RunId,
        opening: Opening,
        seen: Seen,
        ports: Ports,
        timeout_s: float | None = None,
    ) -> None:
        self.seen = seen
        self._boxes = boxes
        self._sandbox_id = sandbox_id
        self._run_id = run_id
        self._opening = opening
        self._ports = ports
        self._timeout_s = timeout_s
        self._look_at_s = 0.0 if timeout_s is None else timeout_s + HOST_GRACE_S

    async def sights(self) -> AsyncGenerator[RunEvent | NoStatus, None]:
        """Yield what comes; the last is `RunEnded` or `NoStatus`. Close it (`aclosing`).

        Raises:
            SandkeeperError: Nothing was admitted, or the box breaks its contract; `admitted` says which.
        """
        seen = self.seen
        delay_s = 0.0
        is_first = True
        while True:
            try:
                box = await self._box(is_first=is_first)
            except SandkeeperError as error:
                if seen.admitted == "no":
                    raise
                if error.code == "sandbox_paused" and seen.admitted == "unknown":
                    # Nobody has seen it begin: the caller may resume and repeat with the same request id.
                    error.admitted = "unknown"
                    raise
                if error.details.get("phase") in _STANDING_STILL:
                    await self._wait_while_still(error)
                    continue
                yield _without_lease(error)
                return
            is_first = False
            if seen.admitted != "no" and seen.generation not in (0, box.lease.generation):
                yield NoStatus("interrupted", f"runtime {seen.generation} was lost while it ran")
                return
            heard_s = seen.heard_s
            try:
                async with aclosing(self._listen(box)) as events:
                    async for event in events:
                        yield event
                        if isinstance(event, RunEnded):
                            return
            except TimeoutError:
                if await self._is_silent(box):
                    yield self._overdue()
                    return
                continue
            except SandkeeperError as error:
                if error.admitted != "no":
                    seen.admitted = "yes" if seen.admitted == "yes" else error.admitted
                if not wants_renewal(error):
                    raise
                if seen.heard_s > heard_s:
                    # It was attached until now, however long the command has been silent.
                    seen.heard_s = self._now_s()
                if self._is_over():
                    if seen.admitted == "no":
                        raise
                    yield NoStatus("unknown", str(error))
                    return
            is_heard = seen.heard_s > heard_s
            delay_s = 0.0 if is_heard else min(BACKOFF_MOST_S, max(BACKOFF_FIRST_S, delay_s * 2))
            if delay_s:
                await self._ports.sleep(delay_s)

    async def _box(self, *, is_first: bool) -> Box:
        if is_first:
            return await self._boxes.take(self._sandbox_id)
        return await self._boxes.renew(self._sandbox_id)

    async def _listen(self, box: Box) -> AsyncGenerator[RunEvent, None]:
        """Start or attach once and yield what comes.

        Raises:
            TimeoutError: This side's own deadline has passed.
        """
        seen = self.seen
        before = seen.admitted
        if not seen.generation or before == "no":
            seen.generation = box.lease.generation
        if before == "no":
            # From the first byte sent on, only boxd can say that nothing was begun.
            seen.admitted = "unknown"
        try:
            async with aclosing(self._opening(box.link, seen)) as events:
                while (event := await self._next(events)) is not None:
                    seen.heard_s = self._now_s()
                    seen.note(event)
                    if isinstance(event, RunEnded):
                        self._boxes.heard(self._sandbox_id)
                    yield event
                    if isinstance(event, RunEnded):
                        return
        except SandkeeperError as error:
            if error.admitted == "no" and seen.admitted == "unknown":
                seen.admitted = before
            raise
        raise Aborted(f"run {self._run_id}: its events stopped without an end", admitted=seen.admitted)

    async def _next(self, events: AsyncGenerator[RunEvent, None]) -> RunEvent | None:
        if self._timeout_s is None:
            return await anext(events, None)
        left_s = self.seen.began_s + self.seen.paused_s + self._look_at_s - self._now_s()
        async with asyncio.timeout(max(0.0, left_s)):
            return await anext(events, None)

    async def _is_silent(self, box: Box) -> bool:
        """Return whether the box is dumb though its owner knows of nothing that makes it stand still."""
        self._look_at_s = self._now_s() - self.seen.began_s - self.seen.paused_s + LOOK_AGAIN_S
        try:
            await box.link.greet(timeout_s=GREETING_S)
        except SandkeeperError as error:
            if error.code != "runtime_silent":
                return False  # it is gone, and the next lease tells why
        else:
            return False
        try:
            async with asyncio.timeout(PHASE_S):
                return await self._boxes.phase(self._sandbox_id) not in _STANDING_STILL
        except (TimeoutError, SandkeeperError):
            # An owner without a word neither: nobody says that the box is paused.
            return True

    def _overdue(self) -> NoStatus:
        return NoStatus(
            "timeout",
            f"its {self._timeout_s:g} s are over and the box does not answer: not known to be stopped",
        )

    def _is_over(self) -> bool:
        now_s = self._now_s()
        if now_s - self.seen.heard_s > NO_WORD_FOR_S:
            return True
        if self._timeout_s is None:
            return False
        return now_s - self.seen.began_s - self.seen.paused_s > self._timeout_s + GRACE_S

    async def _wait_while_still(self, error: SandkeeperError) -> None:
        """A frozen run's deadline is frozen too: wait for the thaw, without counting."""
        if self.seen.paused_s > PAUSED_FOR_S:
            raise error
        began_s = self._now_s()
        await self._ports.sleep(BACKOFF_MOST_S)
        now_s = self._now_s()
        self.seen.paused_s += now_s - began_s
        self.seen.heard_s = now_s

    def _now_s(self) -> float:
        return self._ports.clock.monotonic_s()


def _without_lease(error: SandkeeperError) -> NoStatus:
    """The owner gives no lease for an admitted run: the runtime is gone, or nobody knows."""
    is_gone = error.category in ("FailedPrecondition", "NotFound", "DataLoss", "Aborted")
    return NoStatus("interrupted" if is_gone else "unknown", str(error))
