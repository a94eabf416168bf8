"""The journal on disk and the one in memory, made the same way: for suites that both must pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from sandkeeper.ports import real_ports
from sandkeeper.store.journal import OwnerJournal
from sandkeeper.store.locks import ProcessLock
from tests.fakes.disk import MemoryDisk
from tests.fakes.journal import FakeJournal
from tests.fakes.lock import FakeLock
from tests.support.store_samples import MACHINE


class Rig(Protocol):
    """Makes journals on one file; the lock is held unless it is released."""

    def journal(self) -> Any: ...

    def release_lock(self) -> None: ...


class RealRig:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = ProcessLock(folder / "owner.lock", ports=real_ports())
        self._lock.try_acquire()

    def journal(self) -> OwnerJournal:
        return OwnerJournal(self._folder / "owner.db", machine_id=MACHINE, lock=self._lock)

    def release_lock(self) -> None:
        self._lock.release()


class FakeRig:
    def __init__(self) -> None:
        self._disk = MemoryDisk()
        self._lock = FakeLock(self._disk, name="owner", process="p1")
        self._disk.locks["owner"] = "p1"

    def journal(self) -> FakeJournal:
        return FakeJournal(
            disk=self._disk, name="owner", machine_id=MACHINE, lock=self._lock, ports=real_ports()
        )

    def release_lock(self) -> None:
        self._lock.release()
