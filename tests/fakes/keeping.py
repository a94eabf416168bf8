"""State and alarms of a fake journal: the same promises as the tables on disk, kept in a `JournalContent`."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sandkeeper.core.alarms import FIRED, Alarm, AlarmState, check_pending, firing
from sandkeeper.core.ids import SandboxId
from sandkeeper.core.state import StateEntry, StateItem, check_room, check_version
from sandkeeper.store.alarms import alarm_not_found
from sandkeeper.store.entries import Answer
from sandkeeper.store.keeping import AlarmChange, KeptChange, StateChange
from sandkeeper.store.lines import check_alive, same_request
from tests.fakes.disk import JournalContent

if TYPE_CHECKING:
    from tests.fakes.journal import FakeJournal


@dataclass(frozen=True, slots=True)
class FakeState:
    """`keeping.KeptState` on a fake journal."""

    journal: FakeJournal

    async def change(self, change: StateChange) -> Answer:
        def work(content: JournalContent) -> Answer:
            known = _repeated(content, change)
            if known is not None:
                return known
            _refuse_gone(content, change.sandbox_id)
            name = (change.sandbox_id, change.key)
            found = content.states.get(name)
            check_version(change.key, wanted=change.if_version, found=0 if found is None else found.version)
            if change.text is not None:
                others = [
                    entry
                    for key, entry in content.states.items()
                    if key[0] == change.sandbox_id and key != name
                ]
                check_room(
                    size_bytes=change.size_bytes,
                    others_bytes=sum(entry.size_bytes for entry in others),
                    others_count=len(others),
                )
            seq = self.journal.line_of(
                content,
                change.sandbox_id,
                tenant_id=change.tenant_id,
                kind=change.kind,
                at=change.at,
                details=change.details(),
            )
            if change.text is None:
                content.states.pop(name, None)
            else:
                value = json.loads(change.text)
                content.states[name] = StateEntry(**change.item(seq).model_dump(), value=value)
            return _keep(content, change, change.document(version=seq, was_there=found is not None))

        return await self.journal.write(work, what=change.kind)

    async def entry(self, sandbox_id: SandboxId, *, key: str) -> StateEntry | None:
        return copy.deepcopy(self.journal.content.states.get((sandbox_id, key)))

    async def items(self, sandbox_id: SandboxId, *, prefix: str = "") -> list[StateItem]:
        return [
            StateItem(**entry.model_dump(exclude={"value"}))
            for (owner, key), entry in sorted(self.journal.content.states.items())
            if owner == sandbox_id and key.startswith(prefix)
        ]


@dataclass(frozen=True, slots=True)
class FakeAlarms:
    """`keeping.KeptAlarms` on a fake journal."""

    journal: FakeJournal

    async def change(self, change: AlarmChange) -> Answer:
        def work(content: JournalContent) -> Answer:
            known = _repeated(content, change)
            if known is not None:
                return known
            _refuse_gone(content, change.sandbox_id)
            name = (change.sandbox_id, change.alarm_id)
            if change.alarm is not None:
                others = [
                    alarm for alarm in _pending(content, change.sandbox_id) if alarm.alarm_id != name[1]
                ]
                check_pending(len(others))
                seq = self._line(content, change.alarm, kind="alarm_set", at=change.at, change=change)
                alarm = content.alarms[name] = change.alarm.model_copy(update={"version": seq})
            else:
                found = content.alarms.get(name)
                if found is None:
                    raise alarm_not_found(change)
                alarm, kind = found, "answered"
                if found.state is AlarmState.PENDING:
                    kind = "alarm_cancelled"
                    settled = {"state": AlarmState.CANCELLED, "settled_at": change.at}
                    alarm = content.alarms[name] = found.model_copy(update=settled)
                self._line(content, alarm, kind=kind, at=change.at, change=change)
            return _keep(content, change, alarm.model_dump(mode="json"))

        return await self.journal.write(work, what="alarm_set" if change.alarm else "alarm_cancelled")

    async def fire(self, now: datetime, *, limit: int) -> list[Alarm]:
        def work(content: JournalContent) -> list[Alarm]:
            pending = [alarm for alarm in content.alarms.values() if alarm.state is AlarmState.PENDING]
            due = sorted((alarm for alarm in pending if alarm.at <= now), key=lambda alarm: alarm.at)
            fired = []
            for alarm in due[:limit]:
                done = alarm.model_copy(update={"state": AlarmState.FIRED, "settled_at": now})
                content.alarms[(alarm.sandbox_id, alarm.alarm_id)] = done
                self.journal.line_of(
                    content,
                    alarm.sandbox_id,
                    tenant_id=content.records[alarm.sandbox_id].tenant_id,
                    kind=FIRED,
                    at=now,
                    details=firing(done, now=now),
                )
                fired.append(done)
            return fired

        return await self.journal.write(work, what=FIRED)

    async def next_at(self) -> datetime | None:
        pending = [
            alarm for alarm in self.journal.content.alarms.values() if alarm.state is AlarmState.PENDING
        ]
        return min((alarm.at for alarm in pending), default=None)

    async def of(self, sandbox_id: SandboxId, *, settled: int = 0) -> list[Alarm]:
        mine = [alarm for alarm in self.journal.content.alarms.values() if alarm.sandbox_id == sandbox_id]
        ended = sorted(
            (alarm for alarm in mine if alarm.settled_at is not None),
            key=lambda alarm: str(alarm.settled_at),
            reverse=True,
        )
        return [*_pending(self.journal.content, sandbox_id), *ended[:settled]]

    def _line(
        self, content: JournalContent, alarm: Alarm, *, kind: str, at: datetime, change: AlarmChange
    ) -> int:
        return self.journal.line_of(
            content,
            alarm.sandbox_id,
            tenant_id=change.tenant_id,
            kind=kind,
            at=at,
            details={"alarm_id": alarm.alarm_id, "at": alarm.at.isoformat()},
        )


def cancel_all(content: JournalContent, *, sandbox_id: SandboxId, at: datetime) -> None:
    """Cancel what is pending of a sandbox that ends."""
    for alarm in _pending(content, sandbox_id):
        settled = {"state": AlarmState.CANCELLED, "settled_at": at}
        content.alarms[(sandbox_id, alarm.alarm_id)] = alarm.model_copy(update=settled)


def prune(content: JournalContent, *, gone: set[SandboxId], before: datetime) -> None:
    """Forget the state of sandboxes long destroyed, and alarms that ended before that moment."""
    for name in [name for name in content.states if name[0] in gone]:
        del content.states[name]
    for key, alarm in list(content.alarms.items()):
        if alarm.settled_at is not None and alarm.settled_at < before:
            del content.alarms[key]


def _pending(content: JournalContent, sandbox_id: SandboxId) -> list[Alarm]:
    mine = [alarm for alarm in content.alarms.values() if alarm.sandbox_id == sandbox_id]
    return sorted((alarm for alarm in mine if alarm.state is AlarmState.PENDING), key=lambda alarm: alarm.at)


def _repeated(content: JournalContent, change: KeptChange) -> Answer | None:
    known = content.answers.get((change.tenant_id, change.request.request_id))
    return None if known is None else same_request(known, change.request)


def _refuse_gone(content: JournalContent, sandbox_id: SandboxId) -> None:
    record = content.records.get(sandbox_id)
    check_alive(sandbox_id, phase=None if record is None else record.phase.value)


def _keep(content: JournalContent, change: KeptChange, document: dict[str, Any]) -> Answer:
    answer = change.answered(document)
    content.answers[(answer.tenant_id, answer.request_id)] = answer
    return answer
