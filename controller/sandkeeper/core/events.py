"""What has happened: the input of `lifecycle.step` and the lines of the journal.

Requests come from callers, replies from performed commands (matched by `command_id`), observations from the
watcher and from recovery (matched by `generation`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sandkeeper.core.findings import SecretScan
from sandkeeper.core.ids import CommandId, SnapshotId
from sandkeeper.core.record import RequestRef
from sandkeeper.core.sizes import Size
from sandkeeper.core.spec import Keep


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Request(_Event):
    request: RequestRef | None = None


class StartRequested(_Request):
    """Someone wants it running."""

    kind: Literal["start_requested"] = "start_requested"


class PauseRequested(_Request):
    """Someone wants its processes frozen, or its idleness does (`reason` is then `idle`)."""

    kind: Literal["pause_requested"] = "pause_requested"
    reason: str = "requested"


class ResumeRequested(_Request):
    """Someone wants its frozen processes to go on."""

    kind: Literal["resume_requested"] = "resume_requested"


class SnapshotRequested(_Request):
    """Someone wants a snapshot."""

    kind: Literal["snapshot_requested"] = "snapshot_requested"
    snapshot_id: SnapshotId
    name: str | None = None
    keep_s: float | None = None


class StopRequested(_Request):
    """Someone wants it stopped, keeping `keep`, or its idleness does (`reason` is then `idle`)."""

    kind: Literal["stop_requested"] = "stop_requested"
    reason: str = "requested"
    keep: Keep
    snapshot_id: SnapshotId | None = None


class DestroyRequested(_Request):
    """Someone, or its lifetime, wants it gone for good."""

    kind: Literal["destroy_requested"] = "destroy_requested"
    reason: str = "requested"


class ResizeRequested(_Request):
    """Someone wants other limits."""

    kind: Literal["resize_requested"] = "resize_requested"
    size: Size


class _Reply(_Event):
    command_id: CommandId


class RuntimeStarted(_Reply):
    """The launched runtime answered and is ready."""

    kind: Literal["runtime_started"] = "runtime_started"


class LaunchFailed(_Reply):
    """The launch did not come to a ready runtime."""

    kind: Literal["launch_failed"] = "launch_failed"
    reason: str
    message: str
    exit_code: int | None = None
    oom_killed: bool = False
    output_tail: str = ""
    is_final: bool = False


class RuntimeFrozen(_Reply):
    """Every process stands still."""

    kind: Literal["runtime_frozen"] = "runtime_frozen"


class RuntimeThawed(_Reply):
    """The processes go on."""

    kind: Literal["runtime_thawed"] = "runtime_thawed"


class RuntimeResized(_Reply):
    """The new limits are in force."""

    kind: Literal["runtime_resized"] = "runtime_resized"


class SnapshotCommitted(_Reply):
    """The image is written, tagged and durable."""

    kind: Literal["snapshot_committed"] = "snapshot_committed"
    image_id: str
    size_bytes: int
    delta_bytes: int
    freeze_ms: float
    is_flattened: bool = False
    metadata_cut: str | None = None
    secrets: SecretScan | None = None


class SnapshotFailed(_Reply):
    """There is no snapshot; the runtime is as it was before."""

    kind: Literal["snapshot_failed"] = "snapshot_failed"
    category: str = "Aborted"
    code: str
    message: str
    advice: str = ""


class RuntimeStopped(_Reply):
    """The container has stopped and is kept."""

    kind: Literal["runtime_stopped"] = "runtime_stopped"


class RuntimeRemoved(_Reply):
    """Nothing is left of the container."""

    kind: Literal["runtime_removed"] = "runtime_removed"


class CommandFailed(_Reply):
    """A freeze, thaw, update or stop could not be done; the runtime is as it was before."""

    kind: Literal["command_failed"] = "command_failed"
    category: str = "Unavailable"
    code: str
    message: str
    advice: str = ""


class RuntimeLost(_Event):
    """The runtime of `generation` is gone without having been asked to go."""

    kind: Literal["runtime_lost"] = "runtime_lost"
    generation: int
    reason: str
    message: str = ""
    exit_code: int | None = None
    oom_killed: bool = False
    output_tail: str = ""
    is_container_there: bool = False


class HealthChanged(_Event):
    """A runtime that answers was found ailing, or well again (`code` None)."""

    kind: Literal["health_changed"] = "health_changed"
    generation: int
    code: str | None = None
    message: str = ""


Request = (
    StartRequested
    | PauseRequested
    | ResumeRequested
    | SnapshotRequested
    | StopRequested
    | DestroyRequested
    | ResizeRequested
)
Reply = (
    RuntimeStarted
    | LaunchFailed
    | RuntimeFrozen
    | RuntimeThawed
    | RuntimeResized
    | SnapshotCommitted
    | SnapshotFailed
    | RuntimeStopped
    | RuntimeRemoved
    | CommandFailed
)
Event = Annotated[Request | Reply | RuntimeLost | HealthChanged, Field(discriminator="kind")]
REQUESTS = (
    StartRequested,
    PauseRequested,
    ResumeRequested,
    SnapshotRequested,
    StopRequested,
    DestroyRequested,
    ResizeRequested,
)
REPLIES = (
    RuntimeStarted,
    LaunchFailed,
    RuntimeFrozen,
    RuntimeThawed,
    RuntimeResized,
    SnapshotCommitted,
    SnapshotFailed,
    RuntimeStopped,
    RuntimeRemoved,
    CommandFailed,
)
OBSERVATIONS = (RuntimeLost, HealthChanged)
EVENTS = (*REQUESTS, *REPLIES, *OBSERVATIONS)
