"""kill -9 of a process that is committing: everything it acknowledged is there when the file is reopened."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sandkeeper.core.ids import DEFAULT_TENANT, RequestId
from sandkeeper.store.journal import OwnerJournal
from sandkeeper.store.reader import OwnerReader
from tests.support.store_process import next_line, store_child
from tests.support.store_samples import held_lock, owner_journal, sample_record, sample_snapshot

pytestmark = pytest.mark.crash

KILLS = 12
SEED = 20_260_101


@dataclass
class Heard:
    """All acknowledgements, over all incarnations: seq -> what was acknowledged under it."""

    by_seq: dict[int, dict[str, Any]] = field(default_factory=dict)

    def take(self, line: str) -> None:
        assert line, "the writer ended by itself"
        if line.startswith("{") and line.endswith("}"):
            acknowledged = json.loads(line)
            assert acknowledged["seq"] not in self.by_seq, "a seq was given twice"
            self.by_seq[acknowledged["seq"]] = acknowledged


@pytest.mark.slow
@pytest.mark.parametrize("writers", [1, 24])
async def test_every_acknowledged_entry_survives(tmp_path: Path, writers: int) -> None:
    chance = random.Random(SEED + writers)
    heard = Heard()
    for _ in range(KILLS):
        with store_child("write", str(tmp_path), str(writers)) as child:
            assert next_line(child) == "ready"
            for _ in range(chance.randrange(1, 300)):
                heard.take(next_line(child))
            child.kill()
            rest, _ = child.communicate()
        for line in rest.splitlines():
            heard.take(line)
        async with OwnerReader(tmp_path / "owner.db") as reader:
            newest = max(heard.by_seq)
            found = await reader.events(after_seq=newest - 1, limit=1)
            assert [line.seq for line in found] == [newest], (
                "another process does not see what was acknowledged"
            )
        lock = held_lock(tmp_path)
        async with owner_journal(tmp_path, lock) as journal:
            await check(journal, heard, writers=writers)
        lock.release()


async def check(journal: OwnerJournal, heard: Heard, *, writers: int) -> None:
    lines = await journal.events(limit=1_000_000)
    assert [line.seq for line in lines] == list(range(1, len(lines) + 1)), "there is a gap"
    for seq, acknowledged in heard.by_seq.items():
        details = lines[seq - 1].details
        assert (details["writer"], details["count"]) == (acknowledged["writer"], acknowledged["count"])
    for writer in range(writers):
        counts = [line.details["count"] for line in lines if line.details["writer"] == writer]
        assert counts == list(range(1, len(counts) + 1)), "entries of one writer are in order, each once"
        record = await journal.record(sample_record(writer).sandbox_id)
        assert (record.command_count if record else 0) == len(counts), (
            "record and line were committed together"
        )
        await check_last_of(journal, writer=writer, count=len(counts))


async def check_last_of(journal: OwnerJournal, *, writer: int, count: int) -> None:
    """The newest entry is there with all its parts, the next one with none of them."""
    for number, is_there in ((count, count > 0), (count + 1, False)):
        answer = await journal.answer(RequestId(f"r-{writer}-{number}"), tenant_id=DEFAULT_TENANT)
        assert (answer is not None) == is_there
        snapshot = await journal.snapshot(sample_snapshot(writer * 1_000_000 + number).snapshot_id)
        assert (snapshot is not None) == (is_there and number % 5 == 0)


async def test_a_new_incarnation_ends_the_one_that_writes(tmp_path: Path) -> None:
    """Two writers started on one file, one after the other: the second ends the first before it opens."""
    heard = Heard()
    with store_child("write", str(tmp_path), "8") as first:
        assert next_line(first) == "ready"
        for _ in range(50):
            heard.take(next_line(first))
        with store_child("write", str(tmp_path), "8") as second:
            assert next_line(second) == "ready"
            assert first.wait(timeout=30) == -9
            for line in first.communicate()[0].splitlines():
                heard.take(line)
            for _ in range(50):
                heard.take(next_line(second))
            second.kill()
            for line in second.communicate()[0].splitlines():
                heard.take(line)
    lock = held_lock(tmp_path)
    async with owner_journal(tmp_path, lock) as journal:
        await check(journal, heard, writers=8)
    lock.release()
