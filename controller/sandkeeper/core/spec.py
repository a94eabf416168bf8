"""What a sandbox was asked to be: fixed at create, but for its size.

Owns the request and the admitted specification. Never checks policy (see `admission`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from sandkeeper.core.ids import Name, SnapshotId
from sandkeeper.core.sizes import Size


class OnLost(StrEnum):
    """What happens when the runtime is lost: rebuild it, stop and report, or wait for a decision."""

    REBUILD = "rebuild"
    STOP = "stop"
    ASK = "ask"


class Keep(StrEnum):
    """What a stop keeps: the container's files, a snapshot, or nothing."""

    FILES = "files"
    SNAPSHOT = "snapshot"
    NOTHING = "nothing"


EnvKey = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
EnvValue = Annotated[str, Field(max_length=32_768, pattern=r"^[^\x00]*$")]


class BootImage(BaseModel):
    """An image a runtime can be started from.

    Attributes:
        image_id: The engine's content id (`sha256:...`): what is really started.
        base_digest: Image id of the catalogue image underneath; equal to `image_id` for a catalogue image.
        snapshot_id: The snapshot this image is, or None for a catalogue image.
        depth: Snapshot layers above the catalogue image.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    image_id: str
    base_digest: str
    snapshot_id: SnapshotId | None = None
    depth: int = 0


class SandboxSpec(BaseModel):
    """An admitted specification.

    Attributes:
        image: Catalogue name it was asked for under.
        boot: Where the first runtime starts from.
        size: Limits of the runtime; `resize` replaces it.
        env: Environment of every process in the sandbox, over the image's own.
        user: Default user inside; None means the image's.
        workdir: Default working directory; None means the image's.
        on_lost: What to do when a runtime is lost.
        lifetime_s: Seconds from creation to forced destruction; None means no end.
        labels: Caller's own marks, for listing.
        detached: False when the sandbox ends with the client that made it.
        start_timeout_s: Bound of one launch, readiness included.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    image: str
    boot: BootImage
    size: Size
    env: dict[EnvKey, EnvValue] = Field(default_factory=dict)
    user: str | None = None
    workdir: str | None = None
    on_lost: OnLost = OnLost.REBUILD
    lifetime_s: float | None = None
    labels: dict[Name, Annotated[str, Field(max_length=256)]] = Field(default_factory=dict)
    detached: bool = True
    start_timeout_s: float = 60.0
