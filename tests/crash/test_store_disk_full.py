"""A file system without room: a typed refusal that changes nothing, and work goes on when there is room."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandkeeper.core.errors import ResourceExhausted
from tests.support.store_samples import held_lock, owner_journal, sample_entry, sample_record

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root"),
]

DISK_KIB = 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_KIB}k,mode=0700", "sandkeeper-test", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(disk: Path, *, leave_bytes: int) -> Path:
    room = os.statvfs(disk)
    filler = disk / "filler"
    filler.write_bytes(b"\1" * (room.f_bavail * room.f_frsize - leave_bytes))
    return filler


async def test_a_full_disk_refuses_and_changes_nothing(small_disk: Path) -> None:
    lock = held_lock(small_disk)
    async with owner_journal(small_disk, lock) as journal:
        assert await journal.commit(sample_entry()) == 1
        filler = fill(small_disk, leave_bytes=32 * 1024)
        big = sample_entry(sample_record(2), details={"text": "x" * 200_000})
        for _ in range(2):
            with pytest.raises(ResourceExhausted) as refusal:
                await journal.commit(big)
            assert (refusal.value.code, refusal.value.admitted) == ("disk_full", "no")
            assert refusal.value.retry_after_s is not None
        assert await journal.record(big.record.sandbox_id) is None
        filler.unlink()
        assert await journal.commit(big) == 2
    async with owner_journal(small_disk, lock) as journal:
        assert [line.seq for line in await journal.events()] == [1, 2]
    lock.release()


async def test_writing_until_it_is_full_keeps_all_that_was_acknowledged(small_disk: Path) -> None:
    lock = held_lock(small_disk)
    acknowledged: list[int] = []
    async with owner_journal(small_disk, lock) as journal:
        filler = fill(small_disk, leave_bytes=300 * 1024)

        async def write(writer: int) -> None:
            for number in range(1000):
                record = sample_record(writer * 1000 + number)
                acknowledged.append(await journal.commit(sample_entry(record, details={"text": "x" * 2000})))

        outcomes = await asyncio.gather(*(write(writer) for writer in range(4)), return_exceptions=True)
        for outcome in outcomes:
            assert isinstance(outcome, ResourceExhausted)
            assert outcome.code == "disk_full"
        assert acknowledged
        filler.unlink()
    async with owner_journal(small_disk, lock) as journal:
        found = [line.seq for line in await journal.events(limit=100_000)]
        assert found == list(range(1, len(found) + 1))
        assert set(acknowledged) == set(found), "what was refused was not done"
    lock.release()


async def test_a_journal_that_cannot_be_made_says_so(small_disk: Path) -> None:
    lock = held_lock(small_disk)
    filler = fill(small_disk, leave_bytes=4096)
    with pytest.raises(ResourceExhausted) as refusal:
        await owner_journal(small_disk, lock).open()
    assert refusal.value.code == "disk_full"
    filler.unlink()
    async with owner_journal(small_disk, lock) as journal:
        assert await journal.commit(sample_entry()) == 1
    lock.release()
