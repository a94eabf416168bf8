"""The directory's rounds of removing what no record claims: at the engine, and in the state folder."""

from __future__ import annotations

from dataclasses import replace

import structlog

from sandkeeper.boxd import remove_folders
from sandkeeper.containers.engine import Engine
from sandkeeper.containers.reaper import Doomed, KnownNames, find_doomed, reap_once
from sandkeeper.core.errors import SandkeeperError
from sandkeeper.core.ids import BirthId, InstallationId
from sandkeeper.owner.config import Config
from sandkeeper.owner.snapshot_catalogue import SnapshotCatalogue
from sandkeeper.owner.survey import Survey
from sandkeeper.ports import Ports
from sandkeeper.store.catalogue import Catalogue

log = structlog.get_logger(__name__)


class Reaping:
    """One installation's reaper; the only one, in the directory."""

    def __init__(
        self,
        config: Config,
        *,
        installation_id: InstallationId,
        catalogue: Catalogue,
        survey: Survey,
        snapshots: SnapshotCatalogue,
        engine: Engine,
        ports: Ports,
    ) -> None:
        self._config = config
        self._installation_id = installation_id
        self._catalogue = catalogue
        self._survey = survey
        self._snapshots = snapshots
        self._engine = engine
        self._ports = ports

    async def doomed(self) -> Doomed:
        """Return what a round at the engine would remove now.

        Raises:
            Unavailable: The engine cannot be listed.
        """
        return await find_doomed(
            self._engine,
            installation_id=self._installation_id,
            read_known=self._read_known,
            now=self._ports.clock.now,
            reap_after_s=self._config.reap_after_s,
        )

    async def reap(self) -> Doomed:
        """Remove what no record claims, and the folders of containers that are gone.

        Raises:
            Unavailable: The engine cannot be listed.
        """
        folders = self._folders()
        found = await reap_once(
            self._engine,
            installation_id=self._installation_id,
            read_known=self._read_known,
            now=self._ports.clock.now,
            reap_after_s=self._config.reap_after_s,
        )
        known = await self._read_known()
        present = {runtime.birth_id for runtime in await self._engine.list_runtimes()}
        for birth_id in folders - known.births - present:
            self._remove_folders(birth_id)
        return found

    def _remove_folders(self, birth_id: BirthId) -> None:
        try:
            remove_folders(self._config.state_dir, birth_id=birth_id)
        except (SandkeeperError, OSError) as error:
            log.warning("folders_left", birth_id=birth_id, error=str(error))

    def _folders(self) -> set[BirthId]:
        """Return the birth ids that have folders; read before the records, as a claim is made before its folder."""
        names: set[BirthId] = set()
        for parent in ("r", "c"):
            folder = self._config.state_dir / parent
            if folder.is_dir():
                names |= {BirthId(entry.name) for entry in folder.iterdir()}
        return names

    async def _read_known(self) -> KnownNames:
        gone = await self._snapshots.gone()
        known = await self._survey.known_names(await self._catalogue.owners(), gone)
        return replace(known, snapshots=known.snapshots | (await self._snapshots.named() - gone))
