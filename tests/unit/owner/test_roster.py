"""The sandboxes of one owner: what a restart finds, what the audit notices, what ends the owner."""

from __future__ import annotations

from sandkeeper.core.errors import DataLoss, Unavailable
from sandkeeper.core.observation import RuntimeState
from sandkeeper.core.record import Phase
from sandkeeper.ports import Ports
from tests.support.virtual_time import in_virtual_time
from tests.unit.owner.house import House, open_house


async def restart(house: House) -> House:
    await house.roster.close()
    house.engine.crash()
    house.journal.kill()
    return await open_house(house.ports, before=house)


@in_virtual_time
async def test_a_restart_adopts_what_runs_under_its_own_epoch(ports: Ports) -> None:
    house = await open_house(ports)
    await house.create()
    before = await house.record()
    again = await restart(house)
    await ports.sleep(1)
    record = await again.record()
    assert (record.phase, record.birth_id, record.generation) == (Phase.RUNNING, before.birth_id, 1)
    assert record.birth_id is not None
    assert again.yard.boxes[record.birth_id].epoch == 2
    assert (await again.call("lease", sandbox_id="sb1"))["epoch"] == 2
    kinds = [line.kind for line in await again.journal.events()]
    assert kinds == ["start_requested", "runtime_started", "owner_restarted"]


@in_virtual_time
async def test_a_restart_in_the_middle_of_a_create_finishes_it_for_a_repeat(ports: Ports) -> None:
    house = await open_house(ports)
    house.engine.latency_s["create"] = 5.0
    creating = ports.spawn(house.create(), name="create")
    await ports.sleep(1)
    again = await restart(house)
    assert isinstance((await _outcome(creating)), Unavailable)
    assert (await again.create())["phase"] == "running"
    await ports.sleep(10)
    assert len(again.world.runtimes) == 1


@in_virtual_time
async def test_a_container_gone_while_the_owner_was_away_is_rebuilt(ports: Ports) -> None:
    house = await open_house(ports)
    await house.create()
    await house.roster.close()
    house.world.restart_machine()
    again = await restart(house)
    await ports.sleep(5)
    record = await again.record()
    assert (record.phase, record.generation) == (Phase.RUNNING, 2)
    assert len(again.world.runtimes) == 1


@in_virtual_time
async def test_the_audit_notices_what_was_done_behind_our_back(ports: Ports) -> None:
    house = await open_house(ports)
    await house.create()
    birth_id = (await house.record()).birth_id
    assert birth_id is not None
    house.world.freeze(birth_id)
    await house.roster.audit()
    await ports.sleep(1)
    assert house.world.runtimes[birth_id].state is RuntimeState.RUNNING


@in_virtual_time
async def test_the_audit_of_an_engine_that_is_away_changes_nothing(ports: Ports) -> None:
    house = await open_house(ports)
    await house.create()
    house.world.stop_engine()
    await house.roster.audit()
    await ports.sleep(30)
    assert (await house.record()).phase is Phase.RUNNING
    assert house.fatal == []


@in_virtual_time
async def test_a_journal_closed_for_good_ends_the_owner(ports: Ports) -> None:
    house = await open_house(ports)
    await house.create()

    async def break_down(_: str) -> None:
        raise DataLoss("gone", code="journal_unwritable", admitted="unknown")

    house.journal.before_commit = break_down
    pausing = house.later("pause", sandbox_id="sb1", request_id="p")
    await ports.sleep(1)
    assert len(house.fatal) == 1
    assert "DataLoss" in house.fatal[0]
    pausing.cancel()


@in_virtual_time
async def test_a_destroyed_sandbox_leaves_the_roster(ports: Ports) -> None:
    house = await open_house(ports)
    await house.create()
    await house.call("destroy", sandbox_id="sb1", request_id="d")
    assert house.roster.status()["sandbox_count"] == 0
    again = await restart(house)
    assert again.roster.status()["sandbox_count"] == 0
    assert house.fatal == []


async def _outcome(task: object) -> BaseException | None:
    try:
        await task  # type: ignore[misc]
    except Unavailable as error:
        return error
    return None
