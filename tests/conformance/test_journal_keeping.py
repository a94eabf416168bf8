"""What every journal promises about state and alarms: the one on disk and the one in memory pass the same tests."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sandkeeper.core.alarms import MAX_PENDING_ALARMS, Alarm, AlarmId, AlarmState
from sandkeeper.core.errors import AlreadyExists, FailedPrecondition, NotFound, ResourceExhausted
from sandkeeper.core.ids import DEFAULT_TENANT, RequestId, SandboxId
from sandkeeper.core.record import Phase, RequestRef
from sandkeeper.core.state import MAX_STATE_BYTES, MAX_STATE_KEYS
from sandkeeper.store.contract import Journal
from sandkeeper.store.keeping import AlarmChange, StateChange
from tests.support.journal_rigs import FakeRig, RealRig, Rig
from tests.support.store_samples import moment, sample_entry, sample_record

BOX = sample_record(1).sandbox_id
OTHER = sample_record(2).sandbox_id


@pytest.fixture(params=["real", "fake"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    rig = RealRig(tmp_path) if request.param == "real" else FakeRig()
    yield rig
    rig.release_lock()


@pytest.fixture
async def journal(rig: Rig) -> Any:
    opened = rig.journal()
    await opened.open()
    for number in (1, 2):
        await opened.commit(sample_entry(sample_record(number)))
    yield opened
    await opened.close()


def put(key: str, text: str | None, request: str, **fields: Any) -> StateChange:
    fields = {"sandbox_id": BOX, "at": moment(5), "fingerprint": f"{key}={text}", **fields}
    verb = "state_delete" if text is None else "state_put"
    ref = RequestRef(
        request_id=RequestId(request), verb=fields.pop("verb", verb), fingerprint=fields.pop("fingerprint")
    )
    return StateChange(tenant_id=DEFAULT_TENANT, request=ref, key=key, text=text, **fields)


def alarm_set(alarm_id: str, at: datetime, request: str, **fields: Any) -> AlarmChange:
    sandbox_id = fields.pop("sandbox_id", BOX)
    alarm = Alarm(
        sandbox_id=sandbox_id,
        alarm_id=AlarmId(alarm_id),
        at=at,
        set_at=moment(5),
        payload=fields.get("payload"),
    )
    ref = RequestRef(request_id=RequestId(request), verb="alarm_set", fingerprint=f"{alarm_id}{at}")
    return AlarmChange(sandbox_id, DEFAULT_TENANT, ref, moment(5), alarm_id=alarm.alarm_id, alarm=alarm)


def cancel(alarm_id: str, request: str, *, at: datetime | None = None) -> AlarmChange:
    ref = RequestRef(request_id=RequestId(request), verb="alarm_cancel", fingerprint=alarm_id)
    return AlarmChange(BOX, DEFAULT_TENANT, ref, at or moment(6), alarm_id=AlarmId(alarm_id))


async def kinds(journal: Journal) -> list[str]:
    return [line.kind for line in await journal.events(BOX)]


async def destroy(journal: Journal, sandbox_id: SandboxId = BOX, *, at: datetime | None = None) -> None:
    number = 1 if sandbox_id == BOX else 2
    gone = sample_record(number, phase=Phase.DESTROYED, updated_at=at or moment(9))
    await journal.commit(sample_entry(gone, kind="runtime_removed", at=at or moment(9)))


async def test_a_value_comes_back_after_a_reopening(rig: Rig, journal: Journal) -> None:
    text = '{"a":[1,2.5,null,"ä\\u0000"]}'
    answer = await journal.state.change(put("k\U0001f512", text, "r1"))
    assert answer.document == {
        "key": "k\U0001f512",
        "version": 3,
        "size_bytes": len(text.encode()) + 5,
        "updated_at": "2026-01-02T03:04:10.678901Z",
    }
    await journal.close()
    again = rig.journal()
    await again.open()
    found = await again.state.entry(BOX, key="k\U0001f512")
    await again.close()
    assert found.value == {"a": [1, 2.5, None, "ä\0"]}
    assert (found.version, found.updated_at) == (3, moment(5))


async def test_what_is_not_there_is_none(journal: Journal) -> None:
    assert await journal.state.entry(BOX, key="none") is None
    assert await journal.state.items(BOX) == []
    assert await journal.alarms.of(BOX, settled=10) == []
    assert await journal.alarms.next_at() is None
    assert await journal.alarms.fire(moment(100), limit=5) == []


async def test_keys_are_listed_by_prefix_of_one_sandbox(journal: Journal) -> None:
    for number, key in enumerate(("b/1", "a/2", "a/1", "A/1", "a%")):
        await journal.state.change(put(key, "1", f"r{number}"))
    await journal.state.change(put("a/3", "1", "other", sandbox_id=OTHER))
    assert [item.key for item in await journal.state.items(BOX)] == ["A/1", "a%", "a/1", "a/2", "b/1"]
    assert [item.key for item in await journal.state.items(BOX, prefix="a/")] == ["a/1", "a/2"]


async def test_a_write_and_a_deletion_have_a_line_without_the_value(journal: Journal) -> None:
    await journal.state.change(put("k", '"secret"', "r1"))
    gone = await journal.state.change(put("k", None, "r2"))
    again = await journal.state.change(put("k", None, "r3"))
    assert (gone.document, again.document) == (
        {"key": "k", "was_there": True},
        {"key": "k", "was_there": False},
    )
    lines = (await journal.events(BOX))[1:]
    assert [(line.kind, line.details["key"]) for line in lines] == [
        ("state_put", "k"),
        ("state_deleted", "k"),
        ("state_deleted", "k"),
    ]
    assert "secret" not in str(lines)


async def test_a_repeat_changes_nothing_and_has_the_same_answer(journal: Journal) -> None:
    first, repeat = await asyncio.gather(*(journal.state.change(put("k", "1", "r1")) for _ in range(2)))
    assert first == repeat
    await journal.state.change(put("k", "2", "r2"))
    assert await journal.state.change(put("k", "1", "r1")) == first
    found = await journal.state.entry(BOX, key="k")
    assert found is not None
    assert found.value == 2
    assert await kinds(journal) == ["created", "state_put", "state_put"]
    with pytest.raises(AlreadyExists) as conflict:
        await journal.state.change(put("k", "3", "r1"))
    assert conflict.value.code == "request_id_conflict"


async def test_a_write_for_another_version_is_refused(journal: Journal) -> None:
    first = await journal.state.change(put("k", "1", "r1", if_version=0))
    with pytest.raises(FailedPrecondition) as refusal:
        await journal.state.change(put("k", "2", "r2", if_version=0))
    assert refusal.value.code == "state_version_conflict"
    assert refusal.value.details["version"] == first.document["version"]
    second = await journal.state.change(put("k", "2", "r3", if_version=first.document["version"]))
    with pytest.raises(FailedPrecondition):
        await journal.state.change(put("k", None, "r4", if_version=first.document["version"]))
    await journal.state.change(put("k", None, "r5", if_version=second.document["version"]))
    third = await journal.state.change(put("k", "1", "r6", if_version=0))
    assert third.document["version"] > second.document["version"], "no version is ever given twice"


async def test_of_concurrent_writers_one_wins(journal: Journal) -> None:
    changes = [put("k", str(n), f"r{n}", if_version=0) for n in range(8)]
    outcomes = await asyncio.gather(*(journal.state.change(c) for c in changes), return_exceptions=True)
    losers = [outcome for outcome in outcomes if isinstance(outcome, FailedPrecondition)]
    assert len(losers) == 7


async def test_the_sum_of_a_sandbox_is_bounded(journal: Journal) -> None:
    size = MAX_STATE_BYTES // 16
    for number in range(16):
        text = '"' + "x" * (size - 2 - len("k00")) + '"'
        await journal.state.change(put(f"k{number:02}", text, f"r{number}"))
    with pytest.raises(ResourceExhausted) as refusal:
        await journal.state.change(put("k", "1", "over"))
    assert refusal.value.code == "state_full"
    await journal.state.change(put("k", "1", "elsewhere", sandbox_id=OTHER))
    await journal.state.change(put("k00", "1", "smaller"))
    await journal.state.change(put("k", "1", "over", fingerprint="again"))


async def test_the_number_of_keys_is_bounded(journal: Journal) -> None:
    changes = [put(f"k{number}", "1", f"r{number}") for number in range(MAX_STATE_KEYS)]
    await asyncio.gather(*(journal.state.change(change) for change in changes[:-1]))
    await journal.state.change(changes[-1])
    with pytest.raises(ResourceExhausted):
        await journal.state.change(put("one more", "1", "over"))
    await journal.state.change(put("k0", "2", "replacing"))


@pytest.mark.parametrize("sandbox_id", [SandboxId("nobody"), BOX])
async def test_only_a_living_sandbox_is_written(journal: Journal, sandbox_id: SandboxId) -> None:
    await journal.state.change(put("k", "1", "r1"))
    await destroy(journal)
    code = "sandbox_destroyed" if sandbox_id == BOX else "sandbox_not_found"
    with pytest.raises(NotFound) as refusal:
        await journal.state.change(put("k", "2", "r2", sandbox_id=sandbox_id))
    assert refusal.value.code == code
    with pytest.raises(NotFound) as refusal:
        await journal.alarms.change(alarm_set("a", moment(9), "r3", sandbox_id=sandbox_id))
    assert refusal.value.code == code
    found = await journal.state.entry(BOX, key="k")
    assert found is not None
    assert found.value == 1


async def test_due_alarms_fire_soonest_first_with_their_lines(journal: Journal) -> None:
    for name, second in (("late", 30), ("b", 20), ("a", 10)):
        await journal.alarms.change(alarm_set(name, moment(second), f"r-{name}", payload={"n": second}))
    assert await journal.alarms.next_at() == moment(10)
    assert await journal.alarms.fire(moment(9), limit=5) == []
    fired = await journal.alarms.fire(moment(21), limit=5)
    assert [(alarm.alarm_id, alarm.state, alarm.settled_at) for alarm in fired] == [
        ("a", AlarmState.FIRED, moment(21)),
        ("b", AlarmState.FIRED, moment(21)),
    ]
    lines = [line for line in await journal.events(BOX) if line.kind == "alarm_fired"]
    assert [line.details for line in lines] == [
        {
            "alarm_id": "a",
            "payload": {"n": 10},
            "due_at": moment(10).isoformat(),
            "late_ms": 11_000,
            "version": 5,
        },
        {
            "alarm_id": "b",
            "payload": {"n": 20},
            "due_at": moment(20).isoformat(),
            "late_ms": 1_000,
            "version": 4,
        },
    ]
    assert await journal.alarms.fire(moment(21), limit=5) == [], "each fires once"
    assert await journal.alarms.next_at() == moment(30)
    assert [alarm.alarm_id for alarm in await journal.alarms.of(BOX, settled=1)][:1] == ["late"]


async def test_a_round_of_firing_is_bounded(journal: Journal) -> None:
    for number in range(5):
        await journal.alarms.change(alarm_set(f"a{number}", moment(10), f"r{number}"))
    counts = [len(await journal.alarms.fire(moment(10), limit=2)) for _ in range(4)]
    assert counts == [2, 2, 1, 0]


async def test_the_same_id_replaces_and_a_repeat_does_not(journal: Journal) -> None:
    first = await journal.alarms.change(alarm_set("a", moment(10), "r1"))
    await journal.alarms.change(alarm_set("a", moment(20), "r2"))
    assert await journal.alarms.change(alarm_set("a", moment(10), "r1")) == first
    (alarm,) = await journal.alarms.of(BOX)
    assert alarm.at == moment(20)
    await journal.alarms.fire(moment(20), limit=1)
    assert (await journal.alarms.of(BOX)) == []
    await journal.alarms.change(alarm_set("a", moment(40), "r3"))
    (alarm,) = await journal.alarms.of(BOX, settled=5)
    assert (alarm.state, alarm.settled_at) == (AlarmState.PENDING, None)


async def test_a_cancelled_alarm_does_not_fire(journal: Journal) -> None:
    await journal.alarms.change(alarm_set("a", moment(10), "r1"))
    answer = await journal.alarms.change(cancel("a", "r2"))
    assert answer.document["state"] == "cancelled"
    assert await journal.alarms.fire(moment(99), limit=5) == []
    (alarm,) = await journal.alarms.of(BOX, settled=5)
    assert (alarm.state, alarm.settled_at) == (AlarmState.CANCELLED, moment(6))
    assert (await journal.alarms.change(cancel("a", "r3"))).document == answer.document
    assert await kinds(journal) == ["created", "alarm_set", "alarm_cancelled", "answered"]
    with pytest.raises(NotFound) as refusal:
        await journal.alarms.change(cancel("b", "r4"))
    assert refusal.value.code == "alarm_not_found"


async def test_a_cancel_after_the_firing_says_so(journal: Journal) -> None:
    await journal.alarms.change(alarm_set("a", moment(5), "r1"))
    await journal.alarms.fire(moment(5), limit=1)
    assert (await journal.alarms.change(cancel("a", "r2"))).document["state"] == "fired"


async def test_pending_alarms_of_a_sandbox_are_bounded(journal: Journal) -> None:
    changes = [alarm_set(f"a{n}", moment(50), f"r{n}") for n in range(MAX_PENDING_ALARMS)]
    await asyncio.gather(*(journal.alarms.change(change) for change in changes))
    with pytest.raises(ResourceExhausted) as refusal:
        await journal.alarms.change(alarm_set("more", moment(50), "over"))
    assert refusal.value.code == "alarms_full"
    await journal.alarms.change(alarm_set("a0", moment(60), "replacing"))
    assert len(await journal.alarms.of(BOX)) == MAX_PENDING_ALARMS


async def test_the_destruction_cancels_alarms_in_its_own_commit(journal: Journal) -> None:
    await journal.alarms.change(alarm_set("a", moment(10), "r1"))
    await journal.alarms.change(alarm_set("a", moment(11), "r2", sandbox_id=OTHER))
    await destroy(journal)
    (alarm,) = await journal.alarms.of(BOX, settled=5)
    assert (alarm.state, alarm.settled_at) == (AlarmState.CANCELLED, moment(9))
    assert [alarm.sandbox_id for alarm in await journal.alarms.fire(moment(99), limit=5)] == [OTHER]


async def test_what_is_long_gone_is_pruned_with_the_history(journal: Journal) -> None:
    await journal.state.change(put("k", "1", "r1"))
    await journal.state.change(put("k", "1", "r2", sandbox_id=OTHER))
    await journal.alarms.change(alarm_set("ended", moment(6), "r3", sandbox_id=OTHER))
    await journal.alarms.change(alarm_set("pending", moment(90), "r4", sandbox_id=OTHER))
    await journal.alarms.fire(moment(7), limit=1)
    await destroy(journal)
    await journal.prune_history(before=moment(7))
    assert await journal.state.entry(BOX, key="k") is not None
    await journal.prune_history(before=moment(9) + timedelta(microseconds=1))
    assert await journal.state.entry(BOX, key="k") is None
    assert await journal.state.entry(OTHER, key="k") is not None
    assert [alarm.alarm_id for alarm in await journal.alarms.of(OTHER, settled=5)] == ["pending"]
