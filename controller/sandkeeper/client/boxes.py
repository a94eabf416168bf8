"""Leases: the right to talk straight to a sandbox's boxd, kept while it holds and renewed when it does not.

Owns the links to boxes and the owner's leases behind them. It never decides what a lost runtime means for a
command: the caller compares generations.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandkeeper.client.box_link import BoxLink
from sandkeeper.client.routing import Router
from sandkeeper.core.errors import SandkeeperError
from sandkeeper.core.ids import BirthId, SandboxId

GREETING_TIMEOUT_S = 1.0
FRESH_S = 0.5
RENEWED_CODES = frozenset(
    {
        "draining",
        "not_started",
        "runtime_unreachable",
        "runtime_silent",
        "connection_lost",
        "stale_epoch",
        "wrong_generation",
    }
)
"""Codes of boxd's side that mean: ask the owner again before anything else."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What the owner's lease says, as far as this side needs it."""

    control_path: str
    birth_id: BirthId
    generation: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Box:
    """A lease and the link made with it."""

    lease: Terms
    link: BoxLink


class Boxes:
    """The boxes this process may talk to, one link each, for one event loop."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._boxes: dict[SandboxId, Box] = {}
        self._heard_s: dict[SandboxId, float] = {}
        self._held: list[Callable[[], Awaitable[None]]] = []

    async def take(self, sandbox_id: SandboxId) -> Box:
        """Return the box of a sandbox: the one at hand if it answers, else a new lease.

        One that has not been heard of for a moment is greeted first: what is sent to a paused box would lie there
        and be done at some later time.

        Raises:
            SandkeeperError: The owner's reason why there is none: not running, paused, destroyed, unknown.
        """
        box = self._boxes.get(sandbox_id)
        if box is None:
            return await self.renew(sandbox_id)
        if self._now_s() - self._heard_s.get(sandbox_id, 0.0) > FRESH_S:
            try:
                await box.link.greet(timeout_s=GREETING_TIMEOUT_S)
            except SandkeeperError:
                # Whatever it is, the owner knows better.
                return await self.renew(sandbox_id)
            self.heard(sandbox_id)
        return box

    async def phase(self, sandbox_id: SandboxId) -> str:
        """Return where the sandbox stands, in its owner's word."""
        seen = await self._router.owner_raw(sandbox_id, "describe", {"sandbox_id": sandbox_id})
        return str(seen["phase"])

    def heard(self, sandbox_id: SandboxId) -> None:
        """Note that the box answered just now."""
        self._heard_s[sandbox_id] = self._now_s()

    async def renew(self, sandbox_id: SandboxId) -> Box:
        """Ask the owner again; the old link goes on only if the lease is the same."""
        lease = _terms(await self._router.owner_raw(sandbox_id, "lease", {"sandbox_id": sandbox_id}))
        known = self._boxes.get(sandbox_id)
        if known is not None and known.lease == lease:
            return known
        link = BoxLink(
            self._router.installation.state_dir / Path(lease.control_path),
            generation=lease.generation,
            epoch=lease.epoch,
            ports=self._router.ports,
        )
        self._boxes[sandbox_id] = Box(lease=lease, link=link)
        # An owner gives a lease only on a box that runs.
        self.heard(sandbox_id)
        if known is not None:
            await known.link.aclose()
        return self._boxes[sandbox_id]

    async def forget(self, sandbox_id: SandboxId) -> None:
        """Drop the link of a sandbox. Repeating is safe."""
        self._heard_s.pop(sandbox_id, None)
        box = self._boxes.pop(sandbox_id, None)
        if box is not None:
            await box.link.aclose()

    def hold(self, close: Callable[[], Awaitable[None]]) -> None:
        """Have `close`, which may be repeated, called when the boxes are closed."""
        self._held.append(close)

    def release(self, close: Callable[[], Awaitable[None]]) -> None:
        """Take back a `hold`. Repeating is safe."""
        if close in self._held:
            self._held.remove(close)

    async def close(self) -> None:
        """Close all links, and what was made over them. Repeating is safe."""
        held, self._held = self._held, []
        for close in held:
            await close()
        for sandbox_id in list(self._boxes):
            await self.forget(sandbox_id)

    def _now_s(self) -> float:
        return self._router.ports.clock.monotonic_s()


def wants_renewal(error: SandkeeperError) -> bool:
    """Return whether `error` says that the lease may be out of date."""
    return error.code in RENEWED_CODES


def _terms(document: dict[str, Any]) -> Terms:
    return Terms(
        control_path=str(document["control_path"]),
        birth_id=BirthId(document["birth_id"]),
        generation=int(document["generation"]),
        epoch=int(document["epoch"]),
    )
