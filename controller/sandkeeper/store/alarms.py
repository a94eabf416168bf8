"""The alarms of sandboxes in an owner's file.

Owns its table's statements. An alarm and the journal line that says what became of it are written together: neither
is ever there without the other.
"""

from __future__ import annotations

import json
import sqlite3
from datetime import datetime
from typing import Any

from sandkeeper.core.alarms import FIRED, Alarm, AlarmState, check_pending, firing
from sandkeeper.core.errors import NotFound
from sandkeeper.core.ids import MachineId, SandboxId, TenantId
from sandkeeper.store import journal_rows as rows
from sandkeeper.store import lines, schema
from sandkeeper.store.committer import Committer
from sandkeeper.store.entries import Answer, moment_text
from sandkeeper.store.keeping import AlarmChange
from sandkeeper.store.reading import ReadConnection
from sandkeeper.store.statements import upsert

_FIELDS = ("sandbox_id", "alarm_id", "at", "state", "version", "set_at", "settled_at")
_COLUMNS = f"{', '.join(_FIELDS)}, payload"
_PUT = upsert(schema.alarms)
_ONE = f"SELECT {_COLUMNS} FROM alarms WHERE sandbox_id = :sandbox_id AND alarm_id = :alarm_id"
_OTHERS = "SELECT count(*) FROM alarms WHERE sandbox_id = :sandbox_id AND alarm_id != :alarm_id AND state = 'pending'"
_SETTLE = (
    "UPDATE alarms SET state = :state, settled_at = :settled_at"
    " WHERE sandbox_id = :sandbox_id AND alarm_id = :alarm_id"
)
_DUE = f"SELECT {_COLUMNS}, tenant_id FROM alarms WHERE state = 'pending' AND at <= :now ORDER BY at LIMIT :limit"
_NEXT = "SELECT min(at) FROM alarms WHERE state = 'pending'"
_PENDING = f"SELECT {_COLUMNS} FROM alarms WHERE sandbox_id = :sandbox_id AND state = 'pending' ORDER BY at"
_SETTLED = (
    f"SELECT {_COLUMNS} FROM alarms WHERE sandbox_id = :sandbox_id AND state != 'pending'"
    " ORDER BY settled_at DESC LIMIT :settled"
)
_CANCEL_ALL = (
    "UPDATE alarms SET state = 'cancelled', settled_at = :at"
    " WHERE sandbox_id = :sandbox_id AND state = 'pending'"
)
PRUNE = "DELETE FROM alarms WHERE settled_at < :before"


def cancel_all(connection: sqlite3.Connection, *, sandbox_id: SandboxId, at: str) -> None:
    """Cancel what is pending of a sandbox that ends, in the transaction that ends it."""
    connection.execute(_CANCEL_ALL, {"sandbox_id": sandbox_id, "at": at})


