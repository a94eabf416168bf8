"""The verbs of the control sockets: name, parameters, and which of them may be repeated.

One dispatch table serves the unix sockets and the Ray actors alike; these are its parameter documents.
Every mutating verb carries a `request_id` whose answer is journaled: a repeat gets the same answer, the same
id with other parameters is `request_id_conflict`.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandkeeper.core.errors import InvalidArgument
from sandkeeper.core.ids import ClientName, Name, OwnerId, RequestId, SandboxId, SnapshotId, TenantId
from sandkeeper.core.record import Phase
from sandkeeper.core.sizes import Size
from sandkeeper.core.spec import CLIENT_TTL_S, ClientTtl, Keep, SandboxSpec

MAX_WAIT_S = 300.0


M = TypeVar("M", bound=BaseModel)


class Params(BaseModel):
    """Base of all parameter documents: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def fingerprint(self) -> str:
        """Return the hash of the parameters without the request id; equal parameters, equal hash."""
        return fingerprint_of(self)


def fingerprint_of(params: BaseModel) -> str:
    """Return the hash of a parameter document without its request id; equal parameters, equal hash."""
    text = params.model_dump_json(exclude={"request_id"})
    return hashlib.sha256(text.encode()).hexdigest()


def invalid_parameters(error: ValidationError, *, verb: str) -> InvalidArgument:
    """Turn a validation error into ours: the first field and its problem, without the value."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or "parameters"
    is_unknown = first["type"] == "extra_forbidden"
    where = f"{verb}: {field}" if verb else field
    return InvalidArgument(
        f"{where}: {first['msg']}",
        code="invalid_parameters",
        advice="if the client is newer than the running `up`, end that and start it again"
        if is_unknown
        else "",
        details={"field": field},
    )


def checked(kind: type[M], *, verb: str = "", **fields: Any) -> M:
    """Return the parameters of a verb.

    Raises:
        InvalidArgument: `invalid_parameters`, naming the field; nothing was sent.
    """
    try:
        return kind(**fields)
    except ValidationError as error:
        raise invalid_parameters(error, verb=verb) from error


class Nothing(Params):
    """No parameters."""


class OfSandbox(Params):
    """A read about one sandbox."""

    sandbox_id: SandboxId


class ChangeSandbox(OfSandbox):
    """A mutating verb on one sandbox without parameters of its own: start, pause, resume."""

    request_id: RequestId


class DestroySandbox(ChangeSandbox):
    """Destroy for good; `client_gone` is the directory's reason when a client's lease has run out."""

    reason: Literal["requested", "client_gone"] = "requested"


class StopSandbox(ChangeSandbox):
    """Stop, keeping `keep`."""

    keep: Keep = Keep.SNAPSHOT


class ResizeSandbox(ChangeSandbox):
    """Change the limits."""

    size: Size


class TakeSnapshot(ChangeSandbox):
    """Take a snapshot; `keep_s` None means the policy's default."""

    name: Name | None = None
    keep_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class ReadEvents(Params):
    """Read the journal after a cursor, waiting up to `wait_s` for something new."""

    sandbox_id: SandboxId | None = None
    after: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int, Field(ge=1, le=1000)] = 200
    wait_s: Annotated[float, Field(ge=0, le=MAX_WAIT_S)] = 0.0


class FindSandbox(Params):
    """Where a sandbox lives, by id or by name; exactly one is given."""

    sandbox_id: SandboxId | None = None
    name: str | None = None


class ListSandboxes(Params):
    """Filter of a listing; None takes all but destroyed ones."""

    phases: tuple[Phase, ...] | None = None
    labels: dict[str, str] = Field(default_factory=dict)


class Heartbeat(Params):
    """A client says that it lives and will be heard again within `ttl_s`."""

    client_id: ClientName
    ttl_s: ClientTtl = CLIENT_TTL_S


class OfSnapshot(Params):
    """A read about one snapshot."""

    snapshot_id: SnapshotId


class DeleteSnapshot(OfSnapshot):
    """Delete a snapshot; refused while something uses it."""

    request_id: RequestId


class AdoptSpec(Params):
    """The directory's hand-over of an admitted create to the owner it chose."""

    request_id: RequestId
    request_fingerprint: str
    sandbox_id: SandboxId
    tenant_id: TenantId
    name: str | None = None
    spec: SandboxSpec


class Location(BaseModel):
    """Where a sandbox's owner answers."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    sandbox_id: SandboxId
    owner_id: OwnerId
    control_path: str


class OwnerStatus(BaseModel):
    """One owner as the directory knows it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    owner_id: OwnerId
    epoch: int
    pid: int | None
    control_path: str
    sandbox_count: int


class Status(BaseModel):
    """The whole installation on this machine."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    installation_id: str
    machine_id: str
    directory_pid: int
    owners: tuple[OwnerStatus, ...]
    images: tuple[str, ...]
    engine: str
    sandbox_count: int


DIRECTORY_VERBS = (
    "create",
    "get_or_create",
    "heartbeat",
    "find",
    "list",
    "snapshots",
    "snapshot",
    "delete_snapshot",
    "pin_snapshot",
    "unpin_snapshot",
    "gc",
    "export_snapshot",
    "import_snapshot",
    "status",
    "sweep",
    "enlist",
)
OWNER_VERBS = (
    "adopt",
    "describe",
    "start",
    "pause",
    "resume",
    "stop",
    "destroy",
    "resize",
    "take_snapshot",
    "lease",
    "events",
    "ping",
    "state_get",
    "state_put",
    "state_delete",
    "state_list",
    "alarm_set",
    "alarm_cancel",
    "alarm_list",
)
