"""State and alarms through the owner's verbs, in virtual time: what is refused, and alarms over restarts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from sandkeeper.control.server import VerbTable
from sandkeeper.core.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    SandkeeperError,
)
from sandkeeper.core.state import MAX_VALUE_BYTES
from sandkeeper.owner.alarms import AlarmClock
from sandkeeper.owner.keeping import KeepingVerbs
from sandkeeper.ports import Ports
from tests.support.virtual_time import in_virtual_time
from tests.unit.owner.house import House, open_house


@dataclass
class Keeping:
    """A house with its alarm clock running."""

    house: House
    table: VerbTable
    clock: asyncio.Task[None]
    numbers: int = 0

    async def call(self, verb: str, **params: Any) -> Any:
        """Call a verb about sb1, mutating ones under a fresh request id unless one is given."""
        if verb not in ("state_get", "state_list", "alarm_list"):
            self.numbers += 1
            params.setdefault("request_id", f"{self.house.roster.epoch}-{self.numbers}")
        return await self.table.call(verb, {"sandbox_id": "sb1", **params})

    async def fired(self) -> list[dict[str, Any]]:
        """Return the details of all `alarm_fired` lines, as readers of the journal see them."""
        page = await self.house.call("events", sandbox_id="sb1", limit=1000)
        return [event["details"] for event in page["events"] if event["kind"] == "alarm_fired"]

    async def die(self) -> None:
        """End as by SIGKILL."""
        self.house.journal.kill()
        self.clock.cancel()
        await asyncio.gather(self.clock, return_exceptions=True)


async def open_keeping(ports: Ports, *, before: Keeping | None = None) -> Keeping:
    house = await open_house(ports, before=before.house if before else None)
    clock = AlarmClock(house.journal, on_fired=house.roster.announce, ports=ports)
    verbs = KeepingVerbs(house.roster, journal=house.journal, on_alarm=clock.look_again, ports=ports)
    if before is None:
        await house.create()
    running = ports.spawn(clock.run(), name="alarm clock")
    return Keeping(house, VerbTable(verbs.entries()), running)


async def refusal(work: Any, kind: type[SandkeeperError]) -> str:
    with pytest.raises(kind) as caught:
        await work
    return caught.value.code


@in_virtual_time
async def test_state_comes_back_and_outlives_the_owner_and_the_sandbox(ports: Ports) -> None:
    first = await open_keeping(ports)
    put = await first.call("state_put", key="step", value={"done": [1, 2]}, request_id="put")
    await first.die()
    second = await open_keeping(ports, before=first)
    assert await second.call("state_put", key="step", value={"done": [1, 2]}, request_id="put") == put
    await second.house.call("destroy", sandbox_id="sb1", request_id="d")
    entry = await second.call("state_get", key="step")
    assert (entry["value"], entry["version"]) == ({"done": [1, 2]}, put["version"])
    assert [item["key"] for item in await second.call("state_list", prefix="st")] == ["step"]
    assert await second.call("state_get", key="other") is None
    assert await refusal(second.call("state_put", key="a", value=1), NotFound) == "sandbox_destroyed"


@in_virtual_time
async def test_one_request_id_is_one_write(ports: Ports) -> None:
    keeping = await open_keeping(ports)
    await keeping.call("state_put", key="k", value=1, request_id="r")
    again = keeping.call("state_put", key="k", value=2, request_id="r")
    assert await refusal(again, AlreadyExists) == "request_id_conflict"
    other_verb = keeping.call("state_delete", key="k", request_id="r")
    assert await refusal(other_verb, AlreadyExists) == "request_id_conflict"


@in_virtual_time
async def test_compare_and_set_and_delete(ports: Ports) -> None:
    keeping = await open_keeping(ports)
    put = await keeping.call("state_put", key="k", value=1, if_version=0)
    stale = keeping.call("state_put", key="k", value=2, if_version=put["version"] + 1)
    assert await refusal(stale, FailedPrecondition) == "state_version_conflict"
    gone = await keeping.call("state_delete", key="k", if_version=put["version"])
    assert gone == {"key": "k", "was_there": True}
    assert await keeping.call("state_list") == []


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("", 1, "invalid_parameters"),
        ("k" * 257, 1, "invalid_parameters"),
        ("a\nb", 1, "invalid_parameters"),
        ("k", float("nan"), "state_not_json"),
        ("k", float("inf"), "state_not_json"),
        ("k", "\ud800", "state_not_json"),
        ("k", nested(65), "state_not_json"),
        ("k", nested(9000), "invalid_parameters"),
        ("k", "x" * MAX_VALUE_BYTES, "state_too_large"),
        ("k", "ä" * (MAX_VALUE_BYTES // 2), "state_too_large"),
    ],
)
@in_virtual_time
async def test_what_cannot_be_kept_is_refused(ports: Ports, key: str, value: Any, code: str) -> None:
    keeping = await open_keeping(ports)
    assert await refusal(keeping.call("state_put", key=key, value=value), InvalidArgument) == code
    assert await keeping.call("state_list") == []


@in_virtual_time
async def test_the_limits_themselves_are_taken(ports: Ports) -> None:
    keeping = await open_keeping(ports)
    await keeping.call("state_put", key="k" * 256, value="x" * (MAX_VALUE_BYTES - 2))
    await keeping.call("state_put", key="deep", value=nested(63))
    assert (await keeping.call("state_get", key="deep"))["value"] == nested(63)


@in_virtual_time
async def test_an_alarm_fires_at_its_time(ports: Ports) -> None:
    keeping = await open_keeping(ports)
    at = ports.clock.now() + timedelta(hours=3)
    await keeping.call("alarm_set", alarm_id="a", at=at.isoformat(), payload={"n": 1})
    await keeping.call("alarm_set", alarm_id="soon", in_s=5)
    await ports.sleep(4.9)
    assert await keeping.fired() == []
    await ports.sleep(0.2)
    assert [event["alarm_id"] for event in await keeping.fired()] == ["soon"]
    await ports.sleep(3 * 3600)
    assert [event["alarm_id"] for event in await keeping.fired()] == ["soon", "a"]
    (_, late) = await keeping.fired()
    assert (late["payload"], late["due_at"], late["late_ms"]) == ({"n": 1}, at.isoformat(), 0)


@in_virtual_time
async def test_who_waits_for_events_hears_of_a_firing_at_once(ports: Ports) -> None:
    keeping = await open_keeping(ports)
    cursor = (await keeping.house.call("events", sandbox_id="sb1"))["cursor"]
    await keeping.call("alarm_set", in_s=7)
    began_s = ports.clock.monotonic_s()
    kinds: list[str] = []
    while "alarm_fired" not in kinds:
        page = await keeping.house.call("events", sandbox_id="sb1", after=cursor, wait_s=60)
        kinds += [event["kind"] for event in page["events"]]
        cursor = page["cursor"]
    assert ports.clock.monotonic_s() - began_s == pytest.approx(7, abs=0.01)


@in_virtual_time
async def test_an_alarm_that_fell_due_while_nobody_was_there_fires_at_the_next_start(ports: Ports) -> None:
    first = await open_keeping(ports)
    await first.call("alarm_set", alarm_id="a", in_s=10, payload="p")
    await first.die()
    await ports.sleep(3600)
    second = await open_keeping(ports, before=first)
    await ports.sleep(0.01)
    (event,) = await second.fired()
    assert (event["alarm_id"], event["payload"]) == ("a", "p")
    assert event["late_ms"] == pytest.approx(3_590_000, abs=100)
    (alarm,) = await second.call("alarm_list")
    assert alarm["state"] == "fired"


@in_virtual_time
async def test_a_repeated_set_does_not_move_the_time(ports: Ports) -> None:
    keeping = await open_keeping(ports)
    first = await keeping.call("alarm_set", in_s=10, request_id="r")
    await ports.sleep(5)
    assert await keeping.call("alarm_set", in_s=10, request_id="r") == first
    await ports.sleep(5.1)
    assert len(await keeping.fired()) == 1


@in_virtual_time
async def test_setting_again_replaces_and_cancelling_ends(ports: Ports) -> None:
    keeping = await open_keeping(ports)
    await keeping.call("alarm_set", alarm_id="a", in_s=5)
    await keeping.call("alarm_set", alarm_id="a", in_s=50, payload=2)
    await keeping.call("alarm_set", alarm_id="b", in_s=6)
    await keeping.call("alarm_cancel", alarm_id="b")
    await ports.sleep(20)
    assert await keeping.fired() == []
    await ports.sleep(40)
    assert [event["payload"] for event in await keeping.fired()] == [2]
    assert await refusal(keeping.call("alarm_cancel", alarm_id="c"), NotFound) == "alarm_not_found"


@in_virtual_time
async def test_alarms_fire_in_every_phase_until_the_destruction(ports: Ports) -> None:
    keeping = await open_keeping(ports)
    await keeping.house.call("stop", sandbox_id="sb1", request_id="s", keep="files")
    await keeping.call("alarm_set", alarm_id="stopped", in_s=5)
    await keeping.call("alarm_set", alarm_id="never", in_s=50)
    await ports.sleep(10)
    await keeping.house.call("destroy", sandbox_id="sb1", request_id="d")
    await ports.sleep(100)
    assert [event["alarm_id"] for event in await keeping.fired()] == ["stopped"]
    states = {alarm["alarm_id"]: alarm["state"] for alarm in await keeping.call("alarm_list")}
    assert states == {"never": "cancelled", "stopped": "fired"}


@in_virtual_time
async def test_many_alarms_at_one_moment_all_fire(ports: Ports) -> None:
    keeping = await open_keeping(ports)
    await asyncio.gather(
        *(keeping.call("alarm_set", alarm_id=f"a{n}", in_s=1, request_id=f"r{n}") for n in range(250))
    )
    await ports.sleep(2)
    assert len({event["alarm_id"] for event in await keeping.fired()}) == 250


@in_virtual_time
async def test_a_full_disk_delays_a_firing_and_a_broken_journal_ends_the_clock(ports: Ports) -> None:
    keeping = await open_keeping(ports)
    await keeping.call("alarm_set", in_s=1)
    keeping.house.disk.is_full = True
    assert await refusal(keeping.call("state_put", key="k", value=1), ResourceExhausted) == "disk_full"
    await ports.sleep(5)
    assert await keeping.fired() == []
    keeping.house.disk.is_full = False
    await ports.sleep(2)
    assert len(await keeping.fired()) == 1
    await keeping.house.journal.close()
    with pytest.raises(FailedPrecondition):
        await keeping.clock


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({}, "alarm_time_invalid"),
        ({"at": "2030-01-01T00:00:00+00:00", "in_s": 1}, "alarm_time_invalid"),
        ({"in_s": -1}, "alarm_time_invalid"),
        ({"in_s": 1e12}, "alarm_time_invalid"),
        ({"in_s": float("nan")}, "invalid_parameters"),
        ({"at": "2030-01-01T00:00:00"}, "invalid_parameters"),
        ({"at": "0001-01-01T00:00:00+14:00"}, "alarm_time_invalid"),
        ({"at": "9999-12-31T23:59:59-14:00"}, "alarm_time_invalid"),
        ({"in_s": 1, "alarm_id": "a b"}, "invalid_parameters"),
        ({"in_s": 1, "payload": "x" * 16_384}, "payload_too_large"),
    ],
)
@in_virtual_time
async def test_what_is_no_alarm_is_refused(ports: Ports, wrong: dict[str, Any], code: str) -> None:
    keeping = await open_keeping(ports)
    assert await refusal(keeping.call("alarm_set", **wrong), InvalidArgument) == code
    assert await keeping.call("alarm_list") == []
