"""kill -9 of the owner around the setting and the firing of alarms, and around writes of state.

What was acknowledged is there afterwards: every value, and every alarm fired exactly once in the journal, not before
its time, with its payload. Requests that were cut are repeated with the same id, as clients do.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import datetime
from typing import Any

import pytest

from tests.support.bare_yard import BareYard, bare_yard

pytestmark = [pytest.mark.crash, pytest.mark.slow]

KILLS = 6
ALARMS_A_ROUND = 25
SEED = 20_260_202
PATIENCE_S = 60.0


class Notes:
    """What was acknowledged: alarms by id, and the newest value of each key."""

    def __init__(self, yard: BareYard, sandbox_id: str) -> None:
        self.yard = yard
        self.sandbox_id = sandbox_id
        self.alarms: dict[str, dict[str, Any]] = {}
        self.values: dict[str, int] = {}

    async def set_alarm(self, number: int, *, in_s: float) -> None:
        answer = await self.yard.own(
            "alarm_set",
            sandbox_id=self.sandbox_id,
            request_id=f"alarm-{number}",
            alarm_id=f"a{number}",
            in_s=in_s,
            payload={"number": number},
        )
        self.alarms[answer["alarm_id"]] = answer

    async def put(self, key: str, value: int) -> None:
        await self.yard.own(
            "state_put", sandbox_id=self.sandbox_id, request_id=f"{key}-{value}", key=key, value=value
        )
        self.values[key] = value

    async def fired(self) -> Counter[str]:
        """Return how often each alarm fired, having checked what every firing says."""
        count: Counter[str] = Counter()
        for event in await self.yard.events(self.sandbox_id):
            if event["kind"] != "alarm_fired":
                continue
            details = event["details"]
            count[details["alarm_id"]] += 1
            assert details["payload"] == {"number": int(details["alarm_id"][1:])}
            assert datetime.fromisoformat(event["at"]) >= datetime.fromisoformat(details["due_at"])
        return count

    async def all_fired(self) -> Counter[str]:
        """Wait until every acknowledged alarm has fired."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                count = await self.fired()
                if count.keys() >= self.alarms.keys():
                    return count
                await asyncio.sleep(0.05)


async def test_kills_around_setting_and_firing() -> None:
    chance = random.Random(SEED)
    async with bare_yard() as yard:
        view = await yard.ask("create", request_id="create", image="base", detached=True)
        notes = Notes(yard, view["id"])
        for turn in range(KILLS):
            first = turn * ALARMS_A_ROUND
            working = [
                asyncio.create_task(notes.set_alarm(first + n, in_s=chance.choice((0.0, 0.1, 0.3, 1.0))))
                for n in range(ALARMS_A_ROUND)
            ]
            working += [asyncio.create_task(notes.put(f"k{n}", turn)) for n in range(5)]
            await asyncio.sleep(chance.uniform(0.0, 0.4))
            await yard.kill_owner()
            await yard.start_owner()
            await asyncio.gather(*working)
        assert len(notes.alarms) == KILLS * ALARMS_A_ROUND
        count = await notes.all_fired()
        assert set(count.values()) == {1}, "an alarm fired twice"
        for key, value in notes.values.items():
            entry = await yard.own("state_get", sandbox_id=view["id"], key=key)
            assert entry["value"] == value


async def test_what_fell_due_while_nothing_ran_fires_at_the_start_and_what_is_destroyed_never() -> None:
    async with bare_yard() as yard:
        kept = await yard.ask("create", request_id="kept", image="base", detached=True)
        gone = await yard.ask("create", request_id="gone", image="base", detached=True)
        notes = Notes(yard, kept["id"])
        others = Notes(yard, gone["id"])
        await notes.set_alarm(1, in_s=1.0)
        await others.set_alarm(2, in_s=1.0)
        await yard.own("destroy", sandbox_id=gone["id"], request_id="destroy")
        await yard.kill_owner()
        await yard.kill_directory()
        await asyncio.sleep(1.2)
        await yard.start_directory()
        await yard.start_owner()
        assert await notes.all_fired() == Counter({"a1": 1})
        assert await others.fired() == Counter()
        (cancelled,) = await yard.own("alarm_list", sandbox_id=gone["id"])
        assert cancelled["state"] == "cancelled"
