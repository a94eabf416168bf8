"""Alarms of a sandbox: when, with what payload, and what has become of them.

Owns their shape and bounds. Never keeps time: the owner's alarm clock does. An alarm that is due becomes the journal
line `alarm_fired`, at least once for its readers; one of a destroyed sandbox is cancelled.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, NewType

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from sandkeeper.core.documents import DocumentRule
from sandkeeper.core.errors import InvalidArgument, ResourceExhausted
from sandkeeper.core.ids import SandboxId

AlarmId = NewType("AlarmId", str)

MAX_PAYLOAD_BYTES = 16 * 1024
ALARM_PAYLOAD = DocumentRule(
    name="payload",
    limit_bytes=MAX_PAYLOAD_BYTES,
    not_json_code="payload_not_json",
    too_large_code="payload_too_large",
)
MAX_PENDING_ALARMS = 1000
"""Of one sandbox."""
MAX_AHEAD_S = 10 * 365 * 86_400.0
FIRED = "alarm_fired"
"""Kind of the journal line of an alarm that fired."""

AlarmName = Annotated[AlarmId, Field(pattern=r"^[A-Za-z0-9_.:-]{1,64}$")]
"""An alarm's id: 1-64 of letters, digits and `_ . : -`; an alarm set under a known one replaces it."""

_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)


class AlarmState(StrEnum):
    """What has become of an alarm."""

    PENDING = "pending"
    FIRED = "fired"
    CANCELLED = "cancelled"


class Alarm(BaseModel):
    """One alarm, as it is stored and shown.

    Attributes:
        alarm_id: Its id, unique in its sandbox.
        at: When it is due.
        payload: A JSON document that comes back with the firing.
        version: Journal line that set it.
        set_at: When it was set.
        settled_at: When it fired or was cancelled; None while it is pending.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    sandbox_id: SandboxId
    alarm_id: AlarmName
    at: AwareDatetime
    payload: Any = None
    state: AlarmState = AlarmState.PENDING
    version: int = 0
    set_at: AwareDatetime
    settled_at: AwareDatetime | None = None


def due_at(at: datetime | None, *, in_s: float | None, now: datetime) -> datetime:
    """Return the moment an alarm is due, in UTC, from one of the two ways to say it.

    Raises:
        InvalidArgument: `alarm_time_invalid`: both or neither, before 1970, or over ten years ahead.
    """
    if (at is None) == (in_s is None):
        raise _invalid("give either at or in_s")
    latest = now + timedelta(seconds=MAX_AHEAD_S)
    if at is None:
        assert in_s is not None
        if not 0 <= in_s <= MAX_AHEAD_S:
            raise _invalid(f"in_s is 0 to {MAX_AHEAD_S:g} seconds")
        return now + timedelta(seconds=in_s)
    if not _EARLIEST <= at <= latest:
        raise _invalid("at lies before 1970 or more than ten years ahead")
    return at.astimezone(UTC)


def check_pending(others: int) -> None:
    """Refuse an alarm beside `others` pending ones of its sandbox.

    Raises:
        ResourceExhausted: `alarms_full`.
    """
    if others >= MAX_PENDING_ALARMS:
        raise ResourceExhausted(
            f"{others} alarms are pending, {MAX_PENDING_ALARMS} are allowed",
            code="alarms_full",
            advice="cancel some, or set fewer and let each set the next",
            details={"limit": MAX_PENDING_ALARMS},
        )


def firing(alarm: Alarm, *, now: datetime) -> dict[str, Any]:
    """Return the details of the `alarm_fired` line."""
    late_ms = max(0, round((now - alarm.at).total_seconds() * 1000))
    return {
        "alarm_id": alarm.alarm_id,
        "payload": alarm.payload,
        "due_at": alarm.at.isoformat(),
        "late_ms": late_ms,
        "version": alarm.version,
    }


def _invalid(problem: str) -> InvalidArgument:
    return InvalidArgument(f"alarm: {problem}", code="alarm_time_invalid")
