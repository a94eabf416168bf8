"""Parameters of the verbs for what a sandbox keeps beside its box: state and alarms.

The mutating ones carry a `request_id` whose answer is journaled, as in `verbs`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AwareDatetime, Field, JsonValue

from sandkeeper.core.alarms import AlarmName
from sandkeeper.core.state import StateKey
from sandkeeper.core.verbs import ChangeSandbox, OfSandbox

Version = Annotated[int, Field(ge=0)]


class GetState(OfSandbox):
    """Read one key."""

    key: StateKey


class PutState(ChangeSandbox):
    """Write one key; `if_version` makes it a compare-and-set, 0 meaning that there is no such key."""

    key: StateKey
    value: JsonValue
    if_version: Version | None = None


class DeleteState(ChangeSandbox):
    """Delete one key, there or not; `if_version` as for a write."""

    key: StateKey
    if_version: Version | None = None


class ListState(OfSandbox):
    """List the keys that begin with `prefix`."""

    prefix: Annotated[str, Field(max_length=256)] = ""


class SetAlarm(ChangeSandbox):
    """Set an alarm at a moment or in a number of seconds; the same `alarm_id` replaces one."""

    alarm_id: AlarmName | None = None
    at: AwareDatetime | None = None
    in_s: Annotated[float, Field(allow_inf_nan=False)] | None = None
    payload: JsonValue = None


class CancelAlarm(ChangeSandbox):
    """Cancel an alarm that is pending."""

    alarm_id: AlarmName


class ListAlarms(OfSandbox):
    """List all pending alarms, soonest first, then the `settled` ones that ended last."""

    settled: Annotated[int, Field(ge=0, le=1000)] = 100
