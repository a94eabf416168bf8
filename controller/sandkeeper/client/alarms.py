"""`sandbox.alarms`: alarms that fire for certain, whatever dies in between.

Owns nothing but the words. An alarm fires as the journal line `alarm_fired` with its id and payload: read it with
`sandbox.events(follow=True)`. What fell due while nothing ran fires as soon as something runs.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sandkeeper.client.routing import Router
from sandkeeper.core.alarms import ALARM_PAYLOAD, Alarm
from sandkeeper.core.documents import document_text
from sandkeeper.core.ids import SandboxId
from sandkeeper.core.keeping_verbs import CancelAlarm, ListAlarms, SetAlarm
from sandkeeper.core.verbs import checked


class SandboxAlarms:
    """The alarms of one sandbox."""

    def __init__(self, sandbox_id: SandboxId, *, router: Router) -> None:
        self._id = sandbox_id
        self._router = router

    async def set(
        self,
        at: datetime | None = None,
        payload: Any = None,
        *,
        in_s: float | None = None,
        alarm_id: str | None = None,
        request_id: str | None = None,
    ) -> Alarm:
        """Set an alarm; durable when it returns.

        Args:
            at: Aware moment it is due; one that has passed fires at once. Or give `in_s`.
            payload: A JSON document of up to 16 KiB that comes back with the firing.
            in_s: Seconds from now, instead of `at`.
            alarm_id: An alarm set under a known id replaces that one; None = a new id.
            request_id: A repeat with the same id sets it once, and does not move it.

        Raises:
            InvalidArgument: `alarm_time_invalid`, `payload_not_json`, `payload_too_large`.
            ResourceExhausted: `alarms_full`: 1,000 are pending.
            NotFound: `sandbox_destroyed`.
        """
        document_text(payload, ALARM_PAYLOAD)
        params = checked(
            SetAlarm,
            sandbox_id=self._id,
            request_id=request_id or self._router.ports.new_token(),
            alarm_id=alarm_id,
            at=at,
            in_s=in_s,
            payload=payload,
        )
        return await self._alarm("alarm_set", params)

    async def cancel(self, alarm_id: str, *, request_id: str | None = None) -> Alarm:
        """Cancel an alarm and return what has become of it: one that fired before stays `fired`.

        Raises:
            NotFound: `alarm_not_found`, `sandbox_destroyed`.
        """
        params = checked(
            CancelAlarm,
            sandbox_id=self._id,
            request_id=request_id or self._router.ports.new_token(),
            alarm_id=alarm_id,
        )
        return await self._alarm("alarm_cancel", params)

    async def list(self, *, settled: int = 100) -> list[Alarm]:
        """Return all pending alarms, soonest first, then up to `settled` that fired or were cancelled last."""
        params = checked(ListAlarms, sandbox_id=self._id, settled=settled)
        alarms: list[Alarm] = await self._router.owner(self._id, "alarm_list", params, answer=list[Alarm])
        return alarms

    async def _alarm(self, verb: str, params: SetAlarm | CancelAlarm) -> Alarm:
        alarm: Alarm = await self._router.owner(self._id, verb, params, answer=Alarm)
        return alarm
