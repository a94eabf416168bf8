"""What is to be done to the engine and the box: the output of `lifecycle.step`.

A command is stored in the record before it is performed, carries all it needs, is idempotent through its
names, and ends in exactly one reply event with its `command_id`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sandkeeper.core.ids import BirthId, CommandId, SnapshotId
from sandkeeper.core.sizes import Size
from sandkeeper.core.spec import BootImage


class _Command(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    command_id: CommandId
    birth_id: BirthId
    generation: int


class LaunchRuntime(_Command):
    """Create and start a container from `boot`, hand over the listener, say go, wait until ready.

    Attributes:
        delay_s: Back-off before the launch, for rebuilds in a row.
    """

    kind: Literal["launch_runtime"] = "launch_runtime"
    boot: BootImage
    size: Size
    delay_s: float = 0.0


class StartKept(_Command):
    """Start the kept container again, as a new generation with the same files."""

    kind: Literal["start_kept"] = "start_kept"
    size: Size


class FreezeRuntime(_Command):
    """Freeze every process of the runtime."""

    kind: Literal["freeze_runtime"] = "freeze_runtime"


class ThawRuntime(_Command):
    """Let the frozen processes go on."""

    kind: Literal["thaw_runtime"] = "thaw_runtime"


class UpdateRuntime(_Command):
    """Change the limits of the live runtime."""

    kind: Literal["update_runtime"] = "update_runtime"
    size: Size


class CommitSnapshot(_Command):
    """Commit the root filesystem under a pending name, tag it, make it durable.

    Attributes:
        was_frozen: The runtime was frozen (or stopped) before and stays so.
    """

    kind: Literal["commit_snapshot"] = "commit_snapshot"
    snapshot_id: SnapshotId
    name: str | None = None
    keep_s: float | None = None
    was_frozen: bool = False


class StopRuntime(_Command):
    """Stop the container and keep it, with its files."""

    kind: Literal["stop_runtime"] = "stop_runtime"


class RemoveRuntime(_Command):
    """Remove the container and its folders; absent is success."""

    kind: Literal["remove_runtime"] = "remove_runtime"


Command = Annotated[
    LaunchRuntime
    | StartKept
    | FreezeRuntime
    | ThawRuntime
    | UpdateRuntime
    | CommitSnapshot
    | StopRuntime
    | RemoveRuntime,
    Field(discriminator="kind"),
]
