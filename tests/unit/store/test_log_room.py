"""Room made in the log of an open journal changes nothing of what the journal says."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandkeeper.store import log_room
from sandkeeper.store.log_room import make_log_room
from tests.support.store_samples import START, held_lock, owner_journal, sample_entry, sample_record

ROOM_BYTES = 1024 * 1024


def log_of(folder: Path) -> Path:
    return folder / "owner.db-wal"


async def test_what_was_and_what_will_be_written_is_read_back(tmp_path: Path) -> None:
    lock = held_lock(tmp_path)
    async with owner_journal(tmp_path, lock) as journal:
        before = sample_record(1)
        await journal.commit(sample_entry(before, kind="start_requested", at=START))
        assert make_log_room(tmp_path / "owner.db", size_bytes=ROOM_BYTES)
        assert log_of(tmp_path).stat().st_size >= ROOM_BYTES
        after = sample_record(2)
        await journal.commit(sample_entry(after, kind="start_requested", at=START))
        assert make_log_room(tmp_path / "owner.db", size_bytes=ROOM_BYTES), "a repeat finds it made"
        assert {record.sandbox_id for record in await journal.records()} == {
            before.sandbox_id,
            after.sandbox_id,
        }
    lock.release()


async def test_a_journal_killed_with_room_in_its_log_opens_with_everything(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    lock = held_lock(first)
    async with owner_journal(first, lock) as journal:
        make_log_room(first / "owner.db", size_bytes=ROOM_BYTES)
        await journal.commit(sample_entry(sample_record(1), kind="start_requested", at=START))
        second.mkdir()
        for name in ("owner.db", "owner.db-wal", "owner.db.mark"):
            second.joinpath(name).write_bytes(first.joinpath(name).read_bytes())
    lock.release()
    other_lock = held_lock(second)
    async with owner_journal(second, other_lock) as journal:
        assert [record.sandbox_id for record in await journal.records()] == [sample_record(1).sandbox_id]
    other_lock.release()


async def test_a_disk_that_is_nearly_full_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_room, "SPARE_FACTOR", 2**40)
    lock = held_lock(tmp_path)
    async with owner_journal(tmp_path, lock):
        size_bytes = log_of(tmp_path).stat().st_size
        assert not make_log_room(tmp_path / "owner.db", size_bytes=ROOM_BYTES)
        assert log_of(tmp_path).stat().st_size == size_bytes
    lock.release()


def test_no_log_is_no_error(tmp_path: Path) -> None:
    assert not make_log_room(tmp_path / "owner.db", size_bytes=ROOM_BYTES)
