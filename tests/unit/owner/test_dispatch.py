"""The owner's verbs: request ids, leases, events, and creates that come to nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandkeeper.control.server import VerbTable
from sandkeeper.core.admission import MachineFacts, Policy
from sandkeeper.core.errors import (
    Aborted,
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    SandkeeperError,
)
from sandkeeper.core.spec import OnLost
from sandkeeper.owner.dispatch import OwnerVerbs
from sandkeeper.ports import Ports
from tests.support.doors import no_bound
from tests.support.virtual_time import in_virtual_time
from tests.unit.owner.house import House, open_house


@in_virtual_time
async def test_a_repeated_request_gets_the_same_answer_whatever_has_happened_since(ports: Ports) -> None:
    house = await open_house(ports)
    first = await house.create()
    await house.call("pause", sandbox_id="sb1", request_id="p")
    await house.call("destroy", sandbox_id="sb1", request_id="d")
    assert await house.create() == first
    assert (await house.call("pause", sandbox_id="sb1", request_id="p"))["phase"] == "paused"


@in_virtual_time
async def test_a_repeat_while_in_progress_waits_for_the_same_answer(ports: Ports) -> None:
    house = await open_house(ports)
    house.engine.latency_s["create"] = 2.0
    answers = await asyncio.gather(house.create(), house.create(), house.create())
    assert answers[0] == answers[1] == answers[2]
    assert house.sent().count("create") == 1


@in_virtual_time
@pytest.mark.parametrize("verb", ["resume", "destroy"])
async def test_one_request_id_for_two_verbs_is_a_conflict(ports: Ports, verb: str) -> None:
    house = await open_house(ports)
    await house.create()
    await house.call("pause", sandbox_id="sb1", request_id="p")
    with pytest.raises(AlreadyExists) as conflict:
        await house.call(verb, sandbox_id="sb1", request_id="p")
    assert conflict.value.code == "request_id_conflict"


@in_virtual_time
async def test_one_request_id_with_other_parameters_is_a_conflict_while_in_progress_too(ports: Ports) -> None:
    house = await open_house(ports)
    await house.create()
    house.engine.latency_s["stop"] = 2.0
    stopping = house.later("stop", sandbox_id="sb1", request_id="s", keep="files")
    await ports.sleep(0.5)
    with pytest.raises(AlreadyExists):
        await house.call("stop", sandbox_id="sb1", request_id="s", keep="nothing")
    assert (await stopping)["keeps_files"]


@in_virtual_time
async def test_a_failed_create_is_answered_the_same_way_again(ports: Ports) -> None:
    house = await open_house(ports)
    house.world.images.clear()
    codes = []
    for _ in range(2):
        with pytest.raises(SandkeeperError) as failure:
            await house.create()
        codes.append((failure.value.code, failure.value.admitted))
    assert codes == [("image_missing", "yes")] * 2
    assert house.sent().count("create") == 1


@in_virtual_time
async def test_an_answer_that_takes_long_is_in_progress_and_can_be_waited_for_again(ports: Ports) -> None:
    house = await open_house(ports)
    await house.create()
    house.engine.latency_s["commit"] = 200.0
    with pytest.raises(Aborted) as waiting:
        await house.call("take_snapshot", sandbox_id="sb1", request_id="sn")
    assert (waiting.value.code, waiting.value.admitted) == ("in_progress", "yes")
    snapshot = await house.call("take_snapshot", sandbox_id="sb1", request_id="sn")
    assert snapshot["sandbox_id"] == "sb1"


@in_virtual_time
async def test_a_create_the_journal_refused_never_was(ports: Ports) -> None:
    house = await open_house(ports, capacity=1)
    house.disk.is_full = True
    with pytest.raises(ResourceExhausted) as refusal:
        await house.create()
    assert refusal.value.code == "disk_full"
    with pytest.raises(NotFound):
        await house.call("describe", sandbox_id="sb1")
    house.disk.is_full = False
    assert (await house.create("sb2"))["phase"] == "running"


@in_virtual_time
async def test_a_full_owner_says_so_and_keeps_nothing(ports: Ports) -> None:
    house = await open_house(ports, capacity=1)
    await house.create()
    with pytest.raises(ResourceExhausted) as refusal:
        await house.create("sb2", request_id="other")
    assert refusal.value.code == "owner_full"
    await house.call("destroy", sandbox_id="sb1", request_id="d")
    assert (await house.create("sb2", request_id="other"))["phase"] == "running"


@in_virtual_time
async def test_a_destroyed_sandbox_is_not_adopted_again(ports: Ports) -> None:
    house = await open_house(ports)
    await house.create()
    await house.call("destroy", sandbox_id="sb1", request_id="d")
    with pytest.raises(NotFound) as refusal:
        await house.create("sb1", request_id="another")
    assert refusal.value.code == "sandbox_destroyed"


@in_virtual_time
async def test_destroying_twice_is_fine_and_nothing_else_is_left_to_do(ports: Ports) -> None:
    house = await open_house(ports)
    await house.create()
    for request_id in ("d1", "d2"):
        answer = await house.call("destroy", sandbox_id="sb1", request_id=request_id)
        assert answer["phase"] == "destroyed"
    for verb in ("start", "pause", "resume"):
        with pytest.raises(NotFound) as refusal:
            await house.call(verb, sandbox_id="sb1", request_id=verb)
        assert refusal.value.code == "sandbox_destroyed"
    assert house.world.runtimes == {}


@in_virtual_time
@pytest.mark.parametrize("verb", ["describe", "lease", "events"])
async def test_reads_of_an_unknown_sandbox(ports: Ports, verb: str) -> None:
    house = await open_house(ports)
    with pytest.raises(NotFound) as refusal:
        await house.call(verb, sandbox_id="sb404")
    assert refusal.value.code == "sandbox_not_found"


@in_virtual_time
async def test_a_destroy_of_an_unknown_sandbox_is_not_found(ports: Ports) -> None:
    house = await open_house(ports)
    with pytest.raises(NotFound):
        await house.call("destroy", sandbox_id="sb404", request_id="d")


@in_virtual_time
async def test_a_resize_is_checked_before_anything_is_asked_of_the_sandbox(ports: Ports) -> None:
    house = await open_house(ports)
    await house.create()
    before = len(await house.journal.events())
    size = {"name": "custom", "vcpu": 64, "memory_mib": 512}
    with pytest.raises(SandkeeperError) as refusal:
        await house.call("resize", sandbox_id="sb1", request_id="r", size=size)
    assert refusal.value.category in ("InvalidArgument", "PermissionDenied")
    assert len(await house.journal.events()) == before


@in_virtual_time
async def test_a_lease_names_the_runtime_and_its_stamps(ports: Ports) -> None:
    house = await open_house(ports)
    await house.create()
    lease = await house.call("lease", sandbox_id="sb1")
    record = await house.record()
    assert lease == {
        "sandbox_id": "sb1",
        "control_path": f"c/{record.birth_id}/control.sock",
        "birth_id": record.birth_id,
        "generation": 1,
        "epoch": 1,
    }


@in_virtual_time
async def test_a_lease_waits_for_a_start(ports: Ports) -> None:
    house = await open_house(ports)
    house.engine.latency_s["create"] = 5.0
    creating = ports.spawn(house.create(), name="create")
    await ports.sleep(1)
    assert (await house.call("lease", sandbox_id="sb1"))["generation"] == 1
    await creating


@in_virtual_time
async def test_a_lease_waits_for_a_rebuild_and_is_one_of_the_next_generation(ports: Ports) -> None:
    house = await open_house(ports)
    await house.create()
    house.engine.latency_s["create"] = 5.0
    birth_id = (await house.record()).birth_id
    assert birth_id is not None
    house.world.kill_container(birth_id)
    await ports.sleep(1)
    assert (await house.record()).phase == "rebuilding"
    assert (await house.call("lease", sandbox_id="sb1"))["generation"] == 2


@in_virtual_time
async def test_a_lease_waits_for_a_snapshot(ports: Ports) -> None:
    house = await open_house(ports)
    await house.create()
    house.engine.latency_s["commit"] = 5.0
    taking = house.later("take_snapshot", sandbox_id="sb1", request_id="sn")
    await ports.sleep(1)
    assert (await house.call("lease", sandbox_id="sb1"))["generation"] == 1
    await ports.sleep(0)
    assert taking.done()


async def _bring(house: House, phase: str) -> None:
    await house.create(on_lost=OnLost.ASK)
    match phase:
        case "paused":
            await house.call("pause", sandbox_id="sb1", request_id="x")
        case "stopped":
            await house.call("stop", sandbox_id="sb1", request_id="x", keep="files")
        case "failed":
            birth_id = (await house.record()).birth_id
            assert birth_id is not None
            house.world.kill_container(birth_id, 3)
            await house.ports.sleep(5)
        case _:
            await house.call("destroy", sandbox_id="sb1", request_id="x")


@in_virtual_time
@pytest.mark.parametrize(
    ("phase", "code"),
    [
        ("paused", "sandbox_paused"),
        ("stopped", "sandbox_not_running"),
        ("failed", "sandbox_failed"),
        ("destroyed", "sandbox_destroyed"),
    ],
)
async def test_a_lease_is_refused_by_phase(ports: Ports, phase: str, code: str) -> None:
    house = await open_house(ports)
    await _bring(house, phase)
    with pytest.raises((FailedPrecondition, NotFound)) as refusal:
        await house.call("lease", sandbox_id="sb1")
    assert refusal.value.code == code
    assert refusal.value.details["phase"] == phase
    assert refusal.value.advice
    if phase == "failed":
        evidence = refusal.value.details["evidence"]
        assert (evidence["generation"], evidence["exit_code"]) == (1, 3)


@in_virtual_time
async def test_events_are_read_from_a_cursor(ports: Ports) -> None:
    house = await open_house(ports)
    await house.create()
    page = await house.call("events", sandbox_id="sb1", limit=1)
    assert [event["kind"] for event in page["events"]] == ["start_requested"]
    rest = await house.call("events", sandbox_id="sb1", after=page["cursor"])
    assert [event["kind"] for event in rest["events"]] == ["runtime_started"]
    end = await house.call("events", sandbox_id="sb1", after=rest["cursor"])
    assert end == {"events": [], "cursor": rest["cursor"]}


@in_virtual_time
async def test_a_long_poll_returns_with_its_own_sandbox_s_news_only(ports: Ports) -> None:
    house = await open_house(ports)
    await house.create()
    cursor = (await house.call("events", sandbox_id="sb1"))["cursor"]
    polling = house.later("events", sandbox_id="sb1", after=cursor, wait_s=60)
    await house.create("sb2", request_id="other")
    await ports.sleep(1)
    assert not polling.done()
    await house.call("pause", sandbox_id="sb1", request_id="p")
    await ports.sleep(0.1)
    assert [event["kind"] for event in polling.result()["events"]] == ["pause_requested"]


@in_virtual_time
async def test_a_long_poll_misses_nothing_that_is_committed_while_it_reads(ports: Ports) -> None:
    house = await open_house(ports)
    await house.create()
    cursor = (await house.call("events", sandbox_id="sb1"))["cursor"]
    reads = house.journal.events
    pausing: list[asyncio.Task[object]] = []

    async def slow_read(*args: Any, **params: Any) -> Any:
        found = await reads(*args, **params)
        if not pausing:
            pausing.append(house.later("pause", sandbox_id="sb1", request_id="p"))
            await ports.sleep(5)
        return found

    house.verbs = _with_events(house, slow_read)
    began_s = ports.clock.monotonic_s()
    page = await house.call("events", sandbox_id="sb1", after=cursor, wait_s=60)
    assert [event["kind"] for event in page["events"]] == ["pause_requested", "runtime_frozen"]
    assert ports.clock.monotonic_s() - began_s < 6


def _with_events(house: House, read: Any) -> VerbTable:
    class Slow:
        async def events(self, *args: Any, **params: Any) -> Any:
            return await read(*args, **params)

        def __getattr__(self, name: str) -> Any:
            return getattr(house.journal, name)

    return OwnerVerbs(
        house.roster,
        journal=Slow(),
        policy=Policy(),
        admit_resize=no_bound,
        machine_facts=MachineFacts(cpu_count=8, memory_bytes=2**36),
        ports=house.ports,
    ).table()


@in_virtual_time
async def test_a_long_poll_ends_empty_at_its_time(ports: Ports) -> None:
    house = await open_house(ports)
    await house.create()
    cursor = (await house.call("events", sandbox_id="sb1"))["cursor"]
    began_s = ports.clock.monotonic_s()
    page = await house.call("events", sandbox_id="sb1", after=cursor, wait_s=20)
    assert page == {"events": [], "cursor": cursor}
    assert ports.clock.monotonic_s() - began_s == pytest.approx(20)


@in_virtual_time
async def test_ping_says_who_answers(ports: Ports) -> None:
    house = await open_house(ports)
    await house.create()
    said = await house.call("ping")
    assert (said["owner_id"], said["epoch"], said["sandbox_count"]) == ("ow0", 1, 1)


@in_virtual_time
async def test_wrong_parameters_are_named(ports: Ports) -> None:
    house = await open_house(ports)
    with pytest.raises(InvalidArgument) as refusal:
        await house.call("stop", sandbox_id="sb1", request_id="r", keep="half")
    assert refusal.value.details["field"] == "keep"
