"""What every part of a sandbox that lives in its box has in common: work on a lease, renewed when it is out of date.

Owns that one retry. Whether a repeat is safe is said by each call.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

from sandkeeper.client.box_link import BoxLink
from sandkeeper.client.boxes import Box, Boxes, wants_renewal
from sandkeeper.core.errors import Aborted, SandkeeperError
from sandkeeper.core.ids import SandboxId
from sandkeeper.ports import Ports

MAX_TRIES = 5

_T = TypeVar("_T")


class Boxed:
    """Base of the parts of a sandbox handle that talk to its box."""

    def __init__(self, sandbox_id: SandboxId, *, boxes: Boxes, ports: Ports) -> None:
        self._sandbox_id = sandbox_id
        self._boxes = boxes
        self._ports = ports

    async def _with_box(
        self,
        work: Callable[[BoxLink], Awaitable[_T]],
        *,
        is_repeatable: bool = True,
        generation: int | None = None,
    ) -> _T:
        """Do `work` on the box at hand; on a lease out of date get a new one and do it again.

        Raises:
            Aborted: `run_interrupted`: the runtime is not `generation` any more.
        """
        box = await self._boxes.take(self._sandbox_id)
        for number in range(1, MAX_TRIES + 1):
            _check_generation(box, generation)
            try:
                return await work(box.link)
            except SandkeeperError as error:
                error.sandbox_id = error.sandbox_id or self._sandbox_id
                may_repeat = is_repeatable or error.admitted == "no"
                if number == MAX_TRIES or not wants_renewal(error) or not may_repeat:
                    raise
            if number > 1:
                await self._ports.sleep(0.05 * 2**number)
            box = await self._boxes.renew(self._sandbox_id)
        raise AssertionError("the last try returns or raises")

    async def _stream(
        self, opening: Callable[[BoxLink], AsyncGenerator[_T, None]]
    ) -> AsyncGenerator[_T, None]:
        """Yield what the box streams; opened again on a new lease only while nothing has come."""
        box = await self._boxes.take(self._sandbox_id)
        for number in range(1, MAX_TRIES + 1):
            has_begun = False
            try:
                async with aclosing(opening(box.link)) as stream:
                    async for item in stream:
                        has_begun = True
                        yield item
                return
            except SandkeeperError as error:
                error.sandbox_id = error.sandbox_id or self._sandbox_id
                if number == MAX_TRIES or has_begun or not wants_renewal(error):
                    raise
            box = await self._boxes.renew(self._sandbox_id)


def _check_generation(box: Box, generation: int | None) -> None:
    if generation not in (None, box.lease.generation):
        raise Aborted(
            f"runtime {generation} was lost; {box.lease.generation} runs now",
            code="run_interrupted",
            admitted="no",
        )
