"""The catalogue's epochs in memory; the hooks are those of the fake journal."""

from __future__ import annotations

from dataclasses import dataclass

from sandkeeper.core.errors import NotFound
from sandkeeper.core.ids import MachineId, OwnerId
from sandkeeper.ports import Ports
from sandkeeper.store.catalogue_entries import OwnerRow
from tests.fakes.disk import MemoryDisk
from tests.fakes.journal import Hook


@dataclass(slots=True)
class FakeEpochs:
    """`contract.Epochs` on a `MemoryDisk`."""

    disk: MemoryDisk
    machine_id: MachineId
    ports: Ports
    before_commit: Hook | None = None
    after_commit: Hook | None = None

    async def add_owner(self, owner_id: OwnerId) -> OwnerRow:
        row = OwnerRow(machine_id=self.machine_id, owner_id=owner_id, created_at=self.ports.clock.now())
        return self.disk.owners.setdefault(owner_id, row)

    async def raise_epoch(self, owner_id: OwnerId, *, pid: int, start_ticks: int) -> int:
        await self.ports.sleep(0)
        if self.before_commit is not None:
            await self.before_commit("epoch_raised")
        row = self.disk.owners.get(owner_id)
        if row is None:
            raise NotFound(f"there is no owner {owner_id}", code="owner_unknown")
        raised = row.model_copy(update={"epoch": row.epoch + 1, "pid": pid, "start_ticks": start_ticks})
        self.disk.owners[owner_id] = raised
        if self.after_commit is not None:
            await self.after_commit("epoch_raised")
        return raised.epoch

    async def owner(self, owner_id: OwnerId) -> OwnerRow | None:
        return self.disk.owners.get(owner_id)
