"""A container engine in the process: the fake that passes the real one's conformance suite.

`FakeEngine` is the connection of one process to a `FakeWorld` (the machine). A call once sent is performed by a task
of the world and ends there even when its caller is cancelled, crashed or never resumed. `twin()` is the connection of
the next incarnation to the same world.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from sandkeeper.containers.engine import EngineFacts, EngineImage, ListedRuntime, RuntimeSettings
from sandkeeper.core.errors import SandkeeperError, Unavailable
from sandkeeper.core.ids import BirthId, InstallationId
from sandkeeper.core.observation import RuntimeObservation
from sandkeeper.core.sizes import Size
from sandkeeper.ports import Ports
from tests.fakes.engine_world import Boot, FakeBox, FakeImage, FakeRuntime, FakeWorld, engine_is_away

__all__ = [
    "Boot",
    "EngineMoment",
    "FakeBox",
    "FakeEngine",
    "FakeImage",
    "FakeRuntime",
    "FakeWorld",
    "engine_for_bench",
]

Answer = TypeVar("Answer")
Stage = Literal["call", "before", "after", "return"]


@dataclass(frozen=True, slots=True)
class EngineMoment:
    """A point in the life of one engine call.

    `call` and `return` are in the caller's task: what the hook raises there is a crash of the caller, and at `return`
    the effect has been. `before` and `after` are in the world's task, around the effect: what the hook raises there
    is the call's failure, and sleeping there is slowness.
    """

    stage: Stage
    verb: str
    name: str


Hook = Callable[[EngineMoment], Awaitable[None]]


@dataclass(slots=True)
class _Failure:
    error: SandkeeperError
    after_effect: bool


class FakeEngine:
    """One process's connection to a fake world. Keeps the promises of `sandkeeper.containers.engine.Engine`.

    Attributes:
        world: Containers and images; what a test does to them is a method there.
        hook: Awaited at each `EngineMoment`.
        latency_s: Seconds a verb takes before its effect; verbs not named take none.
        calls: Verbs and names of the calls sent, oldest first; the last 10,000.
    """

    def __init__(
        self,
        *,
        installation_id: InstallationId,
        ports: Ports,
        world: FakeWorld | None = None,
        hook: Hook | None = None,
        boot: Boot | None = None,
        any_image: bool = False,
        latency_s: dict[str, float] | None = None,
    ) -> None:
        self.world = world or FakeWorld(ports, boot=boot, any_image=any_image)
        self.hook = hook
        self.latency_s = latency_s or {}
        self.calls: deque[tuple[str, str]] = deque(maxlen=10_000)
        self._installation_id = installation_id
        self._ports = ports
        self._failures: dict[str, deque[_Failure]] = defaultdict(deque)
        self._in_flight: set[asyncio.Task[Any]] = set()
        self._is_closed = False
        self._has_crashed = False

    # ------------------------------------------------------------- seams

    def twin(self, *, ports: Ports | None = None, hook: Hook | None = None) -> FakeEngine:
        """Return another process's connection to the same world."""
        return FakeEngine(
            installation_id=self._installation_id,
            ports=ports or self._ports,
            world=self.world,
            hook=hook,
            latency_s=self.latency_s,
        )

    def crash(self) -> None:
        """The process of this connection is dead: its calls go on in the world, no caller ever gets an answer.

        A caller still waiting is suspended for ever and, if its task is cancelled, ends at once.
        """
        self._has_crashed = True

    def fail_next(
        self, verb: str, error: SandkeeperError, *, times: int = 1, after_effect: bool = False
    ) -> None:
        """Let the next `times` calls of `verb` fail; with `after_effect` they do their work first."""
        self._failures[verb].extend(_Failure(error, after_effect) for _ in range(times))

    async def settle(self) -> None:
        """Wait until the world has finished every call that was sent through this connection."""
        while self._in_flight:
            await asyncio.wait(set(self._in_flight))

    # ------------------------------------------------------------- Engine

    async def facts(self) -> EngineFacts:
        shown = EngineFacts("fake", "fake", self.world.cgroup_version, False, "/nowhere", 2, 8 * 2**30)
        return await self._call("facts", "", lambda: shown)

    async def create(self, settings: RuntimeSettings) -> None:
        await self._call("create", settings.birth_id, lambda: self.world.create(settings))

    async def start(self, birth_id: BirthId) -> None:
        await self._call("start", birth_id, lambda: self.world.start(birth_id))

    async def inspect(self, birth_id: BirthId) -> RuntimeObservation | None:
        def seen() -> RuntimeObservation | None:
            runtime = self.world.runtimes.get(birth_id)
            is_ours = runtime is not None and runtime.settings.installation_id == self._installation_id
            return self.world.observe(birth_id) if is_ours else None

        return await self._call("inspect", birth_id, seen)

    async def freeze(self, birth_id: BirthId) -> None:
        await self._call("freeze", birth_id, lambda: self.world.freeze(birth_id))

    async def thaw(self, birth_id: BirthId) -> None:
        await self._call("thaw", birth_id, lambda: self.world.thaw(birth_id))

    async def stop(self, birth_id: BirthId, *, grace_s: float) -> None:
        await self._call("stop", birth_id, lambda: self.world.stop(birth_id))

    async def remove(self, birth_id: BirthId) -> None:
        await self._call(
            "remove", birth_id, lambda: self.world.remove(birth_id, installation_id=self._installation_id)
        )

    async def update(self, birth_id: BirthId, size: Size) -> None:
        await self._call("update", birth_id, lambda: self.world.update(birth_id, size))

    async def delta_bytes(self, birth_id: BirthId) -> int:
        return await self._call("delta_bytes", birth_id, lambda: self.world.delta_bytes(birth_id))

    async def commit(self, birth_id: BirthId, *, tag: str) -> str:
        return await self._call(
            "commit",
            birth_id,
            lambda: self.world.commit(birth_id, tag=tag, installation_id=self._installation_id),
        )

    async def changed_paths(self, birth_id: BirthId) -> list[str]:
        return await self._call("changed_paths", birth_id, lambda: self.world.changed_paths(birth_id))

    async def read_file(self, birth_id: BirthId, path: str, *, max_bytes: int) -> bytes | None:
        return await self._call(
            "read_file", birth_id, lambda: self.world.read_file(birth_id, path, max_bytes=max_bytes)
        )

    async def flatten(self, image_id: str, *, name: str, tag: str) -> str:
        return await self._call(
            "flatten",
            name,
            lambda: self.world.flatten(image_id, tag=tag, installation_id=self._installation_id),
        )

    async def save_image(self, image_id: str, *, sink: Callable[[bytes], object]) -> None:
        await self._call("save_image", image_id, lambda: sink(self.world.save_image(image_id)))

    async def load_image(self, chunks: Iterable[bytes]) -> None:
        await self._call("load_image", "", lambda: self.world.load_image(chunks))

    async def image(self, ref: str) -> EngineImage | None:
        return await self._call("image", ref, lambda: self.world.find_image(ref))

    async def tag(self, image_id: str, tag: str) -> None:
        await self._call("tag", tag, lambda: self.world.tag(image_id, tag))

    async def untag_or_remove_image(self, ref: str) -> None:
        await self._call("untag_or_remove_image", ref, lambda: self.world.untag_or_remove_image(ref))

    async def sync(self) -> None:
        await self._call("sync", "", lambda: None)

    async def list_runtimes(self) -> list[ListedRuntime]:
        return await self._call("list_runtimes", "", lambda: self.world.list_runtimes(self._installation_id))

    async def list_images(self) -> list[EngineImage]:
        return await self._call("list_images", "", lambda: self.world.list_images(self._installation_id))

    async def wait_exit(self, birth_id: BirthId, pid: int) -> None:
        """Not an engine call: answered by the kernel, also while the engine is down."""
        runtime = self.world.runtimes.get(birth_id)
        if runtime is not None and runtime.pid == pid:
            await runtime.ended.wait()
        await self._hang_if_crashed()

    async def output_tail(self, birth_id: BirthId, *, max_bytes: int) -> str:
        def tail() -> str:
            runtime = self.world.runtimes.get(birth_id)
            encoded = runtime.log.encode() if runtime is not None else b""
            return encoded[-max_bytes:].decode(errors="replace") if max_bytes > 0 else ""

        return await self._call("output_tail", birth_id, tail)

    async def close(self) -> None:
        self._is_closed = True

    # ------------------------------------------------------------- one call

    async def _call(self, verb: str, name: str, effect: Callable[[], Answer]) -> Answer:
        if self._is_closed:
            raise Unavailable("this engine was closed", code="engine_closed")
        await self._hang_if_crashed()
        await self._at("call", verb, name)
        await self._hang_if_crashed()
        self.calls.append((verb, name))
        work = self._ports.spawn(self._perform(verb, name, effect), name=f"engine {verb} {name}")
        self._in_flight.add(work)
        work.add_done_callback(self._ended)
        try:
            answer: Answer = await asyncio.shield(work)
        except asyncio.CancelledError:
            await self._wait_as_cancelled(work)
            raise
        except SandkeeperError:
            await self._hang_if_crashed()
            await self._at("return", verb, name)
            raise
        await self._hang_if_crashed()
        await self._at("return", verb, name)
        return answer

    async def _perform(self, verb: str, name: str, effect: Callable[[], Answer]) -> Answer:
        step = f"{verb} {name}".strip()
        self._need_engine(step, is_sent=False)
        starts = self.world.engine_starts
        if self.latency_s.get(verb):
            await self._ports.sleep(self.latency_s[verb])
        await self._at("before", verb, name)
        self._need_engine(step, is_sent=True, starts=starts)
        failure = self._failures[verb].popleft() if self._failures[verb] else None
        if failure is not None and not failure.after_effect:
            raise failure.error
        answer = effect()
        await self._at("after", verb, name)
        self._need_engine(step, is_sent=True, starts=starts)
        if failure is not None:
            raise failure.error
        return answer

    def _need_engine(self, step: str, *, is_sent: bool, starts: int | None = None) -> None:
        """A call dies with the engine that took it, also when another has been started meanwhile."""
        is_same = starts is None or starts == self.world.engine_starts
        if not (self.world.is_engine_up and is_same):
            raise engine_is_away(step, is_sent=is_sent)

    async def _at(self, stage: Stage, verb: str, name: str) -> None:
        if self.hook is not None:
            await self.hook(EngineMoment(stage, verb, name))

    async def _wait_as_cancelled(self, work: asyncio.Task[Any]) -> None:
        """As the real thread door does: the call is over before the cancellation goes on."""
        while not (work.done() or self._has_crashed):
            try:
                await asyncio.wait({work})
            except asyncio.CancelledError:
                continue

    async def _hang_if_crashed(self) -> None:
        if self._has_crashed:
            await asyncio.get_running_loop().create_future()

    def _ended(self, work: asyncio.Task[Any]) -> None:
        self._in_flight.discard(work)
        if not work.cancelled():
            work.exception()  # seen, also where its caller is gone


def engine_for_bench(*, installation_id: InstallationId, ports: Ports, state_dir: Path) -> FakeEngine:
    """Factory for `engine = "tests.fakes.engine:engine_for_bench"`.

    Any image is there; every container has a fake boxd on the real sockets of its run folder, in this process.
    """
    from tests.fakes.served_box import serve_boxes  # only here: a simulation has no sockets

    engine = FakeEngine(installation_id=installation_id, ports=ports, boot=serve_boxes(ports), any_image=True)
    engine.world.fixed_pid = os.getpid()
    return engine
