"""Names of things, each a type of its own, and how each is made from a random token.

Owns the spelling of every id. Never makes randomness: tokens come from `sandkeeper.ports`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, NewType

SandboxId = NewType("SandboxId", str)
BirthId = NewType("BirthId", str)
SnapshotId = NewType("SnapshotId", str)
OwnerId = NewType("OwnerId", str)
TenantId = NewType("TenantId", str)
MachineId = NewType("MachineId", str)
InstallationId = NewType("InstallationId", str)
RequestId = NewType("RequestId", str)
ClientId = NewType("ClientId", str)
CommandId = NewType("CommandId", str)
RunId = NewType("RunId", str)

DEFAULT_TENANT = TenantId("default")


@dataclass(frozen=True, slots=True)
class _Matching:
    """A text that matches `pattern`, for pydantic, without importing it here: ids are needed by all, at once."""

    pattern: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.str_schema(pattern=self.pattern)


Name = Annotated[str, _Matching(r"^[a-z0-9]([a-z0-9_.-]{0,61}[a-z0-9])?$")]
"""A name a caller gives: 1-63 of lower-case letters, digits, `_ . -`, with a letter or digit at both ends."""

ClientName = Annotated[ClientId, _Matching(r"^[A-Za-z0-9_.-]{1,64}$")]
"""The id a client gives itself: 1-64 of letters, digits and `_ . -`."""

_SANDBOX_ID = re.compile(r"sb[0-9a-f]{16}")
_RUN_ID = re.compile(r"^[A-Za-z0-9_-]{1,64}$")


def new_sandbox_id(token: str) -> SandboxId:
    """Return the sandbox id made from a fresh token; letters and digits only, so it fits a host label."""
    return SandboxId(f"sb{token}")


def new_birth_id(token: str) -> BirthId:
    """Return the birth id made from a fresh token: container name, host name and label in one."""
    return BirthId(f"sk-{token}")


def new_snapshot_id(token: str) -> SnapshotId:
    """Return the snapshot id made from a fresh token."""
    return SnapshotId(f"sn{token}")


def command_id(sandbox_id: SandboxId, number: int) -> CommandId:
    """Return the id of the sandbox's `number`-th command; the same inputs give the same id for ever."""
    return CommandId(f"{sandbox_id}-{number}")


def pending_image_tag(installation_id: InstallationId, pending: CommandId) -> str:
    """Return the image reference a commit command writes to: a name of its own, given up with the command."""
    return f"sandkeeper-{installation_id}:pending-{pending}"


def flat_image_tag(installation_id: InstallationId, pending: CommandId) -> str:
    """Return the image reference a commit command flattens to: given up with the command."""
    return f"sandkeeper-{installation_id}:{flat_name(pending)}"


def flat_name(pending: CommandId) -> str:
    """Return the name of the container a commit command flattens through; it is never started."""
    return f"flat-{pending}"


def snapshot_image_tag(installation_id: InstallationId, snapshot_id: SnapshotId) -> str:
    """Return the image reference that keeps a committed snapshot alive at the engine."""
    return f"sandkeeper-{installation_id}:{snapshot_id}"


def is_sandbox_id(text: str) -> bool:
    """Return whether `text` has the form of a sandbox id."""
    return _SANDBOX_ID.fullmatch(text) is not None


def is_run_id(text: str) -> bool:
    """Return whether `text` may name a run: 1-64 of letters, digits, `_` and `-`."""
    return _RUN_ID.fullmatch(text) is not None
