"""A client that keeps notes: it writes state and sets alarms, and remembers what it was told is durable.

At the end every acknowledged write is there, and every acknowledged alarm has fired once, or was cancelled by the end
of its sandbox. Has dice of its own, so that the other clients of a seed do what they did without it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from sandkeeper.core.alarms import FIRED, AlarmId, AlarmState
from sandkeeper.core.errors import SandkeeperError
from sandkeeper.core.ids import SandboxId
from sandkeeper.ports import Ports
from tests.fakes.disk import JournalContent
from tests.simulation.promises import BrokenPromiseError

TURNS = 12
KEYS = ("plan", "step")

Ask = Callable[[str, dict[str, Any]], Awaitable[Any]]


class NoteTaker:
    """Writes about one sandbox."""

    def __init__(self, sandbox_id: SandboxId, *, ask: Ask, ports: Ports, seed: int) -> None:
        self._sandbox_id = sandbox_id
        self._ask = ask
        self._ports = ports
        self._dice = random.Random(seed)
        self._written: dict[str, Any] = {}
        self._alarms: set[AlarmId] = set()

    async def play(self) -> None:
        """Write and set alarms, each until it is answered."""
        for turn in range(TURNS):
            await self._ports.sleep(self._dice.expovariate(1 / 3))
            common = {"sandbox_id": self._sandbox_id, "request_id": f"note-{turn}"}
            if self._dice.random() < 0.5:
                await self._write(common, turn)
            else:
                await self._set_alarm(common, turn)

    async def _write(self, common: dict[str, Any], turn: int) -> None:
        key = self._dice.choice(KEYS)
        answer = await self._ask("state_put", {**common, "key": key, "value": turn})
        if not isinstance(answer, SandkeeperError):
            self._written[key] = turn
            again = await self._ask("state_put", {**common, "key": key, "value": turn})
            if again != answer:
                raise BrokenPromiseError(f"state_put was answered {answer}, then {again}")

    async def _set_alarm(self, common: dict[str, Any], turn: int) -> None:
        alarm_id, in_s = f"al-{turn}", self._dice.choice((0.0, 0.5, 3.0, 20.0))
        answer = await self._ask("alarm_set", {**common, "alarm_id": alarm_id, "in_s": in_s, "payload": turn})
        if not isinstance(answer, SandkeeperError):
            self._alarms.add(AlarmId(alarm_id))

    def check(self, content: JournalContent) -> None:
        """Compare what was acknowledged with what is durable.

        Raises:
            BrokenPromiseError: Something acknowledged is missing, or was done twice.
        """
        for key, turn in self._written.items():
            entry = content.states.get((self._sandbox_id, key))
            if entry is None or entry.value != turn:
                raise BrokenPromiseError(f"P3: {key} was written as {turn} and is {entry}")
        fired = Counter(line.details["alarm_id"] for line in content.events if line.kind == FIRED)
        stored = {name: alarm.state for (_, name), alarm in content.alarms.items()}
        for alarm_id in self._alarms:
            is_cancelled = stored.get(alarm_id) is AlarmState.CANCELLED
            if fired[alarm_id] != (0 if is_cancelled else 1):
                raise BrokenPromiseError(
                    f"P3: alarm {alarm_id} is {stored.get(alarm_id)} and fired {fired[alarm_id]} times"
                )
