from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandkeeper.core.errors import AlreadyExists, FailedPrecondition, NotFound
from sandkeeper.core.ids import DEFAULT_TENANT, OwnerId, RequestId, SandboxId, SnapshotId, TenantId
from sandkeeper.ports import real_ports
from sandkeeper.store.catalogue import Catalogue
from sandkeeper.store.catalogue_entries import Reservation, TombstoneState
from sandkeeper.store.catalogue_reader import CatalogueReader
from sandkeeper.store.contract import Epochs
from sandkeeper.store.locks import ProcessLock
from tests.fakes.disk import MemoryDisk
from tests.fakes.epochs import FakeEpochs
from tests.support.store_samples import MACHINE, OWNER, START, held_lock, moment


def made(folder: Path, lock: ProcessLock) -> Catalogue:
    return Catalogue(folder / "catalogue.db", machine_id=MACHINE, lock=lock, ports=real_ports())


@pytest.fixture
async def catalogue(tmp_path: Path) -> AsyncIterator[Catalogue]:
    lock = held_lock(tmp_path)
    async with made(tmp_path, lock) as catalogue:
        yield catalogue
    lock.release()


def reservation(number: int = 1, **changes: Any) -> Reservation:
    wanted = Reservation(
        machine_id=MACHINE,
        request_id=RequestId(f"r{number}"),
        fingerprint="f",
        sandbox_id=SandboxId(f"sb{number}"),
        owner_id=OWNER,
        memory_mib=512,
        at=moment(number),
    )
    return wanted.model_copy(update=changes)


async def test_without_the_lock_it_is_not_opened(tmp_path: Path) -> None:
    lock = held_lock(tmp_path)
    lock.release()
    with pytest.raises(FailedPrecondition) as refusal:
        await made(tmp_path, lock).open()
    assert refusal.value.code == "lock_not_held"
    assert not (tmp_path / "catalogue.db").exists()


@pytest.fixture(params=["real", "fake"])
async def epochs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Catalogue | FakeEpochs]:
    if request.param == "fake":
        yield FakeEpochs(disk=MemoryDisk(), machine_id=MACHINE, ports=real_ports())
        return
    lock = held_lock(tmp_path)
    async with made(tmp_path, lock) as catalogue:
        yield catalogue
    lock.release()


async def test_an_epoch_only_rises(epochs: Catalogue | FakeEpochs) -> None:
    contract: Epochs = epochs
    added = await epochs.add_owner(OWNER)
    assert (added.epoch, added.pid, added.machine_id) == (0, None, MACHINE)
    raised = await asyncio.gather(*(contract.raise_epoch(OWNER, pid=n, start_ticks=9) for n in range(5)))
    assert sorted(raised) == [1, 2, 3, 4, 5]
    again = await epochs.add_owner(OWNER)
    assert (again.epoch, again.start_ticks, again.created_at) == (5, 9, added.created_at)
    assert await contract.owner(OWNER) == again


async def test_an_unknown_owner_gets_no_epoch(epochs: Catalogue | FakeEpochs) -> None:
    with pytest.raises(NotFound) as missing:
        await epochs.raise_epoch(OwnerId("nobody"), pid=1, start_ticks=1)
    assert missing.value.code == "owner_unknown"
    assert await epochs.owner(OwnerId("nobody")) is None


async def test_an_epoch_survives_reopening(tmp_path: Path) -> None:
    lock = held_lock(tmp_path)
    for expected in (1, 2, 3):
        async with made(tmp_path, lock) as catalogue:
            await catalogue.add_owner(OWNER)
            assert await catalogue.raise_epoch(OWNER, pid=1, start_ticks=1) == expected
    lock.release()


async def test_a_repeated_create_finds_its_reservation(catalogue: Catalogue) -> None:
    first = await catalogue.reserve(reservation(name="box"))
    assert first.is_new
    repeat = await catalogue.reserve(reservation(name="box", sandbox_id=SandboxId("another"), at=moment(9)))
    assert (repeat.is_new, repeat.reservation) == (False, first.reservation)
    with pytest.raises(AlreadyExists) as conflict:
        await catalogue.reserve(reservation(fingerprint="other"))
    assert (conflict.value.code, conflict.value.sandbox_id) == ("request_id_conflict", "sb1")
    assert await catalogue.by_sandbox(SandboxId("another")) is None


async def test_twenty_creates_with_one_request_id_make_one_reservation(catalogue: Catalogue) -> None:
    wanted = [reservation(sandbox_id=SandboxId(f"sb{n}")) for n in range(20)]
    outcomes = await asyncio.gather(*(catalogue.reserve(one) for one in wanted))
    assert sum(outcome.is_new for outcome in outcomes) == 1
    assert len({outcome.reservation.sandbox_id for outcome in outcomes}) == 1


