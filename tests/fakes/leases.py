"""An owner reduced to its leases, and links that cut: what the client's runs need to be tried in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

from sandkeeper.boxd.events import RunEvent
from sandkeeper.client.boxes import Box, Boxes, Terms
from sandkeeper.core.errors import Aborted, SandkeeperError
from sandkeeper.core.ids import BirthId, SandboxId
from sandkeeper.ports import Ports
from tests.fakes.boxd import FakeBoxd, FakeLink


class CuttingRuns:
    """The runs of a fake box over a connection that breaks after each planned number of events."""

    def __init__(
        self, link: FakeLink, *, cuts: list[tuple[int, SandkeeperError]], silences_s: list[float]
    ) -> None:
        self._real = link.runs
        self._cuts = cuts
        self._silences_s = silences_s

    def start(self, *args: Any, **options: Any) -> AsyncGenerator[RunEvent, None]:
        return self._cut(lambda: self._real.start(*args, **options))

    def attach(self, *args: Any, **options: Any) -> AsyncGenerator[RunEvent, None]:
        return self._cut(lambda: self._real.attach(*args, **options))

    async def _cut(
        self, opening: Callable[[], AsyncGenerator[RunEvent, None]]
    ) -> AsyncGenerator[RunEvent, None]:
        if self._silences_s:
            try:
                async with asyncio.timeout(self._silences_s.pop(0)):
                    async for event in opening():
                        yield event
            except TimeoutError as error:
                raise Aborted("cut", code="connection_lost", admitted="yes") from error
            return
        after, failure = self._cuts.pop(0) if self._cuts else (-1, None)
        count = 0
        if failure is not None and after == 0:
            raise failure
        async for event in opening():
            yield event
            count += 1
            if failure is not None and count == after:
                raise failure

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class FakeLeases:
    """`Boxes` over one fake box: what the owner would answer is set by the test.

    Attributes:
        box: The present runtime.
        refusal: What the owner says instead of a lease.
        cuts: Breaks of the connections to come: events let through, and the error.
        silences_s: Breaks after so many seconds, whatever has come.
        asked: How often the owner was asked.
    """

    def __init__(self, *, ports: Ports) -> None:
        self._ports = ports
        self.generation = 0
        self.epoch = 1
        self.refusal: SandkeeperError | None = None
        self.cuts: list[tuple[int, SandkeeperError]] = []
        self.silences_s: list[float] = []
        self.asked = 0
        self._taken: Box | None = None
        self.box = self.new_runtime()

    def new_runtime(self) -> FakeBoxd:
        """Replace the runtime by one of the next generation."""
        self.generation += 1
        self.box = FakeBoxd(BirthId(f"sk-{self.generation}"), ports=self._ports)
        self.box.generation = self.generation
        return self.box

    def as_boxes(self) -> Boxes:
        return cast("Boxes", self)

    async def take(self, sandbox_id: SandboxId) -> Box:
        return self._taken or await self.renew(sandbox_id)

    async def renew(self, sandbox_id: SandboxId) -> Box:
        self.asked += 1
        await self._ports.sleep(0.001)
        if self.refusal is not None:
            raise self.refusal
        terms = Terms("nowhere", self.box.birth_id, self.generation, self.epoch)
        link = self.box.link(generation=self.generation, epoch=self.epoch)
        cast("Any", link).runs = CuttingRuns(link, cuts=self.cuts, silences_s=self.silences_s)
        self._taken = Box(lease=terms, link=cast("Any", link))
        return self._taken

    async def phase(self, sandbox_id: SandboxId) -> str:
        await self._ports.sleep(0.001)
        return "running" if self.refusal is None else str(self.refusal.details.get("phase", "running"))

    def heard(self, sandbox_id: SandboxId) -> None:
        """Nothing: this one is never stale."""

    async def forget(self, sandbox_id: SandboxId) -> None:
        self._taken = None
