"""Reading the catalogue, from any process, while the directory writes it.

Owns the queries. Never writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ValidationError

from sandkeeper.core.ids import DEFAULT_TENANT, OwnerId, RequestId, SandboxId, SnapshotId, TenantId
from sandkeeper.store.catalogue_entries import (
    CatalogueImage,
    ImportRow,
    OwnerRow,
    PolicyVersion,
    Reservation,
    RetentionRow,
    Tombstone,
)
from sandkeeper.store.catalogue_rows import from_row
from sandkeeper.store.errors import damaged
from sandkeeper.store.migrations import CATALOGUE_LAYOUT
from sandkeeper.store.reading import ReadConnection

M = TypeVar("M", bound=BaseModel)

_OWNERS = "SELECT * FROM owners WHERE coalesce(:owner_id, owner_id) = owner_id ORDER BY created_at, rowid"
_BY_REQUEST = "SELECT * FROM reservations WHERE tenant_id = :tenant_id AND request_id = :request_id"
_BY_NAME = "SELECT * FROM reservations WHERE tenant_id = :tenant_id AND name = :name AND released_at IS NULL"
_BY_SANDBOX = "SELECT * FROM reservations WHERE sandbox_id = :sandbox_id"
_RESERVATIONS = "SELECT * FROM reservations WHERE released_at IS NULL ORDER BY at, rowid"
_MEMORY = "SELECT coalesce(sum(memory_mib), 0) FROM reservations WHERE released_at IS NULL"
_TOMBSTONES = (
    "SELECT * FROM tombstones WHERE coalesce(:snapshot_id, snapshot_id) = snapshot_id ORDER BY at, rowid"
)
_RETENTIONS = "SELECT * FROM retentions WHERE coalesce(:snapshot_id, snapshot_id) = snapshot_id"
_IMPORTS = "SELECT * FROM imports ORDER BY at, rowid"
_IMAGES = "SELECT * FROM images WHERE tenant_id = :tenant_id AND coalesce(:name, name) = name ORDER BY name"
_POLICY = (
    "SELECT * FROM policies WHERE tenant_id = :tenant_id AND coalesce(:version, version) = version"
    " ORDER BY version DESC LIMIT 1"
)


class CatalogueReader:
    """Read-only view of `catalogue.db`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = ReadConnection(path, layout=CATALOGUE_LAYOUT)

    async def open(self) -> None:
        """Connect; see `ReadConnection.open` for what it raises."""
        await self._file.open()

    async def close(self) -> None:
        """Disconnect; safe to repeat."""
        await self._file.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def owners(self) -> list[OwnerRow]:
        """Return all owners, oldest first."""
        return await self._models(_OWNERS, {"owner_id": None}, model=OwnerRow)

    async def owner(self, owner_id: OwnerId) -> OwnerRow | None:
        """Return one owner."""
        return _first(await self._models(_OWNERS, {"owner_id": owner_id}, model=OwnerRow))

    async def by_request(
        self, request_id: RequestId, *, tenant_id: TenantId = DEFAULT_TENANT
    ) -> Reservation | None:
        """Return the reservation a create made, a released one too."""
        wanted = {"tenant_id": tenant_id, "request_id": request_id}
        return _first(await self._models(_BY_REQUEST, wanted, model=Reservation))

    async def by_name(self, name: str, *, tenant_id: TenantId = DEFAULT_TENANT) -> Reservation | None:
        """Return the unreleased reservation that has the name."""
        wanted = {"tenant_id": tenant_id, "name": name}
        return _first(await self._models(_BY_NAME, wanted, model=Reservation))

    async def by_sandbox(self, sandbox_id: SandboxId) -> Reservation | None:
        """Return the reservation of a sandbox, a released one too."""
        return _first(await self._models(_BY_SANDBOX, {"sandbox_id": sandbox_id}, model=Reservation))

    async def reservations(self) -> list[Reservation]:
        """Return all unreleased reservations, oldest first."""
        return await self._models(_RESERVATIONS, {}, model=Reservation)

    async def memory_reserved_mib(self) -> int:
        """Return the sum of memory of all unreleased reservations."""
        return int((await self._file.rows(_MEMORY))[0][0])

    async def tombstones(self) -> list[Tombstone]:
        """Return all snapshots that are being deleted or are deleted."""
        return await self._models(_TOMBSTONES, {"snapshot_id": None}, model=Tombstone)

    async def tombstone(self, snapshot_id: SnapshotId) -> Tombstone | None:
        """Return the tombstone of one snapshot, if it has one."""
        return _first(await self._models(_TOMBSTONES, {"snapshot_id": snapshot_id}, model=Tombstone))

    async def retentions(self) -> list[RetentionRow]:
        """Return what was decided about keeping snapshots since they were taken."""
        return await self._models(_RETENTIONS, {"snapshot_id": None}, model=RetentionRow)

    async def retention(self, snapshot_id: SnapshotId) -> RetentionRow | None:
        """Return what was decided about keeping one snapshot."""
        return _first(await self._models(_RETENTIONS, {"snapshot_id": snapshot_id}, model=RetentionRow))

    async def imports(self) -> list[ImportRow]:
        """Return all imports, unfinished ones too, oldest first."""
        return await self._models(_IMPORTS, {}, model=ImportRow)

    async def images(self, *, tenant_id: TenantId = DEFAULT_TENANT) -> list[CatalogueImage]:
        """Return the images a tenant may create from, by name."""
        return await self._models(_IMAGES, {"tenant_id": tenant_id, "name": None}, model=CatalogueImage)

    async def image(self, name: str, *, tenant_id: TenantId = DEFAULT_TENANT) -> CatalogueImage | None:
        """Return one image."""
        return _first(
            await self._models(_IMAGES, {"tenant_id": tenant_id, "name": name}, model=CatalogueImage)
        )

    async def policy(
        self, version: int | None = None, *, tenant_id: TenantId = DEFAULT_TENANT
    ) -> PolicyVersion | None:
        """Return the policy in force, or one version of it."""
        wanted = {"tenant_id": tenant_id, "version": version}
        return _first(await self._models(_POLICY, wanted, model=PolicyVersion))

    async def _models(self, statement: str, parameters: dict[str, Any], *, model: type[M]) -> list[M]:
        names, rows = await self._file.table(statement, parameters)
        try:
            return [from_row(names, row, model=model) for row in rows]
        except ValidationError as error:
            problem = f"a stored {model.__name__} cannot be read ({error.error_count()} faults)"
            raise damaged(self.path, problem=problem) from error


def _first(found: list[M]) -> M | None:
    return found[0] if found else None