async def test_a_name_is_taken_until_it_is_released(catalogue: Catalogue) -> None:
    await catalogue.reserve(reservation(1, name="box"))
    with pytest.raises(AlreadyExists) as taken:
        await catalogue.reserve(reservation(2, name="box"))
    assert (taken.value.code, taken.value.sandbox_id, taken.value.request_id) == ("name_taken", "sb1", "r2")
    other = TenantId("other")
    await catalogue.reserve(reservation(3, name="box", tenant_id=other))
    found = await catalogue.by_name("box")
    assert found is not None
    assert found.sandbox_id == "sb1"

    assert await catalogue.release(SandboxId("sb1"))
    assert not await catalogue.release(SandboxId("sb1"))
    assert await catalogue.by_name("box") is None
    assert (await catalogue.reserve(reservation(4, name="box"))).is_new


async def test_a_released_reservation_still_answers_its_request(catalogue: Catalogue) -> None:
    await catalogue.reserve(reservation())
    await catalogue.release(SandboxId("sb1"))
    kept = await catalogue.by_request(RequestId("r1"))
    assert kept is not None
    assert kept.released_at is not None
    assert not (await catalogue.reserve(reservation())).is_new
    assert await catalogue.prune_reservations(before=START) == 0
    assert await catalogue.prune_reservations(before=real_ports().clock.now()) == 1
    assert await catalogue.by_request(RequestId("r1")) is None


async def test_memory_is_counted_until_released(catalogue: Catalogue) -> None:
    for number in (1, 2, 3):
        await catalogue.reserve(reservation(number))
    assert await catalogue.memory_reserved_mib() == 1536
    assert await catalogue.resize(SandboxId("sb1"), memory_mib=1024)
    assert not await catalogue.resize(SandboxId("nobody"), memory_mib=1)
    await catalogue.release(SandboxId("sb2"))
    assert await catalogue.memory_reserved_mib() == 1536
    assert [one.sandbox_id for one in await catalogue.reservations()] == ["sb1", "sb3"]


async def test_tombstones_stay(catalogue: Catalogue) -> None:
    snapshot = SnapshotId("sn1")
    assert await catalogue.tombstone(snapshot) is None
    for state in (TombstoneState.DELETING, TombstoneState.DELETED, TombstoneState.DELETED):
        made = await catalogue.put_tombstone(snapshot, state=state)
        assert await catalogue.tombstone(snapshot) == made
    assert [one.state for one in await catalogue.tombstones()] == ["deleted"]


async def test_a_deleted_snapshot_does_not_go_back_to_deleting(catalogue: Catalogue) -> None:
    await catalogue.put_tombstone(SnapshotId("sn1"), state=TombstoneState.DELETED)
    kept = await catalogue.put_tombstone(SnapshotId("sn1"), state=TombstoneState.DELETING)
    assert kept.state is TombstoneState.DELETED
    assert await catalogue.tombstone(SnapshotId("sn1")) == kept


async def test_images_are_offered_per_tenant(catalogue: Catalogue) -> None:
    await catalogue.put_image("base", image_id="sha256:1", facts={"user": "user", "env": ["A=1"]})
    newer = await catalogue.put_image("base", image_id="sha256:2", facts={})
    assert await catalogue.images() == [newer]
    assert await catalogue.image("base") == newer
    assert await catalogue.image("base", tenant_id=TenantId("other")) is None
    assert await catalogue.drop_image("base")
    assert not await catalogue.drop_image("base")
    assert await catalogue.images() == []


async def test_the_newest_policy_is_in_force(catalogue: Catalogue) -> None:
    assert await catalogue.policy() is None
    first = await catalogue.put_policy({"max_vcpu": 2})
    second = await catalogue.put_policy({"max_vcpu": 4})
    assert (first.version, second.version) == (1, 2)
    assert await catalogue.policy() == second
    assert await catalogue.policy(1) == first
    assert await catalogue.policy(tenant_id=TenantId("other")) is None


async def test_any_process_may_read(catalogue: Catalogue) -> None:
    await catalogue.add_owner(OWNER)
    async with CatalogueReader(catalogue.path) as reader:
        assert [row.owner_id for row in await reader.owners()] == [OWNER]
        assert await reader.by_request(RequestId("r"), tenant_id=DEFAULT_TENANT) is None


async def test_a_create_that_came_to_nothing_is_forgotten_once_released(catalogue: Catalogue) -> None:
    first = reservation(1)
    await catalogue.reserve(first)
    assert not await catalogue.forget_released(first.request_id)
    assert await catalogue.by_request(first.request_id) == first
    await catalogue.release(first.sandbox_id)
    assert await catalogue.forget_released(first.request_id)
    again = reservation(1, sandbox_id=SandboxId("sb9"))
    assert (await catalogue.reserve(again)).is_new
