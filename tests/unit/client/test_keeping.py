"""`sandbox.state` and `sandbox.alarm` against the owner's own verbs on a journal in memory."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import pytest
from pydantic import BaseModel, TypeAdapter

from sandkeeper.client.alarms import SandboxAlarms
from sandkeeper.client.routing import Router
from sandkeeper.client.state import SandboxState
from sandkeeper.control.server import VerbTable
from sandkeeper.core.errors import FailedPrecondition, InvalidArgument, NotFound
from sandkeeper.core.ids import SandboxId
from sandkeeper.owner.keeping import KeepingVerbs
from sandkeeper.ports import Ports
from tests.support.virtual_time import in_virtual_time
from tests.unit.owner.house import open_house

BOX = SandboxId("sb1")


class OwnersRouter:
    """A router with one owner in this process; what crosses is JSON, as on a socket."""

    def __init__(self, table: VerbTable, ports: Ports) -> None:
        self.ports = ports
        self._table = table

    async def owner(self, sandbox_id: SandboxId, verb: str, params: BaseModel, *, answer: Any) -> Any:
        document = await self._table.call(verb, params.model_dump(mode="json"))
        return TypeAdapter(answer).validate_python(document)


async def handles(ports: Ports) -> tuple[SandboxState, SandboxAlarms]:
    house = await open_house(ports)
    await house.create()
    verbs = KeepingVerbs(house.roster, journal=house.journal, on_alarm=lambda: None, ports=ports)
    router = cast("Router", OwnersRouter(VerbTable(verbs.entries()), ports))
    return SandboxState(BOX, router=router), SandboxAlarms(BOX, router=router)


@in_virtual_time
async def test_values_come_back(ports: Ports) -> None:
    state, _ = await handles(ports)
    item = await state.put("plan", {"steps": [1, None, "ü"]})
    assert await state.get("plan") == {"steps": [1, None, "ü"]}
    entry = await state.entry("plan")
    assert entry is not None
    assert (entry.version, entry.key) == (item.version, "plan")
    assert await state.get("other", 7) == 7
    assert await state.entry("other") is None
    await state.put("none", None)
    assert await state.get("none", 7) is None


@in_virtual_time
async def test_list_delete_and_compare_and_set(ports: Ports) -> None:
    state, _ = await handles(ports)
    item = await state.put("a/1", 1, if_version=0)
    await state.put("b", 2)
    with pytest.raises(FailedPrecondition) as refusal:
        await state.put("a/1", 3, if_version=0)
    assert refusal.value.details["version"] == item.version
    assert [found.key for found in await state.list("a/")] == ["a/1"]
    assert await state.delete("a/1", if_version=item.version)
    assert not await state.delete("a/1")
    assert [found.key for found in await state.list()] == ["b"]


@in_virtual_time
async def test_a_counter_by_compare_and_set(ports: Ports) -> None:
    """The way to change a value that others change too."""
    state, _ = await handles(ports)
    for _ in range(3):
        entry = await state.entry("n")
        value, version = (0, 0) if entry is None else (entry.value, entry.version)
        await state.put("n", value + 1, if_version=version)
    assert await state.get("n") == 3


@in_virtual_time
async def test_alarms_are_set_listed_and_cancelled(ports: Ports) -> None:
    _, alarms = await handles(ports)
    at = ports.clock.now() + timedelta(hours=1)
    alarm = await alarms.set(at, {"why": "look"}, alarm_id="look", request_id="r")
    assert await alarms.set(at, {"why": "look"}, alarm_id="look", request_id="r") == alarm
    soon = await alarms.set(in_s=5)
    assert [found.alarm_id for found in await alarms.list()] == [soon.alarm_id, "look"]
    assert (await alarms.cancel("look")).state == "cancelled"
    assert (await alarms.list())[1].payload == {"why": "look"}
    with pytest.raises(NotFound):
        await alarms.cancel("none")


@in_virtual_time
async def test_what_is_wrong_is_refused_before_anything_is_sent(ports: Ports) -> None:
    state, alarms = await handles(ports)
    for work in (
        state.put("k", object()),
        state.put("k", {1: 2}),
        state.put("k", "x" * 70_000),
        state.put("", 1),
        state.get("k\n"),
        alarms.set(ports.clock.now().replace(tzinfo=None)),
        alarms.set(in_s=1, payload=b"bytes"),
    ):
        with pytest.raises(InvalidArgument):
            await work
    assert await state.list() == []
