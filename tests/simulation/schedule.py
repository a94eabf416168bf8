"""One seeded schedule: clients ask, chaos strikes, owners die and come back; then everything must be true."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from sandkeeper.containers.reaper import KnownNames, reap_once
from sandkeeper.core.errors import SandkeeperError, Unavailable
from sandkeeper.core.ids import DEFAULT_TENANT, RequestId, SandboxId
from sandkeeper.core.record import Phase
from sandkeeper.core.sizes import NAMED_SIZES
from sandkeeper.core.spec import BootImage, OnLost, SandboxSpec
from sandkeeper.virtual import VirtualLoop, run_virtual, virtual_ports
from tests.fakes.journal import claims_of
from tests.simulation.notes import NoteTaker
from tests.simulation.promises import BrokenPromiseError, Written
from tests.simulation.world import BASE_IMAGE, INSTALLATION, JOURNAL, World

ANSWER_WITHIN_S = 900.0
SETTLE_S = 400.0
VERBS = ("pause", "resume", "take_snapshot", "take_snapshot", "stop", "start", "start", "destroy", "resize")


def run_schedule(seed: int) -> dict[str, int]:
    """Run one schedule and return how much happened in it.

    Raises:
        BrokenPromiseError: A promise was broken; the message says which, the notes say how it came.
    """
    loop = VirtualLoop()
    schedule = Schedule(seed, loop)
    try:
        return run_virtual(schedule.run(), loop=loop)
    except BrokenPromiseError as error:
        for line in schedule.story[-60:]:
            error.add_note(line)
        raise


class Schedule:
    """The clients and the chaos of one seed."""

    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        self._dice = random.Random(seed)
        self._ports = virtual_ports(loop, seed=seed + 1)
        self._world = World(self._ports, dice=random.Random(seed + 2))
        self._notes = NoteTaker(SandboxId("sb0"), ask=self._until_answered, ports=self._ports, seed=seed + 3)
        self._is_calm = False
        self.story: list[str] = []
        self.counts = {"answers": 0, "refusals": 0, "crashes": 0, "kills": 0, "stops": 0, "outages": 0}

    async def run(self) -> dict[str, int]:
        """Play the schedule to its end and check the promises."""
        chaos = [
            self._ports.spawn(self._supervise(), name="supervisor"),
            self._ports.spawn(self._strike(), name="chaos"),
        ]
        clients = [self._client(number) for number in range(self._dice.randint(1, 3))]
        clients.append(self._notes.play())
        playing = asyncio.gather(*clients)
        try:
            await asyncio.wait({playing, *chaos}, return_when=asyncio.FIRST_COMPLETED)
            for task in (*chaos, playing):
                if task.done():
                    task.result()
        except BrokenPromiseError:
            self._world.promises.raise_broken()
            raise
        finally:
            if not playing.done() and any(task.done() for task in chaos):
                playing.cancel()
                await asyncio.wait({playing})
        await playing
        self._is_calm = True
        self._world.disk.is_full = False
        if not self._world.machine.is_engine_up:
            self._world.machine.start_engine()
        await self._ports.sleep(SETTLE_S)
        for task in chaos:
            if task.done():
                task.result()
            task.cancel()
        await self._reap()
        self._world.promises.at_end()
        self._notes.check(self._world.disk.journal(JOURNAL))
        return self.counts

    async def _supervise(self) -> None:
        """Do what Ray does: make a new incarnation when one has died."""
        while True:
            crash_at = (
                None
                if self._is_calm
                else self._dice.choice((None, self._dice.randint(1, 30), self._dice.randint(1, 120)))
            )
            await self._world.incarnate(crash_at=crash_at)
            while not self._world.owner.process.is_dead:
                await self._ports.sleep(0.1)
            self.counts["crashes"] += 1
            self._tell(f"{self._world.owner.process.name} died after {self._world.owner.process.trace[-1:]}")
            await self._ports.sleep(self._dice.choice((0.1, 0.5, 3.0)))

    async def _strike(self) -> None:
        while not self._is_calm:
            await self._ports.sleep(self._dice.expovariate(1 / 6))
            if self._is_calm:
                return
            await self._dice.choice(
                (self._kill_container, self._stop_owner, self._stop_engine, self._fill_disk)
            )()

    async def _kill_container(self) -> None:
        alive = [birth for birth, runtime in self._world.machine.runtimes.items() if runtime.is_alive]
        if alive:
            birth_id = self._dice.choice(alive)
            self.counts["kills"] += 1
            self._tell(f"chaos kills container {birth_id}")
            self._world.machine.kill_container(birth_id, oom=self._dice.random() < 0.3)

    async def _stop_owner(self) -> None:
        """The owner stands still; a new one is made; the old one wakes up late."""
        old = self._world.owner.process
        if old.is_dead:
            return
        self.counts["stops"] += 1
        self._tell(f"chaos stops {old.name}")
        old.stop()
        await self._ports.sleep(self._dice.choice((0.5, 5.0)))
        if self._dice.random() < 0.7:
            self._tell(f"a new owner is made beside {old.name}")
            await self._world.incarnate(crash_at=None)
            await self._ports.sleep(self._dice.choice((0.0, 1.0)))
        self._tell(f"{old.name} wakes up")
        old.wake()

    async def _stop_engine(self) -> None:
        self.counts["outages"] += 1
        live_restore = self._dice.random() < 0.7
        self._tell(f"chaos stops the engine, live_restore={live_restore}")
        self._world.machine.stop_engine(live_restore=live_restore)
        await self._ports.sleep(self._dice.choice((0.5, 4.0)))
        self._world.machine.start_engine()
        self._world.promises.last_outage_at_s = self._ports.clock.monotonic_s()
        self._tell("the engine is back")

    async def _fill_disk(self) -> None:
        self._tell("chaos fills the disk")
        self._world.machine.is_disk_full = True
        self._world.disk.is_full = self._dice.random() < 0.5
        await self._ports.sleep(self._dice.choice((0.5, 3.0)))
        self._world.machine.is_disk_full = False
        self._world.disk.is_full = False

    async def _client(self, number: int) -> None:
        sandbox_id = SandboxId(f"sb{number}")
        for turn in range(self._dice.randint(2, 7)):
            verb = "adopt" if turn == 0 else self._dice.choice(VERBS)
            await self._ports.sleep(self._dice.expovariate(1 / 2))
            files = self._write(sandbox_id)
            payload = self._payload(verb, sandbox_id, RequestId(f"r{number}-{turn}"))
            answer = await self._ask(verb, payload, files)
            if self._dice.random() < 0.3:
                await self._ask_again(verb, payload, answer)

    async def _ask(self, verb: str, payload: dict[str, Any], files: Written) -> Any:
        answer = await self._until_answered(verb, payload)
        if isinstance(answer, SandkeeperError):
            self.counts["refusals"] += 1
            self._tell(f"{verb} {payload['sandbox_id']}: {answer.code}")
        else:
            self.counts["answers"] += 1
            self._tell(f"{verb} {payload['sandbox_id']}: done, {answer.get('phase') or answer.get('id')}")
            self._world.promises.answered(verb, answer, files=files)
        return answer

    async def _ask_again(self, verb: str, payload: dict[str, Any], first: Any) -> None:
        """A repeat of the same request gets the same answer."""
        again = await self._until_answered(verb, payload)
        if isinstance(first, SandkeeperError) or isinstance(again, SandkeeperError):
            was_begun = isinstance(first, SandkeeperError) and first.admitted == "yes"
            is_same = type(first) is type(again) and getattr(first, "code", 0) == getattr(again, "code", 1)
            if (was_begun or not isinstance(first, SandkeeperError)) and not is_same:
                raise BrokenPromiseError(f"{verb} was answered {first!r}, then {again!r}")
        elif first != again:
            raise BrokenPromiseError(f"{verb} was answered {first}, then {again}")

    async def _until_answered(self, verb: str, payload: dict[str, Any]) -> Any:
        """Ask as the SDK does: with the same request id, until somebody answers."""
        deadline_s = self._ports.clock.monotonic_s() + ANSWER_WITHIN_S
        while self._ports.clock.monotonic_s() < deadline_s:
            try:
                return await self._world.owner.call(verb, payload)
            except Unavailable:
                await self._ports.sleep(0.3)
            except SandkeeperError as error:
                if error.code != "in_progress":
                    return error
                await self._ports.sleep(1.0)
        raise BrokenPromiseError(f"{verb} of {payload['sandbox_id']} was not answered in {ANSWER_WITHIN_S} s")

    def _write(self, sandbox_id: SandboxId) -> Written:
        """Let the workload write a file, and return all it has in its runtime."""
        record = self._world.disk.journal(JOURNAL).records.get(sandbox_id)
        runtime = self._world.machine.runtimes.get(record.birth_id) if record and record.birth_id else None
        if record is None or runtime is None or record.phase is not Phase.RUNNING:
            return Written(0, {})
        runtime.files[f"/work/{len(runtime.files)}"] = self._ports.new_token().encode()
        return Written(record.generation, dict(runtime.files))

    def _payload(self, verb: str, sandbox_id: SandboxId, request_id: RequestId) -> dict[str, Any]:
        common: dict[str, Any] = {"sandbox_id": sandbox_id, "request_id": request_id}
        if verb == "adopt":
            spec = SandboxSpec(
                image="base",
                boot=BootImage(image_id=BASE_IMAGE, base_digest=BASE_IMAGE),
                size=NAMED_SIZES["lite"],
                on_lost=self._dice.choice(list(OnLost)),
            )
            common |= {"request_fingerprint": "f", "tenant_id": DEFAULT_TENANT, "spec": spec.model_dump()}
        elif verb == "stop":
            common["keep"] = self._dice.choice(("files", "snapshot", "nothing"))
        elif verb == "resize":
            common["size"] = NAMED_SIZES[self._dice.choice(("basic", "lite"))].model_dump()
        return common

    async def _reap(self) -> None:
        engine = self._world.owner.engine
        await reap_once(
            engine,
            installation_id=INSTALLATION,
            read_known=self._read_known,
            now=self._ports.clock.now,
            reap_after_s=60.0,
        )

    async def _read_known(self) -> KnownNames:
        content = self._world.disk.journal(JOURNAL)
        claims = claims_of(content)
        return KnownNames(claims.births, claims.given_up, claims.pending, frozenset(content.snapshots))

    def _tell(self, text: str) -> None:
        self.story.append(f"{self._ports.clock.monotonic_s():9.3f} {text}")
