"""A boxd in this process, in the time its ports give: what owners and simulations have instead of a container.

It keeps the contract of the real one (`tests/conformance/test_boxd.py` runs against both): go and epochs, quiesce
with its 10 seconds, runs by id. Programs are plain functions; files are a dict, which may be the engine's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sandkeeper.boxd import Hello, Quiesced, RunEnded, RunEvent, RunListing, RunOutput, RunStarted, errors
from sandkeeper.boxd.answers import Vitals
from sandkeeper.boxd.events import Outcome, RunLimits, RunLost, Stream, TerminalSize
from sandkeeper.boxd.runs import Runs
from sandkeeper.core.errors import Admitted, NotFound, SandkeeperError, Unavailable
from sandkeeper.core.ids import BirthId, RunId
from sandkeeper.ports import Ports

DRAIN_S = 10.0
LATENCY_S = 0.0002
"""On each side of every effect, so that a crash can fall before and after it."""
SILENCE_S = 30.0
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Result:
    """What a program comes to, after how long."""

    exit_code: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    duration_s: float = 0.001
    oom_killed: bool = False


Program = Callable[["FakeBoxd", Sequence[str]], Result]

PROGRAMS: dict[str, Program] = {
    "true": lambda box, argv: Result(),
    "false": lambda box, argv: Result(exit_code=1),
    "sleep": lambda box, argv: Result(duration_s=float(argv[1])),
    "echo": lambda box, argv: Result(stdout=" ".join(argv[1:]).encode() + b"\n"),
}


@dataclass(eq=False)
class FakeRun:
    run_id: RunId
    argv: tuple[str, ...]
    pid: int
    generation: int
    result: Result
    detached: bool
    ended: RunEnded | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    work: asyncio.Task[None] | None = None


class FakeBoxd:
    """Process 1 of one fake container; fits the fake engine's `FakeBox`."""

    def __init__(
        self,
        birth_id: BirthId,
        *,
        ports: Ports,
        files: dict[str, bytes] | None = None,
        programs: Mapping[str, Program] | None = None,
    ) -> None:
        self.birth_id = birth_id
        self.ports = ports
        self.files = {} if files is None else files
        self.programs = PROGRAMS | dict(programs or {})
        self.has_listener = True
        self.is_dead = False
        self.is_frozen = False
        self.generation = 0
        self.epoch = 0
        self.env: dict[str, str] = {}
        self.user: str | None = None
        self.workdir: str | None = None
        self.runs: dict[RunId, FakeRun] = {}
        self.admitted: list[RunId] = []
        self.stdin = bytearray()
        self.stdin_room: int | None = None
        self.piece_bytes = 32 * 1024
        self.kept_from = 0  # output before this place is kept no more
        self.vitals = Vitals(state="running")
        self._drained_at_s: float | None = None

    def link(self, *, generation: int, epoch: int) -> FakeLink:
        """Return a client of this box with that lease."""
        return FakeLink(self, generation=generation, epoch=epoch)

    def freeze(self) -> None:
        self.is_frozen = True

    def thaw(self) -> None:
        self.is_frozen = False

    def die(self) -> None:
        """End at once, with all runs."""
        self.is_dead = True
        for run in self.runs.values():
            if run.work is not None:
                run.work.cancel()
            run.changed.set()

    def going(self) -> tuple[RunId, ...]:
        return tuple(sorted(run.run_id for run in self.runs.values() if run.ended is None))

    @property
    def is_draining(self) -> bool:
        now_s = self.ports.clock.monotonic_s()
        return self._drained_at_s is not None and now_s - self._drained_at_s < DRAIN_S

    def hello(self) -> Hello:
        state = "waiting" if not self.generation else "draining" if self.is_draining else "running"
        return Hello(
            protocol=1,
            build="fake",
            birth_id=self.birth_id,
            generation=self.generation,
            epoch=self.epoch,
            state=state,
            runs=len(self.going()),
        )

    def drain(self) -> None:
        self._drained_at_s = self.ports.clock.monotonic_s()

    def undrain(self) -> None:
        self._drained_at_s = None

    def check_fence(self, *, step: str, epoch: int, generation: int | None = None) -> None:
        if epoch < self.epoch:
            raise refused("failed_precondition", "stale_epoch", step=step, epoch=self.epoch)
        if generation is not None and self.generation and generation != self.generation:
            raise refused("failed_precondition", "wrong_generation", step=step)
        self.epoch = epoch

    def check_started(self, *, step: str) -> None:
        if not self.generation:
            raise refused("unavailable", "not_started", step=step)

    def check_work(self, *, step: str) -> None:
        self.check_started(step=step)
        if self.is_draining:
            raise refused("unavailable", "draining", step=step)

    async def reach(self, *, step: str, wait_s: float, admitted: Admitted = "no") -> None:
        """Take the way to the box: refused by the dead, waited for in vain at the frozen."""
        await self.ports.sleep(LATENCY_S)
        waited_s = 0.0
        while True:
            if self.is_dead or not self.has_listener:
                raise errors.unreachable(ConnectionRefusedError(111, "Connection refused"), step=step)
            if not self.is_frozen:
                return
            if waited_s >= wait_s:
                raise errors.silent(wait_s, step=step, admitted="unknown")
            await self.ports.sleep(POLL_S)
            waited_s += POLL_S

    async def answer(self, *, step: str) -> None:
        """Take the way back: cut if the box died after the effect."""
        await self.ports.sleep(LATENCY_S)
        if self.is_dead:
            raise errors.connection_lost("ended by the peer", step=step, admitted="unknown")

    def begin(self, argv: Sequence[str], *, run_id: RunId, timeout_ms: int | None, detached: bool) -> FakeRun:
        program = self.programs.get(argv[0])
        if program is None:
            raise refused("invalid_argument", "exec_not_found", step=f"run {run_id}")
        run = FakeRun(
            run_id, tuple(argv), 100 + len(self.runs), self.generation, program(self, argv), detached
        )
        self.runs[run_id] = run
        self.admitted.append(run_id)
        run.work = self.ports.spawn(self._execute(run, timeout_ms), name=f"fake run {run_id}")
        return run

    def end(self, run: FakeRun, *, outcome: Outcome, signal: int = 0) -> None:
        if run.ended is not None:
            return
        is_exited = outcome == "exited"
        run.ended = RunEnded(
            outcome=outcome,
            exit_code=run.result.exit_code if is_exited else None,
            signal=signal,
            oom_killed=run.result.oom_killed,
            stdout_size_bytes=len(run.result.stdout),
            stderr_size_bytes=len(run.result.stderr),
            duration_ms=round(run.result.duration_s * 1000),
            not_stopped=(),
        )
        run.changed.set()
        if not is_exited and run.work is not None:
            run.work.cancel()

    async def _execute(self, run: FakeRun, timeout_ms: int | None) -> None:
        limit_s = float("inf") if timeout_ms is None else timeout_ms / 1000
        left_s = min(run.result.duration_s, limit_s)
        while left_s > 0:
            step_s = min(left_s, POLL_S)
            await self.ports.sleep(step_s)
            if not self.is_frozen:  # frozen time does not count
                left_s -= step_s
        if run.result.duration_s > limit_s:
            self.end(run, outcome="timeout", signal=9)
        elif run.result.oom_killed:
            self.end(run, outcome="signaled", signal=9)
        else:
            self.end(run, outcome="exited")


