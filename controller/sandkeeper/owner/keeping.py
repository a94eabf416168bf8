"""The owner's verbs for what a sandbox keeps beside its box: state and alarms.

Owns the checks of what is written, and that the alarm clock hears of every alarm. They touch no runtime and no phase:
they work on a stopped or failed sandbox too, and reading works on a destroyed one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sandkeeper.control.server import VerbEntries
from sandkeeper.core import keeping_verbs as verbs
from sandkeeper.core.alarms import ALARM_PAYLOAD, Alarm, AlarmId, due_at
from sandkeeper.core.documents import document_text
from sandkeeper.core.errors import NotFound
from sandkeeper.core.ids import SandboxId
from sandkeeper.core.record import RequestRef, SandboxRecord
from sandkeeper.core.state import STATE_VALUE, StateEntry, StateItem
from sandkeeper.core.verbs import ChangeSandbox
from sandkeeper.owner.answers import known_answer
from sandkeeper.owner.roster import Roster
from sandkeeper.ports import Ports
from sandkeeper.store.contract import Journal
from sandkeeper.store.keeping import AlarmChange, StateChange


class KeepingVerbs:
    """State and alarms of one owner's sandboxes."""

    def __init__(
        self, roster: Roster, *, journal: Journal, on_alarm: Callable[[], None], ports: Ports
    ) -> None:
        self._roster = roster
        self._journal = journal
        self._on_alarm = on_alarm
        self._ports = ports

    def entries(self) -> VerbEntries:
        """Return their part of the owner's dispatch table."""
        return {
            "state_get": (verbs.GetState, self._get),
            "state_put": (verbs.PutState, self._put),
            "state_delete": (verbs.DeleteState, self._delete),
            "state_list": (verbs.ListState, self._list),
            "alarm_set": (verbs.SetAlarm, self._set_alarm),
            "alarm_cancel": (verbs.CancelAlarm, self._cancel_alarm),
            "alarm_list": (verbs.ListAlarms, self._list_alarms),
        }

    async def _get(self, params: verbs.GetState) -> StateEntry | None:
        await self._record(params.sandbox_id)
        return await self._journal.state.entry(params.sandbox_id, key=params.key)

    async def _list(self, params: verbs.ListState) -> list[StateItem]:
        await self._record(params.sandbox_id)
        return await self._journal.state.items(params.sandbox_id, prefix=params.prefix)

    async def _put(self, params: verbs.PutState) -> dict[str, Any]:
        text = document_text(params.value, STATE_VALUE)
        return await self._change_state(params, verb="state_put", text=text)

    async def _delete(self, params: verbs.DeleteState) -> dict[str, Any]:
        return await self._change_state(params, verb="state_delete", text=None)

    async def _change_state(
        self, params: verbs.PutState | verbs.DeleteState, *, verb: str, text: str | None
    ) -> dict[str, Any]:
        request = _request(params, verb=verb)
        known: dict[str, Any] | None = await known_answer(self._journal, request)
        if known is not None:
            return known
        record = await self._record(params.sandbox_id)
        change = StateChange(
            sandbox_id=record.sandbox_id,
            tenant_id=record.tenant_id,
            request=request,
            at=self._ports.clock.now(),
            key=params.key,
            text=text,
            if_version=params.if_version,
        )
        answer = await self._journal.state.change(change)
        self._roster.announce()
        return answer.document

    async def _set_alarm(self, params: verbs.SetAlarm) -> dict[str, Any]:
        document_text(params.payload, ALARM_PAYLOAD)
        record = await self._record(params.sandbox_id)
        now = self._ports.clock.now()
        alarm_id = params.alarm_id or AlarmId(f"al{self._ports.new_token()}")
        alarm = Alarm(
            sandbox_id=record.sandbox_id,
            alarm_id=alarm_id,
            at=due_at(params.at, in_s=params.in_s, now=now),
            payload=params.payload,
            set_at=now,
        )
        return await self._change_alarm(record, _request(params, verb="alarm_set"), alarm_id, alarm)

    async def _cancel_alarm(self, params: verbs.CancelAlarm) -> dict[str, Any]:
        record = await self._record(params.sandbox_id)
        return await self._change_alarm(record, _request(params, verb="alarm_cancel"), params.alarm_id, None)

    async def _change_alarm(
        self, record: SandboxRecord, request: RequestRef, alarm_id: AlarmId, alarm: Alarm | None
    ) -> dict[str, Any]:
        known: dict[str, Any] | None = await known_answer(self._journal, request)
        if known is not None:
            return known
        change = AlarmChange(
            sandbox_id=record.sandbox_id,
            tenant_id=record.tenant_id,
            request=request,
            at=self._ports.clock.now(),
            alarm_id=alarm_id,
            alarm=alarm,
        )
        answer = await self._journal.alarms.change(change)
        self._on_alarm()
        self._roster.announce()
        return answer.document

    async def _list_alarms(self, params: verbs.ListAlarms) -> list[Alarm]:
        await self._record(params.sandbox_id)
        return await self._journal.alarms.of(params.sandbox_id, settled=params.settled)

    async def _record(self, sandbox_id: SandboxId) -> SandboxRecord:
        machine = self._roster.find(sandbox_id)
        record = machine.record if machine is not None else await self._journal.record(sandbox_id)
        if record is None:
            raise NotFound(f"there is no sandbox {sandbox_id}", code="sandbox_not_found")
        return record


def _request(params: ChangeSandbox, *, verb: str) -> RequestRef:
    return RequestRef(request_id=params.request_id, verb=verb, fingerprint=params.fingerprint())
