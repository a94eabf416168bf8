"""What the fake journal adds to the real one's promises: crashes at chosen points."""

from __future__ import annotations

import asyncio

import pytest

from sandkeeper.core.errors import FailedPrecondition, ResourceExhausted
from sandkeeper.core.ids import DEFAULT_TENANT, RequestId
from sandkeeper.ports import real_ports
from tests.fakes.disk import MemoryDisk
from tests.fakes.journal import FakeJournal, Hook
from tests.fakes.lock import FakeLock
from tests.support.store_samples import MACHINE, sample_answer, sample_entry, sample_record


class CrashHere(Exception):
    """The simulated process died at a hook."""


async def crash(what: str) -> None:
    raise CrashHere(what)


async def incarnation(
    disk: MemoryDisk, process: str, *, before: Hook | None = None, after: Hook | None = None
) -> FakeJournal:
    lock = FakeLock(disk, name="owner", process=process)
    await lock.acquire_or_end()
    journal = FakeJournal(
        disk=disk,
        name="owner.db",
        machine_id=MACHINE,
        lock=lock,
        ports=real_ports(),
        before_commit=before,
        after_commit=after,
    )
    await journal.open()
    return journal


@pytest.mark.parametrize("is_durable", [False, True])
async def test_a_crash_at_a_hook_loses_all_or_nothing(is_durable: bool) -> None:
    disk = MemoryDisk()
    hooks = {"after": crash} if is_durable else {"before": crash}
    first = await incarnation(disk, "p1", **hooks)
    answer = sample_answer()
    with pytest.raises(CrashHere):
        await first.commit(sample_entry(answers=(answer,)))
    first.kill()
    second = await incarnation(disk, "p2")
    assert (await second.records() == [sample_record()]) == is_durable
    assert len(await second.events()) == int(is_durable)
    kept = await second.answer(RequestId("r1"), tenant_id=DEFAULT_TENANT)
    assert kept == (answer if is_durable else None)


async def test_a_kill_drops_what_is_not_durable() -> None:
    disk = MemoryDisk()
    reached, never = asyncio.Event(), asyncio.Event()

    async def hang(_: str) -> None:
        reached.set()
        await never.wait()

    first = await incarnation(disk, "p1", before=hang)
    waiting = asyncio.create_task(first.commit(sample_entry()))
    await reached.wait()
    first.kill()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert disk.journal("owner.db").events == []
    with pytest.raises(FailedPrecondition):
        await first.records()


async def test_a_new_incarnation_ends_the_holder_of_the_lock() -> None:
    disk = MemoryDisk()
    first = await incarnation(disk, "p1")
    ended: list[str] = []

    async def end(process: str) -> None:
        ended.append(process)
        first.kill()

    lock = FakeLock(disk, name="owner", process="p2", end_process=end)
    assert await lock.acquire_or_end() == "p1"
    assert ended == ["p1"]
    assert lock.is_held
    assert not first.lock.is_held
    assert await lock.acquire_or_end() is None


async def test_a_writer_that_skipped_the_lock_fences_the_other() -> None:
    disk = MemoryDisk()
    first = await incarnation(disk, "p1")
    second = await incarnation(disk, "p2")
    await second.commit(sample_entry())
    with pytest.raises(FailedPrecondition) as refusal:
        await first.commit(sample_entry())
    assert refusal.value.code == "journal_fenced"


async def test_a_full_disk_refuses_and_changes_nothing() -> None:
    disk = MemoryDisk(is_full=True)
    journal = await incarnation(disk, "p1")
    with pytest.raises(ResourceExhausted) as refusal:
        await journal.commit(sample_entry())
    assert refusal.value.code == "disk_full"
    disk.is_full = False
    assert await journal.commit(sample_entry()) == 1