class FakeLink:
    """`BoxControl`, `runs` and `files` of a `FakeBoxd`, with one lease."""

    def __init__(self, box: FakeBoxd, *, generation: int, epoch: int) -> None:
        self.generation = generation
        self.epoch = epoch
        self.runs = FakeRuns(box, link=self)
        self.files = FakeFiles(box, link=self)
        self._box = box

    async def hello(self, *, timeout_s: float = 1.0) -> Hello:
        await self._box.reach(step="hello", wait_s=timeout_s)
        hello = self._box.hello()
        await self._box.answer(step="hello")
        return hello

    async def go(
        self,
        *,
        birth_id: BirthId,
        user: str | None = None,
        workdir: str | None = None,
        env: Mapping[str, str] | None = None,
        env_defaults: Mapping[str, str] | None = None,
        disk_limit_bytes: int | None = None,
    ) -> Hello:
        box = self._box
        await box.reach(step="go", wait_s=10.0)
        if birth_id != box.birth_id:
            raise refused("failed_precondition", "wrong_birth", step="go")
        box.check_fence(step="go", epoch=self.epoch, generation=self.generation)
        if not box.generation:
            box.user, box.workdir, box.env = user, workdir, dict(env or {})
        box.generation = self.generation
        hello = box.hello()
        await box.answer(step="go")
        return hello

    async def quiesce(self, *, reason: str, force: bool = False, wait_s: float = 0.0) -> Quiesced:
        box = self._box
        await box.reach(step="quiesce", wait_s=10.0)
        box.check_fence(step="quiesce", epoch=self.epoch, generation=self.generation)
        box.check_started(step="quiesce")
        waited_s = 0.0
        while not force and waited_s < wait_s and self._foreground():
            await box.ports.sleep(POLL_S)
            waited_s += POLL_S
        is_drained = force or not self._foreground()
        if is_drained:
            box.drain()
        answer = Quiesced(state="drained" if is_drained else "busy", runs=box.going())
        await box.answer(step="quiesce")
        return answer

    async def resume(self) -> Hello:
        box = self._box
        await box.reach(step="resume", wait_s=10.0)
        box.check_fence(step="resume", epoch=self.epoch, generation=self.generation)
        box.check_started(step="resume")
        box.undrain()
        hello = box.hello()
        await box.answer(step="resume")
        return hello

    async def health(self, *, timeout_s: float = 1.0) -> None:
        await self.hello(timeout_s=timeout_s)

    async def greet(self, *, timeout_s: float) -> None:
        await self._box.reach(step="greeting", wait_s=timeout_s)

    async def vitals(self, *, timeout_s: float = 2.0) -> Vitals:
        await self._box.reach(step="health", wait_s=timeout_s)
        return self._box.vitals

    async def aclose(self) -> None:
        await self.runs.settle()

    def _foreground(self) -> bool:
        return any(run.ended is None and not run.detached for run in self._box.runs.values())


