"""Leases of clients, in virtual time: who is silent too long loses what is bound to him, and nobody else does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sandkeeper.core.errors import NotFound, Unavailable
from sandkeeper.core.ids import ClientId, SandboxId
from sandkeeper.core.record import SandboxRecord
from sandkeeper.owner.chores import Chores
from sandkeeper.owner.client_leases import SCAN_EVERY_S, TICK_S, ClientLeases
from sandkeeper.ports import Ports
from tests.support.virtual_time import in_virtual_time
from tests.unit.core.samples import record

A, B = ClientId("a"), ClientId("b")


@dataclass
class Directory:
    """The records, and what is destroyed of them."""

    ports: Ports
    records: dict[SandboxId, SandboxRecord] = field(default_factory=dict)
    destroyed: list[str] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    reads: int = 0
    destroy_takes_s: float = 0.0
    on_destroy: Callable[[], None] | None = None

    def start(self) -> ClientLeases:
        """Begin as a new directory process does."""
        self.leases = ClientLeases(read_records=self._read, destroy=self._destroy, ports=self.ports)
        self.chores = Chores(ports=self.ports, fatal=lambda reason: self.destroyed.append(reason))
        self.chores.start("client leases", self.leases.tick, every_s=TICK_S)
        return self.leases

    def stop(self) -> None:
        self.chores.close()
        self.leases.close()

    def make(self, name: str, client_id: ClientId | None = A, *, ttl_s: float = 30.0) -> None:
        spec = record().spec.model_copy(
            update={"client_id": client_id, "client_ttl_s": ttl_s, "detached": client_id is None}
        )
        made = record().model_copy(update={"sandbox_id": SandboxId(name), "spec": spec})
        self.records[made.sandbox_id] = made

    async def beat(
        self, client_id: ClientId, *, for_s: float, every_s: float = 10.0, ttl_s: float = 30.0
    ) -> None:
        for _ in range(int(for_s / every_s)):
            self.leases.hear(client_id, ttl_s=ttl_s)
            await self.ports.sleep(every_s)

    async def _read(self) -> list[SandboxRecord]:
        self.reads += 1
        return list(self.records.values())

    async def _destroy(self, gone: SandboxRecord) -> None:
        if self.on_destroy is not None:
            self.on_destroy()
        await self.ports.sleep(self.destroy_takes_s)
        if self.failures:
            raise self.failures.pop(0)
        self.destroyed.append(gone.sandbox_id)
        self.records.pop(gone.sandbox_id, None)


def opened(ports: Ports, **fields: Any) -> Directory:
    directory = Directory(ports, **fields)
    directory.start()
    return directory


@in_virtual_time
async def test_what_a_silent_client_left_is_destroyed(ports: Ports) -> None:
    directory = opened(ports)
    directory.leases.hear(A, ttl_s=30)
    directory.make("mine")
    directory.make("also-mine")
    directory.make("detached", None)
    await ports.sleep(29)
    assert directory.destroyed == []
    await ports.sleep(4)
    assert sorted(directory.destroyed) == ["also-mine", "mine"]
    await ports.sleep(100)
    assert list(directory.records) == ["detached"]


@in_virtual_time
async def test_a_client_that_is_heard_keeps_its_own(ports: Ports) -> None:
    directory = opened(ports)
    directory.make("mine")
    directory.make("others", B)
    await directory.beat(A, for_s=300)
    assert directory.destroyed == ["others"]


@in_virtual_time
async def test_the_time_is_what_the_client_says(ports: Ports) -> None:
    directory = opened(ports)
    directory.make("patient", A)
    directory.make("hasty", B)
    directory.leases.hear(A, ttl_s=120)
    directory.leases.hear(B, ttl_s=5)
    await ports.sleep(8)
    assert directory.destroyed == ["hasty"]
    await ports.sleep(110)
    assert directory.destroyed == ["hasty"]
    await ports.sleep(10)
    assert directory.destroyed == ["hasty", "patient"]


@in_virtual_time
async def test_after_a_restart_of_the_directory_the_grace_starts_anew(ports: Ports) -> None:
    directory = opened(ports)
    directory.make("mine", ttl_s=60)
    directory.leases.hear(A, ttl_s=60)
    await ports.sleep(50)
    directory.stop()
    await ports.sleep(500)
    directory.start()
    await ports.sleep(59)
    assert directory.destroyed == []
    await ports.sleep(6)
    assert directory.destroyed == ["mine"]


@in_virtual_time
async def test_a_directory_that_stood_still_blames_nobody(ports: Ports) -> None:
    directory = opened(ports)
    directory.make("mine")
    directory.leases.hear(A, ttl_s=30)
    await ports.sleep(2)
    directory.chores.close()
    await ports.sleep(300)
    directory.chores.start("client leases", directory.leases.tick, every_s=TICK_S)
    await ports.sleep(25)
    assert directory.destroyed == []
    await ports.sleep(10)
    assert directory.destroyed == ["mine"]


@in_virtual_time
async def test_a_create_that_ends_after_its_client_is_found_all_the_same(ports: Ports) -> None:
    directory = opened(ports)
    directory.leases.hear(A, ttl_s=5)
    await ports.sleep(20)
    directory.make("late", ttl_s=5)
    await ports.sleep(SCAN_EVERY_S + 10)
    assert directory.destroyed == ["late"]


@in_virtual_time
async def test_a_destruction_that_fails_is_tried_again(ports: Ports) -> None:
    directory = opened(ports, failures=[Unavailable("away"), Unavailable("away")])
    directory.make("mine")
    directory.make("gone-already", B)
    directory.leases.hear(A, ttl_s=1)
    await ports.sleep(10)
    assert directory.destroyed == ["mine"]
    directory.failures = [NotFound("gone", code="sandbox_destroyed")]
    await ports.sleep(60)
    assert directory.destroyed == ["mine", "gone-already"]


@in_virtual_time
async def test_a_slow_destruction_is_begun_once_and_delays_no_other(ports: Ports) -> None:
    begun: list[int] = []
    directory = opened(ports, destroy_takes_s=40.0, on_destroy=lambda: begun.append(1))
    directory.make("mine")
    directory.leases.hear(A, ttl_s=1)
    directory.make("others", B)
    directory.leases.hear(B, ttl_s=10)
    await ports.sleep(30)
    assert len(begun) == 2
    await ports.sleep(30)
    assert sorted(directory.destroyed) == ["mine", "others"]


@in_virtual_time
async def test_a_client_that_is_back_in_time_keeps_what_was_not_begun(ports: Ports) -> None:
    directory = opened(ports, destroy_takes_s=5.0)
    for number in range(20):
        directory.make(f"s{number:02}")
    directory.leases.hear(A, ttl_s=1)
    await ports.sleep(4)
    await directory.beat(A, for_s=60, every_s=1)
    assert 0 < len(directory.destroyed) < 20


@in_virtual_time
async def test_the_records_are_not_read_while_all_are_heard(ports: Ports) -> None:
    directory = opened(ports)
    directory.make("mine")
    await directory.beat(A, for_s=300)
    assert directory.reads <= 300 / SCAN_EVERY_S + 1
