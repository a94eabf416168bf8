"""A disk in memory for simulations: what outlives a simulated crash, and nothing else.

Owns durable content and held locks. Whoever simulates a process keeps no other shared state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sandkeeper.core.alarms import Alarm, AlarmId
from sandkeeper.core.ids import OwnerId, RequestId, SandboxId, SnapshotId, TenantId
from sandkeeper.core.record import SandboxRecord, SnapshotRecord
from sandkeeper.core.state import StateEntry
from sandkeeper.store.catalogue_entries import OwnerRow
from sandkeeper.store.entries import Answer, JournalEvent


@dataclass(slots=True)
class JournalContent:
    """One owner's file.

    Attributes:
        revision: Rises with every commit; a journal that finds another one than it left is not alone.
    """

    revision: int = 0
    records: dict[SandboxId, SandboxRecord] = field(default_factory=dict)
    events: list[JournalEvent] = field(default_factory=list)
    snapshots: dict[SnapshotId, SnapshotRecord] = field(default_factory=dict)
    answers: dict[tuple[TenantId, RequestId], Answer] = field(default_factory=dict)
    states: dict[tuple[SandboxId, str], StateEntry] = field(default_factory=dict)
    alarms: dict[tuple[SandboxId, AlarmId], Alarm] = field(default_factory=dict)


@dataclass(slots=True)
class MemoryDisk:
    """Survives the simulated processes that use it.

    Attributes:
        journals: Content by file name.
        owners: The catalogue's owners.
        locks: Lock name -> name of the simulated process that holds it.
        is_full: Whether commits are refused with `disk_full`.
    """

    journals: dict[str, JournalContent] = field(default_factory=dict)
    owners: dict[OwnerId, OwnerRow] = field(default_factory=dict)
    locks: dict[str, str] = field(default_factory=dict)
    is_full: bool = False

    def journal(self, name: str) -> JournalContent:
        """Return the content of a file, made when it is not there."""
        return self.journals.setdefault(name, JournalContent())

    def free_locks(self, process: str) -> None:
        """Do what the kernel does when a process ends: let go of its locks."""
        for name in [name for name, holder in self.locks.items() if holder == process]:
            del self.locks[name]
