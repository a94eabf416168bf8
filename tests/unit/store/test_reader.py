from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from sandkeeper.core.commands import FreezeRuntime
from sandkeeper.core.errors import DataLoss, NotFound
from sandkeeper.core.ids import BirthId, CommandId
from sandkeeper.core.record import Phase, SandboxRecord
from sandkeeper.store.entries import PHASES_WITHOUT_MEMORY
from sandkeeper.store.journal import OwnerJournal
from sandkeeper.store.reader import OwnerReader
from tests.fakes.disk import JournalContent
from tests.fakes.journal import claims_of, memory_in_use_mib
from tests.support.store_samples import held_lock, owner_journal, sample_entry, sample_record


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[OwnerJournal]:
    lock = held_lock(tmp_path)
    async with owner_journal(tmp_path, lock) as journal:
        yield journal
    lock.release()


def claiming(number: int, phase: Phase, *given_up: str) -> SandboxRecord:
    birth = BirthId(f"sk-{number}")
    pending = FreezeRuntime(command_id=CommandId(f"c{number}"), birth_id=birth, generation=1)
    return sample_record(number, phase=phase, birth_id=birth, pending=pending, given_up=given_up)


RECORDS = [
    claiming(1, Phase.RUNNING),
    claiming(2, Phase.STARTING, "sk-old", 'odd "name", [x]'),
    claiming(3, Phase.DESTROYED, "sk-late"),
    sample_record(4),
    sample_record(5, phase=Phase.STOPPED, birth_id=BirthId("sk-kept"), is_kept=True),
]


async def test_claims_are_what_the_records_say(journal: OwnerJournal) -> None:
    for record in RECORDS:
        await journal.commit(sample_entry(record))
    async with OwnerReader(journal.path) as reader:
        claims = await reader.claims()
    assert claims.births == {"sk-1", "sk-2", "sk-kept"}
    assert claims.given_up == {"sk-old", 'odd "name", [x]', "sk-late"}
    assert claims.pending == {"c1", "c2"}
    content = JournalContent(records={record.sandbox_id: record for record in RECORDS})
    assert claims == claims_of(content)


async def test_memory_counts_every_phase_that_has_a_runtime_or_soon_will(journal: OwnerJournal) -> None:
    records = [sample_record(number, phase=phase) for number, phase in enumerate(Phase)]
    for record in records:
        await journal.commit(sample_entry(record))
    async with OwnerReader(journal.path) as reader:
        in_use = await reader.memory_in_use_mib()
    assert in_use == 512 * (len(Phase) - len(PHASES_WITHOUT_MEMORY))
    content = JournalContent(records={record.sandbox_id: record for record in records})
    assert in_use == memory_in_use_mib(content)


async def test_an_empty_file_claims_nothing(journal: OwnerJournal) -> None:
    async with OwnerReader(journal.path) as reader:
        assert await reader.claims() == claims_of(JournalContent())
        assert await reader.memory_in_use_mib() == 0


async def test_a_reader_sees_every_commit_that_returned(journal: OwnerJournal) -> None:
    async with OwnerReader(journal.path) as reader:
        for number in range(20):
            seq = await journal.commit(sample_entry(sample_record(number)))
            assert [line.seq for line in await reader.events(after_seq=seq - 1)] == [seq]


async def test_a_reader_cannot_write(journal: OwnerJournal) -> None:
    async with OwnerReader(journal.path) as reader:
        with pytest.raises(DataLoss) as refusal:
            await reader._file.rows("DELETE FROM events")
    assert refusal.value.code == "journal_unwritable"


async def test_a_file_that_was_never_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as missing:
        await OwnerReader(tmp_path / "owner.db").open()
    assert missing.value.code == "journal_missing"
    assert list(tmp_path.iterdir()) == []


async def test_a_record_that_is_none_is_data_loss(tmp_path: Path) -> None:
    lock = held_lock(tmp_path)
    async with owner_journal(tmp_path, lock) as journal:
        await journal.commit(sample_entry())
    with closing(sqlite3.connect(tmp_path / "owner.db")) as connection:
        connection.execute("UPDATE sandboxes SET document = json_set(document, '$.phase', 'dancing')")
        connection.commit()
    async with owner_journal(tmp_path, lock) as journal:
        with pytest.raises(DataLoss) as damage:
            await journal.records()
    lock.release()
    assert damage.value.code == "journal_damaged"
