"""The trouble: while the attempts run their tests, a container and an owner's process are killed from outside.

Owns the kills, and the proof of what came of them: the lost workspace was rebuilt from the snapshot as generation 2
and its attempt finished, the owner came back with a higher epoch, and commands that ran at that moment ran on.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sandkeeper.cli.demo import kills
from sandkeeper.cli.demo.diary import Diary
from sandkeeper.cli.demo.tries import HANGING, RIGHT, SUITE, WRONG
from sandkeeper.cli.demo.verdict import StepFailed, demand, within
from sandkeeper.cli.demo.witness import Witness
from sandkeeper.client.attempt import AttemptEvent, AttemptReport
from sandkeeper.client.keeper import Keeper
from sandkeeper.client.results import Description, Event, Snapshot
from sandkeeper.core.verbs import OwnerStatus

VICTIM = RIGHT
STEADY = (WRONG, HANGING)
BEGIN_TIMEOUT_S = 120.0
NOTICE_TIMEOUT_S = 30.0
LOOK_EVERY_S = 0.05
SETTLE_S = 0.5


@dataclass(frozen=True, slots=True)
class _Span:
    began_at: datetime
    ended_at: datetime
    generation: int


class Trouble:
    """Listens to the attempts, strikes when their tests run, and judges what came of it."""

    def __init__(
        self, keeper: Keeper, witness: Witness, *, home: Path, diary: Diary, prepared: Snapshot
    ) -> None:
        self._keeper = keeper
        self._witness = witness
        self._home = home
        self._diary = diary
        self._prepared = prepared
        self._running: dict[str, AttemptEvent] = {}
        self._spans: dict[str, _Span] = {}
        self._rebuilt: AttemptEvent | None = None
        self._news = asyncio.Event()
        self._is_over = False
        self._owner_killed_at: datetime | None = None
        self._steady_then: tuple[str, ...] = ()

    def hear(self, event: AttemptEvent) -> None:
        """Take news of an attempt."""
        self._diary.attempt(event)
        if event.kind == "step_started" and event.step == SUITE:
            self._running[event.attempt] = event
        elif event.kind in ("step_finished", "runtime_lost") and event.step == SUITE:
            began = self._running.pop(event.attempt)
            if event.kind == "step_finished":
                self._spans[event.attempt] = _Span(began.at, event.at, event.generation)
        elif event.kind == "rebuilt" and event.attempt == VICTIM:
            self._rebuilt = event
        self._news.set()

    def end(self) -> None:
        """Say that all attempts have ended."""
        self._is_over = True
        self._news.set()

    async def stir(self) -> None:
        """Strike once the tests of the victim and of the steady ones run.

        Raises:
            StepFailed: The attempts ended before, or what was killed was not noticed.
        """
        await self._wait_until_running((VICTIM, *STEADY))
        await asyncio.sleep(SETTLE_S)
        victim = await self._describe(VICTIM)
        owner = await self._owner_of(await self._describe(HANGING))
        await self._kill_container(victim)
        await self._kill_owner(owner)

    async def judge(self, report: AttemptReport) -> None:
        """Look at the finished attempts.

        Raises:
            StepFailed: The victim was not rebuilt, or a steady one was disturbed.
        """
        victim = report[VICTIM]
        demand(
            self._rebuilt is not None and victim.passes == 2,
            "rebuilt",
            f"{VICTIM} began {victim.passes} times",
        )
        demand(victim.generation == 2, "rebuilt", f"{VICTIM} ended in generation {victim.generation}")
        assert victim.sandbox_id is not None
        seen = await (await self._keeper.get(victim.sandbox_id)).describe()
        is_from_snapshot = seen.generation == 2 and seen.boot_snapshot == self._prepared.id
        demand(is_from_snapshot, "rebuilt", f"generation {seen.generation} from {seen.boot_snapshot}")
        self._diary.note(
            "check", f"{VICTIM}: rebuilt from snapshot {self._prepared.id} as generation 2", attempt=VICTIM
        )
        demand(self._owner_killed_at is not None, "owner killed", "it was not")
        assert self._owner_killed_at is not None
        demand(
            HANGING in self._steady_then,
            "commands ran on",
            f"{HANGING} did not run when the owner was killed",
        )
        for name in self._steady_then:
            span = self._spans.get(name)
            demand(span is not None, "commands ran on", f"{name} has no finished test run")
            assert span is not None
            is_across = span.began_at < self._owner_killed_at < span.ended_at
            is_first = span.generation == 1 and report[name].passes == 1
            demand(is_across and is_first, "commands ran on", f"{name} was disturbed: {span}")
            self._diary.note(
                "check",
                f"{name}: its command ran on while its owner was away (generation 1, begun once)",
                attempt=name,
            )

    async def _kill_container(self, victim: Description) -> None:
        assert victim.birth_id is not None
        pid = await self._witness.process_one(victim.birth_id)
        killed = kills.kill_container(pid, birth_id=victim.birth_id)
        self._diary.note(
            "kill",
            f"SIGKILL to {killed.what} of {VICTIM} (pid {pid})",
            attempt=VICTIM,
            pid=pid,
            event="container_killed",
        )
        lost = await self._lost(victim)
        self._diary.note(
            "seen",
            f"{VICTIM}: its owner noticed: runtime 1 {lost.details.get('reason')}",
            attempt=VICTIM,
            event="runtime_lost",
            reason=lost.details.get("reason"),
        )

    async def _kill_owner(self, owner: OwnerStatus) -> None:
        assert owner.pid is not None
        self._steady_then = tuple(name for name in STEADY if name in self._running)
        lock_file = self._home / "owners" / owner.owner_id / "owner.lock"
        self._owner_killed_at = datetime.now(UTC)
        killed = kills.kill_owner(owner.pid, lock_file=lock_file)
        self._diary.note(
            "kill",
            f"kill -9 of {killed.what} (pid {killed.pid}, epoch {owner.epoch}), which keeps {HANGING}",
            pid=killed.pid,
            event="owner_killed",
            epoch=owner.epoch,
        )
        back = await self._back(owner)
        self._diary.note(
            "seen",
            f"{owner.owner_id} is back as pid {back.pid} with epoch {back.epoch}",
            event="owner_back",
            epoch=back.epoch,
            pid=back.pid,
        )

    async def _wait_until_running(self, names: tuple[str, ...]) -> None:
        async with within(BEGIN_TIMEOUT_S, "the tests run together"):
            while not all(name in self._running for name in names):
                if self._is_over:
                    raise StepFailed("trouble", "the attempts ended before their tests ran together")
                self._news.clear()
                await self._news.wait()

    async def _lost(self, victim: Description) -> Event:
        """Wait for the line in the victim's journal that says its first runtime is lost."""
        sandbox = await self._keeper.get(victim.id)
        async with within(NOTICE_TIMEOUT_S, "the lost container is noticed"):
            while True:
                async for event in sandbox.events():
                    if event.kind == "runtime_lost":
                        return event
                await asyncio.sleep(LOOK_EVERY_S)

    async def _back(self, owner: OwnerStatus) -> OwnerStatus:
        """Wait for the owner's next incarnation: another pid and a higher epoch."""
        async with within(NOTICE_TIMEOUT_S, "the owner comes back"):
            while True:
                for seen in (await self._keeper.status()).owners:
                    is_next = seen.pid is not None and seen.pid != owner.pid and seen.epoch > owner.epoch
                    if seen.owner_id == owner.owner_id and is_next:
                        return seen
                await asyncio.sleep(LOOK_EVERY_S)

    async def _describe(self, attempt: str) -> Description:
        sandbox_id = self._running[attempt].sandbox_id
        assert sandbox_id is not None
        seen = await (await self._keeper.get(sandbox_id)).describe()
        demand(seen.generation == 1, attempt, f"is generation {seen.generation} before anything was killed")
        demand(seen.boot_snapshot == self._prepared.id, attempt, "does not start from the prepared snapshot")
        return seen

    async def _owner_of(self, seen: Description) -> OwnerStatus:
        for owner in (await self._keeper.status()).owners:
            if owner.owner_id == seen.owner_id:
                return owner
        raise StepFailed("owner", f"status does not know {seen.owner_id}")