class FakeRuns(Runs):
    """The runs of a fake box; collecting and the kill at cancel are the real code."""

    def __init__(self, box: FakeBoxd, *, link: FakeLink) -> None:
        self._box = box
        self._link = link
        self._ports = box.ports
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
        if limits is not None or terminal is not None:
            raise NotImplementedError("fake programs have no limits and no terminals")
        box, step = self._box, f"run {run_id}"
        await box.reach(step=step, wait_s=10.0)
        box.check_started(step=step)
        box.check_fence(step=step, epoch=self._link.epoch, generation=self._link.generation)
        run = box.runs.get(run_id)
        is_known = run is not None
        if run is None:
            box.check_work(step=step)
            run = box.begin(argv, run_id=run_id, timeout_ms=timeout_ms, detached=detached)
        elif run.argv != tuple(argv):
            raise refused("already_exists", "run_id_conflict", step=step)
        await box.answer(step=step)
        yield RunStarted(run.pid, run_id, run.generation, is_known)
        offsets: dict[Stream, int] = {"stdout": stdout_offset, "stderr": stderr_offset}
        async for event in self._replay(run, offsets=offsets, max_output_bytes=max_output_bytes, step=step):
            yield event

    async def attach(
        self,
        run_id: RunId,
        *,
        offsets: Mapping[Stream, int] | None = None,
        max_output_bytes: int | None = None,
    ) -> AsyncGenerator[RunEvent, None]:
        step = f"attach to run {run_id}"
        run = await self._find(run_id, step=step)
        self._box.check_fence(step=step, epoch=self._link.epoch, generation=self._link.generation)
        yield RunStarted(run.pid, run_id, run.generation, True)
        async for event in self._replay(
            run, offsets=offsets or {}, max_output_bytes=max_output_bytes, step=step
        ):
            yield event

    async def _replay(
        self, run: FakeRun, *, offsets: Mapping[Stream, int], max_output_bytes: int | None, step: str
    ) -> AsyncGenerator[RunEvent, None]:
        """Wait for the end, then yield all output from the offsets on, in pieces, and the end."""
        box = self._box
        while run.ended is None and not box.is_dead:
            await run.changed.wait()
        await box.ports.sleep(LATENCY_S)
        if box.is_dead or run.ended is None:
            raise errors.connection_lost("ended by the peer", step=step, admitted="yes")
        outputs: tuple[tuple[Stream, bytes], ...] = (
            ("stdout", run.result.stdout),
            ("stderr", run.result.stderr),
        )
        for stream, output in outputs:
            place = min(offsets.get(stream, 0), len(output))
            stop = len(output) if max_output_bytes is None else min(len(output), place + max_output_bytes)
            kept_from = min(box.kept_from, len(output))
            if place < kept_from:
                yield RunLost(stream, place, kept_from - place)
                place = kept_from
            while place < stop:
                piece = output[place : min(stop, place + box.piece_bytes)]
                yield RunOutput(stream, place, piece)
                place += len(piece)
        yield run.ended

    async def signal(self, run_id: RunId, *, signum: int) -> None:
        run = await self._find(run_id, step=f"signal run {run_id}")
        if run.ended is not None:
            raise refused("not_found", "run_ended", step=f"signal run {run_id}")
        self._box.end(run, outcome="signaled", signal=signum)
        await self._box.answer(step=f"signal run {run_id}")

    async def kill_tree(self, run_id: RunId) -> tuple[int, ...]:
        run = await self._find(run_id, step=f"kill run {run_id}")
        self._box.end(run, outcome="signaled", signal=9)
        await self._box.answer(step=f"kill run {run_id}")
        return ()

    async def list(self) -> tuple[RunListing, ...]:
        await self._box.reach(step="list runs", wait_s=10.0)
        self._box.check_started(step="list runs")
        runs = [run for run in self._box.runs.values() if run.ended is None]
        return tuple(RunListing(run.pid, run.run_id, run.argv, None, None) for run in runs)

    async def send_stdin(self, run_id: RunId, *, data: bytes) -> None:
        """Programs read nothing; the input is kept, at most `stdin_room` bytes of each call."""
        step = f"stdin of run {run_id}"
        await self._find(run_id, step=step)
        box = self._box
        taken = data if box.stdin_room is None else data[: box.stdin_room]
        box.stdin += taken
        if len(taken) < len(data):
            ours = {"code": "stdin_full", "writtenBytes": len(taken)}
            raise errors.refusal(
                {"code": "deadline_exceeded", "message": "full", "sandkeeper": ours}, step=step
            )

    async def close_stdin(self, run_id: RunId) -> None:
        raise NotImplementedError("fake programs read nothing")

    async def _find(self, run_id: RunId, *, step: str) -> FakeRun:
        await self._box.reach(step=step, wait_s=10.0)
        self._box.check_started(step=step)
        run = self._box.runs.get(run_id)
        if run is None:
            raise refused("not_found", "no_such_run", step=step)
        return run


