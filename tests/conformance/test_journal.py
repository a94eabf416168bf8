"""What every journal promises: the one on disk and the one in memory pass the same tests."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sandkeeper.core.errors import AlreadyExists, FailedPrecondition, InvalidArgument
from sandkeeper.core.events import StartRequested
from sandkeeper.core.ids import DEFAULT_TENANT, RequestId, SandboxId, SnapshotId, TenantId
from sandkeeper.core.record import Phase
from sandkeeper.store.contract import Journal
from tests.support.journal_rigs import FakeRig, RealRig, Rig
from tests.support.store_samples import (
    MACHINE,
    START,
    moment,
    sample_answer,
    sample_entry,
    sample_record,
    sample_snapshot,
)


@pytest.fixture(params=["real", "fake"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    rig = RealRig(tmp_path) if request.param == "real" else FakeRig()
    yield rig
    rig.release_lock()


@pytest.fixture
async def journal(rig: Rig) -> Any:
    opened = rig.journal()
    await opened.open()
    yield opened
    await opened.close()


async def reopened(rig: Rig, check: Callable[[Journal], Awaitable[None]]) -> None:
    journal = rig.journal()
    await journal.open()
    try:
        await check(journal)
    finally:
        await journal.close()


async def test_without_the_lock_nothing_is_opened(rig: Rig) -> None:
    rig.release_lock()
    with pytest.raises(FailedPrecondition) as refusal:
        await rig.journal().open()
    assert refusal.value.code == "lock_not_held"


async def test_a_commit_keeps_all_it_was_given(rig: Rig, journal: Journal) -> None:
    record, snapshot, answer = sample_record(), sample_snapshot(), sample_answer()
    event = StartRequested()
    entry = sample_entry(
        record, kind="start_requested", event=event, details={"n": 1}, snapshot=snapshot, answers=(answer,)
    )
    assert await journal.commit(entry) == 1
    await journal.close()

    async def check(again: Journal) -> None:
        assert await again.records() == [record]
        assert await again.record(record.sandbox_id) == record
        assert await again.snapshot(snapshot.snapshot_id) == snapshot
        assert await again.answer(answer.request_id, tenant_id=DEFAULT_TENANT) == answer
        (line,) = await again.events()
        assert (line.seq, line.kind, line.event, line.details, line.at) == (
            1,
            "start_requested",
            event,
            {"n": 1},
            START,
        )
        assert (line.tenant_id, line.machine_id) == (record.tenant_id, record.machine_id)

    await reopened(rig, check)


async def test_the_newest_record_of_a_sandbox_counts(journal: Journal) -> None:
    first = sample_record()
    second = first.model_copy(update={"generation": 7, "phase": Phase.RUNNING})
    await journal.commit(sample_entry(first))
    assert await journal.commit(sample_entry(second)) == 2
    assert await journal.records() == [second]


async def test_destroyed_sandboxes_are_kept_but_not_listed(journal: Journal) -> None:
    gone = sample_record(phase=Phase.DESTROYED)
    await journal.commit(sample_entry(gone))
    assert await journal.records() == []
    assert await journal.record(gone.sandbox_id) == gone


async def test_records_come_oldest_first(journal: Journal) -> None:
    for number in (3, 1, 2):
        await journal.commit(sample_entry(sample_record(number)))
    assert await journal.records() == [sample_record(number) for number in (1, 2, 3)]


async def test_what_is_not_there_is_none(journal: Journal) -> None:
    assert await journal.record(SandboxId("nobody")) is None
    assert await journal.snapshot(SnapshotId("none")) is None
    assert await journal.answer(RequestId("none"), tenant_id=DEFAULT_TENANT) is None
    assert await journal.events() == []
    assert await journal.snapshots() == []


async def test_concurrent_commits_are_numbered_without_gaps(journal: Journal) -> None:
    entries = [sample_entry(sample_record(number)) for number in range(300)]
    seqs = await asyncio.gather(*(journal.commit(entry) for entry in entries))
    assert sorted(seqs) == list(range(1, 301))
    lines = await journal.events()
    by_seq = {line.seq: line.sandbox_id for line in lines}
    expected = {seq: entry.record.sandbox_id for seq, entry in zip(seqs, entries, strict=True)}
    assert by_seq == expected


async def test_an_entry_that_fails_fails_alone_and_leaves_no_gap(journal: Journal) -> None:
    await journal.put_answer(sample_answer(fingerprint="f1"), sandbox_id=SandboxId("sb"))
    conflicting = sample_entry(sample_record(99), answers=(sample_answer(fingerprint="other"),))
    entries = [sample_entry(sample_record(n)) for n in range(5)]
    entries.insert(2, conflicting)
    outcomes = await asyncio.gather(*(journal.commit(e) for e in entries), return_exceptions=True)
    failure = outcomes.pop(2)
    assert isinstance(failure, AlreadyExists)
    assert (failure.code, failure.request_id, failure.admitted) == ("request_id_conflict", "r1", "no")
    assert sorted(seq for seq in outcomes if isinstance(seq, int)) == [2, 3, 4, 5, 6]
    assert await journal.record(conflicting.record.sandbox_id) is None


async def test_the_first_answer_of_a_request_stays(journal: Journal) -> None:
    first = sample_answer()
    later = sample_answer(document={"phase": "other"}, at=moment(9))
    await journal.commit(sample_entry(answers=(first,)))
    assert await journal.commit(sample_entry(answers=(later,))) == 2
    assert await journal.answer(first.request_id, tenant_id=DEFAULT_TENANT) == first


async def test_two_tenants_may_use_one_request_id(journal: Journal) -> None:
    other = TenantId("other")
    mine, theirs = sample_answer(), sample_answer(fingerprint="f2", tenant_id=other)
    await journal.commit(sample_entry(answers=(mine, theirs)))
    assert await journal.answer(mine.request_id, tenant_id=DEFAULT_TENANT) == mine
    assert await journal.answer(mine.request_id, tenant_id=other) == theirs


async def test_an_answer_without_a_record_has_a_line(journal: Journal) -> None:
    answer = sample_answer(is_error=True)
    assert await journal.put_answer(answer, sandbox_id=SandboxId("sb")) == 1
    (line,) = await journal.events()
    assert (line.kind, line.event, line.sandbox_id) == ("answered", None, "sb")
    assert line.details == {"request_id": "r1", "verb": "start", "is_error": True}
    assert await journal.answer(answer.request_id, tenant_id=DEFAULT_TENANT) == answer
    with pytest.raises(AlreadyExists) as conflict:
        await journal.put_answer(sample_answer(fingerprint="f2"), sandbox_id=SandboxId("sb"))
    assert conflict.value.code == "request_id_conflict"


async def test_old_answers_are_pruned(journal: Journal) -> None:
    for number in range(4):
        answer = sample_answer(f"r{number}", at=moment(number))
        await journal.put_answer(answer, sandbox_id=SandboxId("sb"))
    assert await journal.prune_answers(before=moment(2)) == 2
    kept = [await journal.answer(RequestId(f"r{n}"), tenant_id=DEFAULT_TENANT) is not None for n in range(4)]
    assert kept == [False, False, True, True]


async def test_old_history_is_pruned_from_its_beginning(rig: Rig, journal: Journal) -> None:
    assert await journal.prune_history(before=START) == 0
    ages = [1, 2, 9, 3, 4]
    for number, age in enumerate(ages):
        await journal.commit(sample_entry(sample_record(number), at=moment(age)))
    gone, recent = (sample_record(n, phase=Phase.DESTROYED, updated_at=moment(n)) for n in (6, 8))
    for record in (gone, recent):
        await journal.commit(sample_entry(record, at=moment(9)))
    assert await journal.prune_history(before=moment(7)) == 2
    assert [line.seq for line in await journal.events()] == [3, 4, 5, 6, 7]
    assert [line.seq for line in await journal.events(after_seq=4, limit=2)] == [5, 6]
    assert await journal.record(gone.sandbox_id) is None
    assert await journal.record(recent.sandbox_id) == recent
    assert len(await journal.records()) == len(ages)

    assert await journal.prune_history(before=moment(1000)) == 4
    assert [line.seq for line in await journal.events()] == [7], "the newest line stays"
    await journal.close()

    async def check(again: Journal) -> None:
        assert await again.commit(sample_entry()) == 8

    await reopened(rig, check)


async def test_a_destroyed_sandbox_is_remembered_as_long_as_its_snapshots(journal: Journal) -> None:
    source = sample_record(1, phase=Phase.DESTROYED)
    snapshot = sample_snapshot(1, sandbox_id=source.sandbox_id)
    await journal.commit(sample_entry(source, snapshot=snapshot))
    await journal.prune_history(before=moment(1000))
    assert await journal.record(source.sandbox_id) == source


async def test_notes_change_no_record(journal: Journal) -> None:
    record = sample_record()
    await journal.commit(sample_entry(record))
    seq = await journal.note(
        record.sandbox_id, tenant_id=DEFAULT_TENANT, kind="box_impostor", at=moment(1), details={"pid": 4}
    )
    assert seq == 2
    assert await journal.records() == [record]
    line = (await journal.events(record.sandbox_id, after_seq=1))[0]
    assert (line.kind, line.details, line.machine_id) == ("box_impostor", {"pid": 4}, MACHINE)


async def test_events_are_read_in_pages(journal: Journal) -> None:
    for number in range(6):
        await journal.commit(sample_entry(sample_record(number % 2)))
    one = sample_record(1).sandbox_id
    assert [line.seq for line in await journal.events(limit=4)] == [1, 2, 3, 4]
    assert [line.seq for line in await journal.events(after_seq=4)] == [5, 6]
    assert [line.seq for line in await journal.events(one)] == [2, 4, 6]
    assert [line.seq for line in await journal.events(one, after_seq=2, limit=1)] == [4]
    assert await journal.events(after_seq=6) == []


async def test_snapshots_are_found_by_tenant_and_sandbox(journal: Journal) -> None:
    other = TenantId("other")
    snapshots = [
        sample_snapshot(2),
        sample_snapshot(1),
        sample_snapshot(3, tenant_id=other),
        sample_snapshot(4, sandbox_id=SandboxId("else")),
    ]
    for snapshot in snapshots:
        await journal.commit(sample_entry(snapshot=snapshot))
    of_all = [snapshot.snapshot_id for snapshot in await journal.snapshots()]
    assert of_all == [sample_snapshot(n).snapshot_id for n in (1, 2, 3, 4)]
    assert await journal.snapshots(tenant_id=other) == [snapshots[2]]
    assert await journal.snapshots(sandbox_id=SandboxId("else")) == [snapshots[3]]
    assert await journal.snapshots(tenant_id=other, sandbox_id=SandboxId("else")) == []


async def test_a_cancelled_wait_does_not_take_the_write_back(journal: Journal) -> None:
    waiting = asyncio.create_task(journal.commit(sample_entry()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await journal.note(SandboxId("sb"), tenant_id=DEFAULT_TENANT, kind="after", at=START) == 2
    assert [line.kind for line in await journal.events()] == ["created", "after"]


async def test_a_naive_moment_is_refused(journal: Journal) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        await journal.commit(sample_entry(at=START.replace(tzinfo=None)))
    assert refusal.value.code == "moment_naive"
    assert await journal.events() == []


async def test_a_closed_journal_refuses_all(rig: Rig, journal: Journal) -> None:
    await journal.close()
    await journal.close()
    for call in (journal.commit(sample_entry()), journal.records(), journal.events()):
        with pytest.raises(FailedPrecondition) as refusal:
            await call
        assert refusal.value.code == "journal_closed"
    gc.collect()


async def test_a_second_writer_fences_the_first(rig: Rig, journal: Journal) -> None:
    await journal.commit(sample_entry())
    second = rig.journal()
    await second.open()
    try:
        assert await second.commit(sample_entry(sample_record(2))) == 2
        for _ in range(2):
            with pytest.raises(FailedPrecondition) as refusal:
                await journal.commit(sample_entry(sample_record(3)))
            assert (refusal.value.code, refusal.value.admitted) == ("journal_fenced", "no")
        assert await second.commit(sample_entry(sample_record(4))) == 3
        assert [line.seq for line in await second.events()] == [1, 2, 3]
    finally:
        await second.close()
