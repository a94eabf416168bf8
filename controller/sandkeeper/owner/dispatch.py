"""What an owner's verbs do: find the sandbox, keep the promise of the request id, hand the event in.

Owns the mapping from verbs to lifecycle events. The same table serves the control socket and the Ray actor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from sandkeeper.control.server import VerbEntries, VerbTable
from sandkeeper.core import events as ev
from sandkeeper.core import verbs
from sandkeeper.core.admission import MachineFacts, Policy, check_size
from sandkeeper.core.errors import (
    Aborted,
    FailedPrecondition,
    NotFound,
    SandkeeperError,
    Unavailable,
)
from sandkeeper.core.ids import SandboxId, new_snapshot_id
from sandkeeper.core.record import Phase, RequestRef, SandboxRecord
from sandkeeper.core.views import EventView, Lease, SandboxView, sandbox_view
from sandkeeper.owner.answers import known_answer
from sandkeeper.owner.machine import SandboxMachine
from sandkeeper.owner.roster import Roster, wait_for
from sandkeeper.ports import Ports
from sandkeeper.store.contract import Journal

ANSWER_WAIT_S = 120.0
LEASE_WAIT_S = 30.0
_PASSING = (Phase.STARTING, Phase.REBUILDING, Phase.SNAPSHOTTING, Phase.STOPPING)
_GONE = (Phase.DESTROYING, Phase.DESTROYED)

AdmitResize = Callable[[SandboxId, int], Awaitable[None]]
"""Counts a sandbox with another memory limit (MiB), or raises that the machine has no room for it."""


class OwnerVerbs:
    """The verbs of one owner."""

    def __init__(
        self,
        roster: Roster,
        *,
        journal: Journal,
        policy: Policy,
        machine_facts: MachineFacts,
        admit_resize: AdmitResize,
        ports: Ports,
    ) -> None:
        self._roster = roster
        self._journal = journal
        self._policy = policy
        self._machine_facts = machine_facts
        self._admit_resize = admit_resize
        self._ports = ports

    def table(self, *more: VerbEntries) -> VerbTable:
        """Return the dispatch table, with the verbs of `more` beside these."""
        entries: VerbEntries = {
            "ping": (verbs.Nothing, self._ping),
            "adopt": (verbs.AdoptSpec, self._adopt),
            "describe": (verbs.OfSandbox, self._describe),
            "start": (verbs.ChangeSandbox, self._start),
            "pause": (verbs.ChangeSandbox, self._pause),
            "resume": (verbs.ChangeSandbox, self._resume),
            "destroy": (verbs.DestroySandbox, self._destroy),
            "stop": (verbs.StopSandbox, self._stop),
            "resize": (verbs.ResizeSandbox, self._resize),
            "take_snapshot": (verbs.TakeSnapshot, self._take_snapshot),
            "lease": (verbs.OfSandbox, self._lease),
            "events": (verbs.ReadEvents, self._events),
        }
        for others in more:
            entries |= others
        return VerbTable(entries)

    async def _ping(self, params: verbs.Nothing) -> dict[str, Any]:
        return self._roster.status()

    async def _adopt(self, params: verbs.AdoptSpec) -> Any:
        request = RequestRef(
            request_id=params.request_id, verb="create", fingerprint=params.request_fingerprint
        )
        known = await known_answer(self._journal, request)
        if known is not None:
            return known
        machine = self._roster.find(params.sandbox_id)
        if machine is not None:
            return await self._join_or_ask(machine, ev.StartRequested(request=request), request)
        known_record = await self._journal.record(params.sandbox_id)
        if known_record is not None:
            raise _destroyed(known_record)
        return await self._begin(params, request)

    async def _begin(self, params: verbs.AdoptSpec, request: RequestRef) -> Any:
        machine = self._roster.find(params.sandbox_id)
        if machine is not None:
            return await self._join_or_ask(machine, ev.StartRequested(request=request), request)
        machine = self._roster.add(params)
        try:
            return await _bounded(machine.ask(ev.StartRequested(request=request)), machine.record)
        except SandkeeperError as error:
            if error.admitted == "no":
                await self._roster.drop_unstored(machine)
            raise

    async def _describe(self, params: verbs.OfSandbox) -> SandboxView:
        return sandbox_view(await self._record(params.sandbox_id))

    async def _start(self, params: verbs.ChangeSandbox) -> Any:
        request = _request(params, verb="start")
        return await self._change(params, ev.StartRequested(request=request), request)

    async def _pause(self, params: verbs.ChangeSandbox) -> Any:
        request = _request(params, verb="pause")
        return await self._change(params, ev.PauseRequested(request=request), request)

    async def _resume(self, params: verbs.ChangeSandbox) -> Any:
        request = _request(params, verb="resume")
        return await self._change(params, ev.ResumeRequested(request=request), request)

    async def _destroy(self, params: verbs.DestroySandbox) -> Any:
        request = _request(params, verb="destroy")
        event = ev.DestroyRequested(request=request, reason=params.reason)
        return await self._change(params, event, request)

    async def _stop(self, params: verbs.StopSandbox) -> Any:
        request = _request(params, verb="stop")
        snapshot_id = new_snapshot_id(self._ports.new_token())
        event = ev.StopRequested(request=request, keep=params.keep, snapshot_id=snapshot_id)
        return await self._change(params, event, request)

    async def _resize(self, params: verbs.ResizeSandbox) -> Any:
        check_size(params.size, policy=self._policy, machine=self._machine_facts)
        await self._admit_resize(params.sandbox_id, params.size.memory_mib)
        request = _request(params, verb="resize")
        return await self._change(params, ev.ResizeRequested(request=request, size=params.size), request)

    async def _take_snapshot(self, params: verbs.TakeSnapshot) -> Any:
        request = _request(params, verb="take_snapshot")
        event = ev.SnapshotRequested(
            request=request,
            snapshot_id=new_snapshot_id(self._ports.new_token()),
            name=params.name,
            keep_s=params.keep_s or self._policy.snapshot_keep_s,
        )
        return await self._change(params, event, request)

    async def _lease(self, params: verbs.OfSandbox) -> Lease:
        record = await self._record(params.sandbox_id)
        machine = self._roster.find(params.sandbox_id)
        if machine is not None:
            # A box that has not heard of this owner yet would still serve those who hold an older lease.
            await machine.compared(timeout_s=LEASE_WAIT_S)
            record = machine.record
            if record.phase in _PASSING or record.is_resting:
                record = await self._awake(machine)
        if record.phase is not Phase.RUNNING or record.birth_id is None:
            raise _no_lease(record)
        return Lease(
            sandbox_id=record.sandbox_id,
            control_path=str(self._roster.control_path(record.birth_id)),
            birth_id=record.birth_id,
            generation=record.generation,
            epoch=self._roster.epoch,
        )

    async def _awake(self, machine: SandboxMachine) -> SandboxRecord:
        """Wait for a passing phase to end, and wake a sandbox that rests for idleness."""
        record = await machine.settled(timeout_s=LEASE_WAIT_S)
        if not record.is_resting or record.pending is not None:
            return record
        match record.phase:
            case Phase.STOPPED:
                machine.tell(ev.StartRequested())
            case Phase.PAUSED:
                machine.tell(ev.ResumeRequested())
            case _:
                return record
        return await machine.settled(Phase.RUNNING, Phase.FAILED, timeout_s=LEASE_WAIT_S)

    async def _events(self, params: verbs.ReadEvents) -> dict[str, Any]:
        if params.sandbox_id is not None:
            await self._record(params.sandbox_id)
        deadline_s = self._ports.clock.monotonic_s() + params.wait_s
        while True:
            news = self._roster.news()
            found = await self._read_events(params)
            left_s = deadline_s - self._ports.clock.monotonic_s()
            if found or left_s <= 0:
                return {"events": found, "cursor": found[-1].seq if found else params.after}
            await wait_for(news, timeout_s=left_s)

    async def _read_events(self, params: verbs.ReadEvents) -> list[EventView]:
        lines = await self._journal.events(params.sandbox_id, after_seq=params.after, limit=params.limit)
        return [
            EventView(
                seq=line.seq, sandbox_id=line.sandbox_id, at=line.at, kind=line.kind, details=line.details
            )
            for line in lines
        ]

    async def _change(self, params: verbs.ChangeSandbox, event: ev.Request, request: RequestRef) -> Any:
        known = await known_answer(self._journal, request)
        if known is not None:
            return known
        machine = self._roster.find(params.sandbox_id)
        if machine is not None:
            return await self._join_or_ask(machine, event, request)
        record = await self._record(params.sandbox_id)
        if isinstance(event, ev.DestroyRequested):
            return sandbox_view(record)
        raise _destroyed(record)

    async def _join_or_ask(self, machine: SandboxMachine, event: ev.Request, request: RequestRef) -> Any:
        joined = machine.joined(request)
        if joined is not None:
            return await _bounded(asyncio.shield(joined), machine.record)
        return await _bounded(machine.ask(event), machine.record)

    async def _record(self, sandbox_id: SandboxId) -> SandboxRecord:
        machine = self._roster.find(sandbox_id)
        record = machine.record if machine is not None else await self._journal.record(sandbox_id)
        if record is None:
            raise NotFound(f"there is no sandbox {sandbox_id}", code="sandbox_not_found")
        return record


def _request(params: verbs.ChangeSandbox, *, verb: str) -> RequestRef:
    return RequestRef(request_id=params.request_id, verb=verb, fingerprint=params.fingerprint())


async def _bounded(answer: Any, record: SandboxRecord) -> Any:
    """Wait for an answer as long as a client may be kept waiting; the work goes on in any case."""
    try:
        async with asyncio.timeout(ANSWER_WAIT_S):
            return await answer
    except TimeoutError as error:
        raise Aborted(
            f"not finished after {ANSWER_WAIT_S:g} s; it goes on",
            code="in_progress",
            advice="repeat with the same request id to wait on, or look at the sandbox's events",
            sandbox_id=record.sandbox_id,
            admitted="yes",
            retry_after_s=1.0,
        ) from error


def _no_lease(record: SandboxRecord) -> SandkeeperError:
    if record.phase in _GONE:
        return _destroyed(record)
    if record.phase in _PASSING:
        return Unavailable(
            f"the sandbox is {record.phase.value}",
            code="sandbox_busy",
            advice="ask again in a moment",
            sandbox_id=record.sandbox_id,
            retry_after_s=1.0,
            details={"phase": record.phase.value},
        )
    codes = {Phase.PAUSED: "sandbox_paused", Phase.FAILED: "sandbox_failed"}
    advice = {Phase.PAUSED: "resume it first", Phase.FAILED: "see evidence; start it again"}
    evidence = record.evidence.model_dump(mode="json") if record.evidence else None
    return FailedPrecondition(
        f"the sandbox is {record.phase.value}, nothing can run in it",
        code=codes.get(record.phase, "sandbox_not_running"),
        advice=advice.get(record.phase, "start it first"),
        sandbox_id=record.sandbox_id,
        details={"phase": record.phase.value, "generation": record.generation, "evidence": evidence},
    )


def _destroyed(record: SandboxRecord) -> NotFound:
    return NotFound(
        "the sandbox was destroyed",
        code="sandbox_destroyed",
        advice="create a new one, or fork one of its snapshots",
        sandbox_id=record.sandbox_id,
        details={"phase": record.phase.value},
    )
