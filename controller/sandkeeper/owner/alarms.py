"""The alarm clock of an owner: one loop that fires what is due, and sleeps till the next.

Owns waiting. When an alarm is due is stored, never remembered: a new owner process fires at once what fell due while
there was none. An alarm and its journal line are one commit, so none is lost and none fires twice; readers of the
journal see it at least once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from sandkeeper.core.errors import SandkeeperError
from sandkeeper.ports import Ports
from sandkeeper.store.contract import Journal

log = structlog.get_logger(__name__)

MAX_SLEEP_S = 30.0
"""Wall time may be set, and a machine may sleep: the clock is read again after this time at the latest."""
ROUND = 100
"""Alarms fired in one commit; other commits wait behind it."""
RETRY_S = 1.0


class AlarmClock:
    """Fires the alarms of one owner."""

    def __init__(self, journal: Journal, *, on_fired: Callable[[], None], ports: Ports) -> None:
        self._journal = journal
        self._on_fired = on_fired
        self._ports = ports
        self._changed = asyncio.Event()

    def look_again(self) -> None:
        """Have the next alarm looked up again: one was set or cancelled."""
        self._changed.set()

    async def run(self) -> None:
        """Fire alarms for ever; the caller holds the task.

        Raises:
            SandkeeperError: The journal takes no more writes (`admitted` "unknown", or it is closed or fenced): the
                owner cannot go on.
        """
        while True:
            self._changed.clear()
            try:
                delay_s = await self._fire_due()
            except SandkeeperError as error:
                if error.code != "disk_full":
                    raise
                log.warning("alarms_wait", code=error.code)
                delay_s = RETRY_S
            await self._wait(delay_s)

    async def _fire_due(self) -> float:
        """Fire what is due and return the seconds until something may be due again."""
        while True:
            at = await self._journal.alarms.next_at()
            if at is None:
                return MAX_SLEEP_S
            now = self._ports.clock.now()
            if at > now:
                return min(MAX_SLEEP_S, (at - now).total_seconds())
            fired = await self._journal.alarms.fire(now, limit=ROUND)
            for alarm in fired:
                log.info("alarm_fired", sandbox_id=alarm.sandbox_id, alarm_id=alarm.alarm_id)
            self._on_fired()

    async def _wait(self, delay_s: float) -> None:
        try:
            async with asyncio.timeout(delay_s):
                await self._changed.wait()
        except TimeoutError:
            return
