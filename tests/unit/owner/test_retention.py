"""What a journal forgets, when, and what it does when it cannot."""

from __future__ import annotations

import pytest

from sandkeeper.core.errors import DataLoss
from sandkeeper.core.ids import DEFAULT_TENANT, RequestId
from sandkeeper.owner.retention import PRUNE_EVERY_S, Retention
from sandkeeper.ports import Ports
from tests.support.virtual_time import in_virtual_time
from tests.unit.owner.house import House, open_house

DAY_S = 86_400.0


def retention_of(house: House) -> Retention:
    return Retention(house.journal, keep_answers_s=7 * DAY_S, keep_events_s=2 * DAY_S, ports=house.ports)


async def has_answer(house: House) -> bool:
    return await house.journal.answer(RequestId("create"), tenant_id=DEFAULT_TENANT) is not None


@in_virtual_time
async def test_answers_and_history_go_in_their_time(ports: Ports) -> None:
    house = await open_house(ports)
    retention = retention_of(house)
    await house.create()
    await house.create("sb2", request_id="other")
    await house.call("destroy", sandbox_id="sb2", request_id="d")
    await house.roster.close()
    await ports.sleep(3 * DAY_S)
    await retention.prune_if_due()
    assert len(await house.journal.events()) == 1
    assert await has_answer(house)
    assert list(house.disk.journal("owner.db").records) == ["sb1"]
    await ports.sleep(5 * DAY_S)
    await retention.prune_if_due()
    assert not await has_answer(house)


@in_virtual_time
async def test_it_is_done_every_ten_minutes_at_most(ports: Ports) -> None:
    house = await open_house(ports)
    retention = retention_of(house)
    pruned: list[str] = []

    async def note(what: str) -> None:
        pruned.append(what)

    house.journal.before_commit = note
    for _ in range(5):
        await retention.prune_if_due()
    assert pruned == ["prune_answers", "prune_history"]
    await ports.sleep(PRUNE_EVERY_S + 1)
    await retention.prune_if_due()
    assert len(pruned) == 4


@in_virtual_time
async def test_a_full_disk_postpones_it(ports: Ports) -> None:
    house = await open_house(ports)
    house.disk.is_full = True
    await retention_of(house).prune_if_due()


@in_virtual_time
async def test_a_journal_closed_for_good_is_told(ports: Ports) -> None:
    house = await open_house(ports)

    async def break_down(_: str) -> None:
        raise DataLoss("gone", code="journal_unwritable", admitted="unknown")

    house.journal.before_commit = break_down
    with pytest.raises(DataLoss):
        await retention_of(house).prune_if_due()