class FakeFiles:
    """Whole files of a fake box, by absolute path; the rest of `Files` needs the real one."""

    def __init__(self, box: FakeBoxd, *, link: FakeLink) -> None:
        self._box = box
        self._link = link

    async def read(self, path: str, *, user: str | None = None) -> bytes:
        await self._reach(f"read {path}")
        data = self._box.files.get(path)
        if data is None:
            raise NotFound(f"read {path}: no such file")
        return data

    async def write(self, path: str, *, data: bytes, user: str | None = None) -> str:
        await self._reach(f"write {path}")
        self._box.check_fence(step="write", epoch=self._link.epoch, generation=self._link.generation)
        self._box.check_work(step=f"write {path}")
        self._box.files[path] = data
        await self._box.answer(step=f"write {path}")
        return path

    async def exists(self, path: str, *, user: str | None = None) -> bool:
        await self._reach(f"stat {path}")
        return path in self._box.files

    async def remove(self, path: str, *, user: str | None = None) -> None:
        await self._reach(f"remove {path}")
        self._box.files.pop(path, None)
        await self._box.answer(step=f"remove {path}")

    async def _reach(self, step: str) -> None:
        await self._box.reach(step=step, wait_s=10.0)
        self._box.check_started(step=step)


class FakeBootListener:
    """`BootListener` for a fake box: `box` is set when the fake container starts, or never."""

    def __init__(self, *, ports: Ports, box: FakeBoxd | None = None) -> None:
        self.box = box
        self.impostor_count = 0
        self.is_open = False
        self._ports = ports

    @property
    def is_handed_over(self) -> bool:
        return self.box is not None and self.box.has_listener and not self.box.is_dead

    def open(self) -> bool:
        self.is_open = True
        return self.is_handed_over

    async def hand_over(self, *, pid: int, timeout_s: float) -> None:
        waited_s = 0.0
        while self.box is None or self.box.is_dead or self.box.is_frozen:
            if waited_s >= timeout_s:
                raise Unavailable(f"pid {pid} did not come", code="boxd_not_booted", admitted="yes")
            await self._ports.sleep(POLL_S)
            waited_s += POLL_S
        self.box.has_listener = True

    def close(self) -> None:
        self.is_open = False


def refused(word: str, code: str, *, step: str, epoch: int | None = None) -> SandkeeperError:
    """Return the error that the real client makes of the real boxd's refusal."""
    ours: dict[str, Any] = {"code": code} | ({} if epoch is None else {"epoch": epoch})
    return errors.refusal({"code": word, "message": code, "sandkeeper": ours}, step=step)
