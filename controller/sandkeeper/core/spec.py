"""What a sandbox was asked to be: fixed at create, but for its size.

Owns the request and the admitted specification. Never checks policy (see `admission`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sandkeeper.core.ids import ClientId, Name, SnapshotId
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


class OnIdle(StrEnum):
    """What happens to an idle sandbox: snapshot and stop, stop with its files kept, pause, or destroy."""

    SNAPSHOT = "snapshot"
    STOP = "stop"
    PAUSE = "pause"
    DESTROY = "destroy"


class TcpReady(BaseModel):
    """Ready when something accepts connections on a port inside."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["tcp"] = "tcp"
    port: Annotated[int, Field(ge=1, le=65_535)]


class HttpReady(BaseModel):
    """Ready when a GET on a port inside is answered with `status`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["http"] = "http"
    port: Annotated[int, Field(ge=1, le=65_535)]
    path: Annotated[str, Field(pattern=r"^/[\x21-\x7e]*$", max_length=2048)] = "/"
    status: Annotated[int, Field(ge=100, le=599)] = 200


class LogReady(BaseModel):
    """Ready when the start command's output has a line that holds `text`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["log"] = "log"
    text: Annotated[str, Field(min_length=1, max_length=1024)]


class CommandReady(BaseModel):
    """Ready when a command inside exits with 0."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["command"] = "command"
    argv: Annotated[tuple[str, ...], Field(min_length=1, max_length=1024)]


Ready = Annotated[TcpReady | HttpReady | LogReady | CommandReady, Field(discriminator="kind")]
"""When a start command counts as ready; without one it does as soon as it runs."""

StartArgv = Annotated[tuple[str, ...], Field(min_length=1, max_length=1024)]

CLIENT_TTL_S = 30.0
"""How long a client may be silent, unless it says otherwise."""
ClientTtl = Annotated[float, Field(ge=1, le=3600, allow_inf_nan=False)]

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
        start: Command started in every new runtime, after a restore too; None starts nothing.
        ready: When the start command counts as ready; a launch is done only then.
        idle_timeout_s: Seconds without activity after which `on_idle` happens; None means never.
        on_idle: What happens to an idle sandbox.
        lifetime_s: Seconds from creation to forced destruction; None means no end.
        labels: Caller's own marks, for listing.
        disk_limit_bytes: What may be written to the root filesystem before the sandbox's processes are stopped;
            watched by boxd, so a brake and no quota. None means no limit.
        has_sudo: Whether programs inside may gain root through set-uid files.
        detached: False when the sandbox ends with the client that made it.
        client_id: That client: when it is not heard for its time, the sandbox is destroyed. None: nobody watches.
        client_ttl_s: The time, unless the client's heartbeats say another one.
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
    start: StartArgv | None = None
    ready: Ready | None = None
    idle_timeout_s: float | None = None
    on_idle: OnIdle = OnIdle.SNAPSHOT
    lifetime_s: float | None = None
    labels: dict[Name, Annotated[str, Field(max_length=256)]] = Field(default_factory=dict)
    disk_limit_bytes: int | None = None
    has_sudo: bool = True
    detached: bool = True
    client_id: ClientId | None = None
    client_ttl_s: float = CLIENT_TTL_S
    start_timeout_s: float = 60.0