class AlarmTable:
    """`keeping.KeptAlarms` on an owner's file."""

    def __init__(self, committer: Committer, *, file: ReadConnection, machine_id: MachineId) -> None:
        self._committer = committer
        self._file = file
        self._machine_id = machine_id

    async def change(self, change: AlarmChange) -> Answer:
        """Set or cancel an alarm and return the answer (see `keeping.KeptAlarms`)."""

        def work(connection: sqlite3.Connection) -> Answer:
            known = lines.repeated(connection, change.request, tenant_id=change.tenant_id)
            if known is not None:
                return known
            lines.refuse_gone(connection, change.sandbox_id)
            if change.alarm is None:
                done = self._cancel(connection, change)
            else:
                done = self._set(connection, change, change.alarm)
            answer = change.answered(done.model_dump(mode="json"))
            lines.put_answer(connection, rows.answer_row(answer, machine_id=self._machine_id))
            return answer

        return await self._committer.commit(work)

    async def fire(self, now: datetime, *, limit: int) -> list[Alarm]:
        """Fire up to `limit` alarms that are due, soonest first: each with its `alarm_fired` line, all or none."""
        wanted = {"now": moment_text(now), "limit": limit}

        def work(connection: sqlite3.Connection) -> list[Alarm]:
            fired = []
            for *row, tenant_id in connection.execute(_DUE, wanted).fetchall():
                alarm = self._alarm(row).model_copy(update={"state": AlarmState.FIRED, "settled_at": now})
                line = self._line(alarm, tenant_id=tenant_id, kind=FIRED, at=now)
                lines.put_line(connection, line | {"details": json.dumps(firing(alarm, now=now))})
                _settle(connection, alarm)
                fired.append(alarm)
            return fired

        return await self._committer.commit(work)

    async def next_at(self) -> datetime | None:
        """Return when the soonest pending alarm is due."""
        at = (await self._file.rows(_NEXT))[0][0]
        return None if at is None else datetime.fromisoformat(at)

    async def of(self, sandbox_id: SandboxId, *, settled: int = 0) -> list[Alarm]:
        """Return a sandbox's pending alarms, soonest first, then the `settled` ones that ended last."""
        wanted = {"sandbox_id": sandbox_id, "settled": settled}
        found = [*await self._file.rows(_PENDING, wanted), *await self._file.rows(_SETTLED, wanted)]
        return [self._alarm(row) for row in found]

    def _set(self, connection: sqlite3.Connection, change: AlarmChange, alarm: Alarm) -> Alarm:
        check_pending(connection.execute(_OTHERS, _name(alarm)).fetchone()[0])
        line = self._line(alarm, tenant_id=change.tenant_id, kind="alarm_set", at=change.at)
        stored = alarm.model_copy(update={"version": lines.put_line(connection, line)})
        row = stored.model_dump(include=set(_FIELDS)) | {
            "tenant_id": change.tenant_id,
            "machine_id": self._machine_id,
            "at": moment_text(stored.at),
            "set_at": moment_text(stored.set_at),
            "payload": json.dumps(stored.payload),
        }
        connection.execute(_PUT, row)
        return stored

    def _cancel(self, connection: sqlite3.Connection, change: AlarmChange) -> Alarm:
        wanted = {"sandbox_id": change.sandbox_id, "alarm_id": change.alarm_id}
        row = connection.execute(_ONE, wanted).fetchone()
        if row is None:
            raise alarm_not_found(change)
        alarm = self._alarm(row)
        kind = "answered"
        if alarm.state is AlarmState.PENDING:
            kind = "alarm_cancelled"
            alarm = alarm.model_copy(update={"state": AlarmState.CANCELLED, "settled_at": change.at})
            _settle(connection, alarm)
        lines.put_line(connection, self._line(alarm, tenant_id=change.tenant_id, kind=kind, at=change.at))
        return alarm

    def _line(self, alarm: Alarm, *, tenant_id: TenantId, kind: str, at: datetime) -> rows.Parameters:
        return rows.note_row(
            alarm.sandbox_id,
            tenant_id=tenant_id,
            machine_id=self._machine_id,
            kind=kind,
            at=at,
            details={"alarm_id": alarm.alarm_id, "at": alarm.at.isoformat()},
        )

    def _alarm(self, row: Any) -> Alarm:
        *head, payload = row
        fields = json.dumps(dict(zip(_FIELDS, head, strict=True)))
        return self._file.parsed(f'{fields[:-1]}, "payload": {payload}}}', model=Alarm)


def alarm_not_found(change: AlarmChange) -> NotFound:
    """Return the error of a cancel whose alarm was never set, or is forgotten."""
    return NotFound(
        f"the sandbox has no alarm {change.alarm_id}",
        code="alarm_not_found",
        advice="list its alarms; settled ones are forgotten in time",
        sandbox_id=change.sandbox_id,
    )


def _settle(connection: sqlite3.Connection, alarm: Alarm) -> None:
    at = None if alarm.settled_at is None else moment_text(alarm.settled_at)
    connection.execute(_SETTLE, _name(alarm) | {"state": alarm.state.value, "settled_at": at})


def _name(alarm: Alarm) -> dict[str, Any]:
    return {"sandbox_id": alarm.sandbox_id, "alarm_id": alarm.alarm_id}
