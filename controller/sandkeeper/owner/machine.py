"""One sandbox: its mailbox, and the loop that steps, commits, then acts.

Owns the order of things: an event is stepped, the new record is durable, and only then is its command
performed and its answer given. Never decides (that is `core.lifecycle`), never talks to an engine or a box
(that is the runner). One loop per sandbox handles one event at a time, so there is no lock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from sandkeeper.core import commands as cmd
from sandkeeper.core import events as ev
from sandkeeper.core.errors import Internal, SandkeeperError, Unavailable
from sandkeeper.core.lifecycle import Move, Quiet, Stamp, Unmoved, step
from sandkeeper.core.record import Phase, RequestRef, SandboxRecord, SnapshotRecord
from sandkeeper.core.recovery import NOTHING, Recovery, recover
from sandkeeper.owner.lines import answer_of, closing, details_of
from sandkeeper.owner.performing import Runner
from sandkeeper.owner.waiters import Waiters
from sandkeeper.ports import Ports
from sandkeeper.store.contract import Journal
from sandkeeper.store.entries import Answer, JournalEntry

log = structlog.get_logger(__name__)

RETRY_S = 0.5
MAX_RETRY_S = 5.0
EXPIRE_AGAIN_S = 30.0
"""The journal may refuse the end of a lifetime as any request, and nobody else asks for it again."""
_WATCHED = (Phase.RUNNING, Phase.PAUSED, Phase.SNAPSHOTTING)


class _Check:
    """Mailbox entry: compare record and reality."""


class _Retire:
    """Mailbox entry: the sandbox is destroyed, end the loop."""


_RETIRE = _Retire()


class SandboxMachine:
    """The state machine of one sandbox, driven by its mailbox."""

    def __init__(
        self,
        record: SandboxRecord,
        *,
        journal: Journal,
        runner: Runner,
        ports: Ports,
        on_commit: Callable[[SandboxMachine], None],
    ) -> None:
        self.record = record
        self._on_commit = on_commit
        self._journal = journal
        self._runner = runner
        self._ports = ports
        self._waiters = Waiters()
        self._mailbox: deque[Any] = deque()
        self._deferred: list[Any] = []
        self._mail = asyncio.Event()
        self._changed = asyncio.Event()
        self._compared = asyncio.Event()
        self._loop_task: asyncio.Task[Any] | None = None
        self._performing: asyncio.Task[Any] | None = None
        self._watching: asyncio.Task[Any] | None = None
        self._watched_generation = 0
        self._lifetime: asyncio.Task[Any] | None = None
        self._log = log.bind(sandbox_id=record.sandbox_id)

    def start(self, *, is_recovered: bool) -> asyncio.Task[Any]:
        """Start the loop and return its task. A record read back from the journal is first compared with reality.

        The task ends only by `close`, or with an error after which the owner must not go on.
        """
        if self.record.pending_request is not None:
            _ = self._waiters.expect(self.record.pending_request)
        if is_recovered:
            self._mailbox.append(_Check())
            self._mail.set()
        else:
            self._compared.set()
        name = f"machine {self.record.sandbox_id}"
        self._loop_task = self._ports.spawn(self._run(), name=name)
        if self.record.spec.lifetime_s is not None:
            self._lifetime = self._spawn(self._expire(self.record.spec.lifetime_s), name=f"{name} life")
        return self._loop_task

    async def close(self) -> None:
        """End the loop and what it performs, without changing anything durable."""
        tasks = [self._loop_task, self._performing, self._watching, self._lifetime]
        running = [task for task in tasks if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._waiters.fail_all(closing(self.record))

    def retire(self) -> None:
        """End the loop of a destroyed sandbox once everybody who waits has been answered."""
        self._mailbox.append(_RETIRE)
        self._mail.set()

    def joined(self, request: RequestRef) -> asyncio.Future[Any] | None:
        """Return the answer-to-be of a request already in progress here.

        Raises:
            AlreadyExists: `request_id_conflict`.
        """
        return self._waiters.join(request)

    async def ask(self, event: ev.Request) -> Any:
        """Hand in a request and wait for its answer, a JSON document. The wait may be cancelled freely.

        Raises:
            SandkeeperError: The request was refused, or begun and failed.
        """
        if event.request is None:
            raise Internal("a request without a request id was handed in")
        answer = self._waiters.expect(event.request)
        self.tell(event)
        return await asyncio.shield(answer)

    def tell(self, event: ev.Event) -> None:
        """Put an event into the mailbox."""
        self._mailbox.append(event)
        self._mail.set()

    def check(self) -> None:
        """Have record and reality compared, after what is in the mailbox already."""
        if not any(isinstance(item, _Check) for item in self._mailbox):
            self._mailbox.append(_Check())
            self._mail.set()

    async def compared(self, *, timeout_s: float) -> bool:
        """Wait until a record read back from the journal was compared with reality; return whether it was."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._compared.wait()
        except TimeoutError:
            return False
        return True

    async def settled(self, *phases: Phase, timeout_s: float) -> SandboxRecord:
        """Wait until no command is pending and the phase is one of `phases` (any, when none is given).

        Returns:
            The record when it is so, or when the time is over: the caller looks at it.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while self.record.pending is not None or (phases and self.record.phase not in phases):
                    await self._changed.wait()
        except TimeoutError:
            pass
        return self.record

    async def _run(self) -> None:
        while True:
            while not self._mailbox:
                self._mail.clear()
                await self._mail.wait()
            item = self._mailbox.popleft()
            if item is _RETIRE:
                if self._lifetime is not None:
                    self._lifetime.cancel()
                return
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, _Check):
                await self._compare()
                self._compared.set()
            else:
                await self._handle(item)

    async def _handle(self, event: ev.Event) -> None:
        stamp = Stamp(at=self._ports.clock.now(), token=self._ports.new_token())
        outcome = step(self.record, event, stamp)
        if isinstance(outcome, Move):
            await self._move(event, outcome)
            return
        await self._stay(event, outcome)

    async def _stay(self, event: ev.Event, outcome: Unmoved) -> None:
        request = event.request if isinstance(event, ev.REQUESTS) else None
        if outcome.quiet is Quiet.DEFERRED:
            self._deferred.append(event)
        elif outcome.quiet is Quiet.STALE:
            self._log.info("event_stale", kind=event.kind, phase=self.record.phase)
        elif request is not None and outcome.error is not None:
            outcome.error.request_id = request.request_id
            self._waiters.resolve(request.request_id, outcome.error)
        elif request is not None:
            answer = answer_of(self.record, request, at=self._ports.clock.now())
            try:
                await self._commit(event, kind=f"{event.kind}_already", answers=(answer,), snapshot=None)
            except SandkeeperError as error:
                self._refuse(event, error)
                return
            self._waiters.resolve(request.request_id, answer.document)

    async def _move(self, event: ev.Event, move: Move) -> None:
        """Commit a step, answer whom it settles, perform its command.

        `Unavailable` is told but is no answer to keep: a repeat of the request tries again.
        """
        before = self.record
        settled = [
            (
                done,
                answer_of(
                    move.record,
                    done.request,
                    error=done.error,
                    snapshot=move.snapshot,
                    at=self._ports.clock.now(),
                ),
            )
            for done in move.settled
        ]
        answers = tuple(answer for done, answer in settled if not isinstance(done.error, Unavailable))
        try:
            await self._commit(
                event, kind=event.kind, answers=answers, snapshot=move.snapshot, record=move.record
            )
        except SandkeeperError as error:
            self._refuse(event, error)
            return
        self._log.info(
            "phase_moved",
            kind=event.kind,
            before=before.phase,
            after=move.record.phase,
            generation=move.record.generation,
        )
        for done, answer in settled:
            self._waiters.resolve(done.request.request_id, done.error or answer.document)
        self._after_commit(move.command)

    def _refuse(self, event: ev.Event, error: SandkeeperError) -> None:
        if error.admitted == "unknown":
            raise error
        if isinstance(event, ev.REQUESTS) and event.request is not None:
            self._waiters.resolve(event.request.request_id, error)

    def _after_commit(self, command: cmd.Command | None) -> None:
        if command is not None:
            self._perform(command)
        elif self.record.pending is None and self._performing is not None:
            # What is still performed has lost its command: a runtime that died takes its snapshot along.
            self._performing.cancel()
        self._watch()
        if self.record.pending is None and self._deferred:
            self._mailbox.extendleft(reversed(self._deferred))
            self._deferred.clear()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _commit(
        self,
        event: ev.Event,
        *,
        kind: str,
        answers: tuple[Answer, ...],
        snapshot: SnapshotRecord | None,
        record: SandboxRecord | None = None,
    ) -> None:
        """Make a step durable. A fact is retried until it is; a request that cannot be stored is refused.

        Raises:
            SandkeeperError: The event is a request and the journal did not take it: nothing has changed. With
                `admitted` "unknown" the journal is closed for good: the loop ends, and with it the owner.
        """
        entry = JournalEntry(
            record=record or self.record,
            event=event,
            kind=kind,
            at=self._ports.clock.now(),
            details=details_of(event, record or self.record),
            snapshot=snapshot,
            answers=answers,
        )
        delay_s = RETRY_S
        while True:
            try:
                await self._journal.commit(entry)
                break
            except SandkeeperError as error:
                self._log.exception("commit_failed", kind=kind, code=error.code)
                if error.admitted == "unknown" or isinstance(event, ev.REQUESTS):
                    raise
                await self._ports.sleep(delay_s)
                delay_s = min(MAX_RETRY_S, delay_s * 2)
        self.record = entry.record
        self._on_commit(self)

    def _perform(self, command: cmd.Command) -> None:
        superseded = self._performing
        self._performing = self._spawn(
            self._perform_after(superseded, command), name=f"{command.kind} {command.command_id}"
        )

    async def _perform_after(self, superseded: asyncio.Task[Any] | None, command: cmd.Command) -> None:
        if superseded is not None and not superseded.done():
            superseded.cancel()
            await asyncio.gather(superseded, return_exceptions=True)
        self.tell(await self._runner.perform(self.record, command))

    def _watch(self) -> None:
        is_wanted = self.record.phase in _WATCHED and not self.record.is_kept
        if self._watching is not None and not (
            is_wanted and self._watched_generation == self.record.generation
        ):
            self._watching.cancel()
            self._watching = None
        if is_wanted and self._watching is None:
            self._watched_generation = self.record.generation
            self._watching = self._spawn(self._wait_lost(self.record), name=f"watch {self.record.birth_id}")

    def _spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[Any]:
        """Start work whose unforeseen error must not leave the sandbox waiting for ever: it ends the loop."""
        task = self._ports.spawn(work, name=name)
        task.add_done_callback(self._raise_in_loop)
        return task

    def _raise_in_loop(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._mailbox.append(error)
            self._mail.set()

    async def _wait_lost(self, record: SandboxRecord) -> None:
        self.tell(await self._runner.wait_lost(record))

    async def _expire(self, lifetime_s: float) -> None:
        age_s = (self._ports.clock.now() - self.record.created_at).total_seconds()
        await self._ports.sleep(max(0.0, lifetime_s - age_s))
        while self.record.phase not in (Phase.DESTROYING, Phase.DESTROYED):
            self.tell(ev.DestroyRequested(reason="lifetime"))
            await self._ports.sleep(EXPIRE_AGAIN_S)

    async def _compare(self) -> None:
        """Look at the engine until it answers, then do what `core.recovery` says."""
        if self.record.pending is not None and self._performing is not None and not self._performing.done():
            return
        found = await self._look()
        for event in found.events:
            await self._handle(event)
        if found.perform is not None:
            self._perform(found.perform)
        if found.events:
            self.check()
        self._watch()

    async def _look(self) -> Recovery:
        """Return what is to be done, its correction made already.

        What fails is tried again: an engine that is away comes back, and a pending command has nobody else to take
        it up. Without one, a correction that is refused is left to the next audit.
        """
        delay_s = RETRY_S
        while True:
            try:
                seen = await self._runner.observe(self.record) if self.record.birth_id else None
                found = recover(self.record, seen)
                if found.correction is not None:
                    await self._runner.correct(self.record, found.correction)
                return found
            except SandkeeperError as error:
                self._log.warning("look_failed", code=error.code, message=error.message)
                if self.record.pending is None and not isinstance(error, Unavailable):
                    return NOTHING
            await self._ports.sleep(delay_s)
            delay_s = min(MAX_RETRY_S, delay_s * 2)
