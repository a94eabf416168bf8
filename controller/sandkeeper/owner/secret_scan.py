"""Looks for credentials in what a snapshot would hold, before the freeze.

Owns which files are read, by whom, and where the bounds are. A running box reads its own files; of one that stands
still the engine reads them. A value that was read is never kept, logged or sent on. What counts as a credential is
`core.findings`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import structlog

from sandkeeper.containers.engine import Engine
from sandkeeper.core import commands as cmd
from sandkeeper.core.errors import FailedPrecondition, PermissionDenied, SandkeeperError, Unavailable
from sandkeeper.core.findings import (
    ALWAYS_READ,
    MAX_FINDINGS,
    Finding,
    SecretScan,
    SecretsMode,
    findings_in,
    tool_of,
    worth_reading,
)
from sandkeeper.core.record import SandboxRecord
from sandkeeper.owner.boxes import Boxes
from sandkeeper.ports import Ports

log = structlog.get_logger(__name__)

MAX_S = 10.0
READS_AT_ONCE = 8
MAX_FILES = 5_000
MAX_BYTES = 64 * 1024**2
MAX_FILE_BYTES = 256 * 1024
"""Of each file its beginning: more would hold the loop for more than some milliseconds."""
TOLD = 5


@dataclass(frozen=True, slots=True)
class SecretScanner:
    """Scans sandboxes as the policy's `snapshot_secrets` says.

    Attributes:
        mode: What is done about findings.
    """

    engine: Engine
    boxes: Boxes
    mode: SecretsMode
    ports: Ports

    async def scan(self, record: SandboxRecord, command: cmd.CommitSnapshot) -> SecretScan | None:
        """Scan, and scrub where that is the mode; None when the mode is not to look.

        Raises:
            PermissionDenied: `snapshot_holds_secrets`, `secret_scan_incomplete`: the mode is to refuse.
            FailedPrecondition: `secrets_not_scrubbed`: tool files are to be emptied and nothing in the box can.
        """
        if self.mode == "off":
            return None
        scan = await self._look(record, command)
        if scan.findings:
            log.info("secrets_found", sandbox_id=record.sandbox_id, count=len(scan.findings), mode=self.mode)
        if self.mode == "refuse":
            _refuse(scan)
        return await self._scrub(record, command, scan) if self.mode == "scrub" else scan

    async def _look(self, record: SandboxRecord, command: cmd.CommitSnapshot) -> SecretScan:
        findings: list[Finding] = []
        file_count, read_bytes, is_complete = 0, 0, True
        try:
            async with asyncio.timeout(MAX_S):
                is_quick = self.mode == "quick"
                changed = [] if is_quick else await self.engine.changed_paths(command.birth_id)
                paths = [*ALWAYS_READ, *(path for path in worth_reading(changed) if path not in ALWAYS_READ)]
                async for path, content in self._contents(record, command, paths[:MAX_FILES]):
                    file_count, read_bytes = file_count + 1, read_bytes + len(content)
                    findings += findings_in(path, content)
                    if read_bytes > MAX_BYTES or len(findings) > MAX_FINDINGS:
                        is_complete = False
                        break
                is_complete = is_complete and len(paths) <= MAX_FILES
        except TimeoutError:
            is_complete = False
        except SandkeeperError as error:
            log.info("secret_scan_cut", sandbox_id=record.sandbox_id, code=error.code)
            is_complete = False
        return SecretScan(
            mode=self.mode,
            findings=tuple(findings[:MAX_FINDINGS]),
            file_count=file_count,
            read_bytes=read_bytes,
            is_complete=is_complete,
        )

    async def _contents(
        self, record: SandboxRecord, command: cmd.CommitSnapshot, paths: list[str]
    ) -> AsyncIterator[tuple[str, bytes]]:
        """Yield the beginnings of those paths that are regular files.

        Raises:
            Unavailable: Nobody answers any more.
        """
        for first in range(0, len(paths), READS_AT_ONCE):
            some = paths[first : first + READS_AT_ONCE]
            contents = await asyncio.gather(*(self._head(record, command, path) for path in some))
            for path, content in zip(some, contents, strict=True):
                if content is not None:
                    yield path, content

    async def _head(self, record: SandboxRecord, command: cmd.CommitSnapshot, path: str) -> bytes | None:
        """Return the beginning of a regular file, or None when there is nothing to read."""
        try:
            if command.was_frozen:
                return await self.engine.read_file(command.birth_id, path, max_bytes=MAX_FILE_BYTES)
            return await self.boxes.read_head(record, path, max_bytes=MAX_FILE_BYTES)
        except Unavailable:
            raise
        except SandkeeperError as error:
            # It went away meanwhile, or is a folder, a device, a link to nothing.
            log.debug("not_scanned", sandbox_id=record.sandbox_id, code=error.code)
            return None

    async def _scrub(
        self, record: SandboxRecord, command: cmd.CommitSnapshot, scan: SecretScan
    ) -> SecretScan:
        """Empty the tool files that were found, in the box itself: the snapshot is what the box then has."""
        tools = {found.path: tool for found in scan.findings if (tool := tool_of(found.path)) is not None}
        if tools and command.was_frozen:
            raise FailedPrecondition(
                f"{len(tools)} tool files hold credentials and a sandbox that stands still cannot empty them",
                code="secrets_not_scrubbed",
                advice="let it run and take the snapshot then",
                details={"paths": sorted(tools)[:TOLD]},
            )
        for path, tool in tools.items():
            await self.boxes.overwrite(record, path, tool.blank)
        return scan.model_copy(update={"scrubbed": tuple(sorted(tools))})


def _refuse(scan: SecretScan) -> None:
    if scan.findings:
        told = ", ".join(f"{found.path} ({found.kind})" for found in scan.findings[:TOLD])
        raise PermissionDenied(
            f"{len(scan.findings)} findings that look like credentials: {told}",
            code="snapshot_holds_secrets",
            advice="remove them from the files, or have the policy's snapshot_secrets changed",
        )
    if not scan.is_complete:
        raise PermissionDenied(
            f"only {scan.file_count} files of {scan.read_bytes} bytes could be scanned for credentials",
            code="secret_scan_incomplete",
            advice="remove what need not be kept, or have the policy's snapshot_secrets changed",
        )
