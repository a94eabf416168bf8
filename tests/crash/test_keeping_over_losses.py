"""State, alarms and names on real containers: the box and its owner are killed, what is beside them stays."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.yard import Yard, eventually, token

pytestmark = [pytest.mark.crash, pytest.mark.docker]


async def test_state_and_alarms_outlive_box_owner_and_sandbox(yard: Yard) -> None:
    view = await yard.create()
    sandbox_id = view["id"]
    await yard.change("state_put", sandbox_id, key="step", value={"n": 3})
    await yard.change("alarm_set", sandbox_id, alarm_id="soon", in_s=1.0, payload="wake")
    await yard.change("alarm_set", sandbox_id, alarm_id="never", in_s=3600.0)
    yard.kill_container(view["birth_id"])
    await yard.until(sandbox_id, "running", generation=2)
    await yard.kill_owner()
    await asyncio.sleep(1.0)
    await yard.start_owner()

    async def fired() -> bool:
        return any(event["kind"] == "alarm_fired" for event in await yard.events(sandbox_id))

    await eventually(fired, "the alarm never fired")
    await yard.change("destroy", sandbox_id)
    entry = await yard.own("state_get", sandbox_id=sandbox_id, key="step")
    assert entry["value"] == {"n": 3}
    alarms = await yard.own("alarm_list", sandbox_id=sandbox_id)
    assert {alarm["alarm_id"]: alarm["state"] for alarm in alarms} == {"soon": "fired", "never": "cancelled"}
    (event,) = [event for event in await yard.events(sandbox_id) if event["kind"] == "alarm_fired"]
    assert event["details"]["payload"] == "wake"


async def test_a_named_sandbox_is_found_again_with_its_files(yard: Yard) -> None:
    wanted = {
        "name": f"dev-{token()}",
        "image": yard.image,
        "size": {"name": "custom", "vcpu": 1, "memory_mib": 256},
    }
    first = await yard.ask("get_or_create", request_id=token(), **wanted)
    sandbox_id = first["sandbox"]["id"]
    await yard.write(sandbox_id, "/kept", b"kept")
    await yard.change("stop", sandbox_id, keep="files")
    again = await asyncio.gather(*(yard.ask("get_or_create", request_id=token(), **wanted) for _ in range(3)))
    assert [answer["is_new"] for answer in again] == [False] * 3
    assert {answer["sandbox"]["id"] for answer in again} == {sandbox_id}
    assert await yard.read(sandbox_id, "/kept") == b"kept"
