"""What the catalogue keeps about snapshots beside their rows: retention, and imports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandkeeper.core.ids import MachineId, RequestId, SnapshotId
from sandkeeper.ports import real_ports
from sandkeeper.store.catalogue import Catalogue
from sandkeeper.store.catalogue_entries import ImportRow
from sandkeeper.store.catalogue_reader import CatalogueReader
from sandkeeper.store.locks import ProcessLock

MACHINE = MachineId("m0")
SNAPSHOT = SnapshotId("sn1")
AT = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
async def catalogue(tmp_path: Path) -> AsyncIterator[Catalogue]:
    lock = ProcessLock(tmp_path / "catalogue.lock", ports=real_ports())
    await lock.acquire(timeout_s=5)
    path = tmp_path / "catalogue.db"
    async with Catalogue(path, machine_id=MACHINE, lock=lock, ports=real_ports()) as opened:
        yield opened
    lock.release()


async def test_a_retention_replaces_the_one_before(catalogue: Catalogue) -> None:
    assert await catalogue.retention(SNAPSHOT) is None
    await catalogue.put_retention(SNAPSHOT, keep_s=60.0, expires_at=AT, is_pinned=False)
    await catalogue.put_retention(SNAPSHOT, keep_s=None, expires_at=None, is_pinned=True)
    found = await catalogue.retention(SNAPSHOT)
    assert found is not None
    assert (found.keep_s, found.expires_at, found.is_pinned) == (None, None, True)
    assert await catalogue.retentions() == [found]


async def test_another_process_reads_a_retention_exactly(catalogue: Catalogue) -> None:
    await catalogue.put_retention(SNAPSHOT, keep_s=0.5, expires_at=AT, is_pinned=False)
    async with CatalogueReader(catalogue.path) as reader:
        found = await reader.retention(SNAPSHOT)
    assert found is not None
    assert (found.keep_s, found.expires_at, found.is_pinned) == (0.5, AT, False)


async def test_an_import_is_begun_then_done_or_dropped(catalogue: Catalogue) -> None:
    begun = ImportRow(
        machine_id=MACHINE,
        snapshot_id=SNAPSHOT,
        request_id=RequestId("r1"),
        image="base",
        is_done=False,
        document={"snapshot_id": "sn1"},
        at=AT,
    )
    await catalogue.put_import(begun)
    assert await catalogue.imports() == [begun]
    done = begun.model_copy(update={"is_done": True})
    await catalogue.put_import(done)
    assert await catalogue.imports() == [done]
    await catalogue.drop_import(SNAPSHOT)
    await catalogue.drop_import(SNAPSHOT)
    assert await catalogue.imports() == []
