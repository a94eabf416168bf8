"""What a caller may choose: policy bounds every create from the first one on.

Pure: facts about the machine, usage, image and snapshot come in, an admitted `SandboxSpec` or a typed
refusal comes out. A refusal names its rule and creates nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from sandkeeper.core.errors import InvalidArgument, NotFound, PermissionDenied, ResourceExhausted
from sandkeeper.core.findings import SecretsMode
from sandkeeper.core.ids import ClientName, Name, RequestId, SnapshotId, is_sandbox_id
from sandkeeper.core.record import SnapshotRecord
from sandkeeper.core.sizes import NAMED_SIZES, Size
from sandkeeper.core.spec import (
    CLIENT_TTL_S,
    BootImage,
    ClientTtl,
    EnvKey,
    EnvValue,
    OnIdle,
    OnLost,
    Ready,
    SandboxSpec,
    StartArgv,
)

MAX_ENV_BYTES = 131_072
MAX_SECONDS = 10 * 365 * 86_400
IDLE_TIMEOUT_S = 600.0


class Policy(BaseModel):
    """Bounds for one tenant.

    Attributes:
        images: Catalogue names that may be asked for.
        images_without_sudo: Catalogue names whose sandboxes run with no-new-privileges.
        default_image: Taken when neither image nor snapshot is given.
        sizes: Named sizes that may be asked for.
        max_custom_vcpu: Upper bound of a custom size.
        max_custom_memory_mib: Upper bound of a custom size.
        cpu_overcommit: Whether a size may have more vCPU than the machine.
        memory_overcommit: Sum of memory limits allowed, as a multiple of the machine's memory.
        max_sandboxes: Sandboxes that exist at once.
        max_lifetime_s: Longest lifetime; None allows endless ones.
        disk_limit_bytes: What a sandbox may write to its root filesystem; None means no limit.
        max_snapshot_bytes: Largest writable layer a snapshot may hold, apparent size.
        snapshot_keep_s: How long a snapshot is kept unless it is restored or the caller says otherwise.
        snapshot_secrets: What a snapshot does about files that seem to hold credentials.
        flatten_at_depth: Layers above the catalogue image at which a snapshot is made into one layer; engines
            take about 128, those of the catalogue image included.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    images: tuple[str, ...] = ("base", "slim", "build")
    images_without_sudo: tuple[str, ...] = ()
    default_image: str = "base"
    sizes: tuple[str, ...] = tuple(NAMED_SIZES)
    max_custom_vcpu: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 8.0
    max_custom_memory_mib: Annotated[int, Field(gt=0)] = 8192
    cpu_overcommit: bool = False
    memory_overcommit: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 4.0
    max_sandboxes: Annotated[int, Field(ge=0)] = 1000
    max_lifetime_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    disk_limit_bytes: Annotated[int, Field(ge=1024**2)] | None = 10 * 1024**3
    max_snapshot_bytes: Annotated[int, Field(gt=0)] = 10 * 1024**3
    snapshot_keep_s: float = 30 * 86_400.0
    snapshot_secrets: SecretsMode = "quick"
    flatten_at_depth: Annotated[int, Field(ge=2, le=110)] = 100


class CreateRequest(BaseModel):
    """What a caller asks for at create. `size` is already parsed (see `sizes.parse_size`)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    request_id: RequestId
    image: str | None = None
    snapshot: SnapshotId | None = None
    size: Size | None = None
    name: Name | None = None
    env: dict[EnvKey, EnvValue] = Field(default_factory=dict)
    user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")] | None = None
    workdir: Annotated[str, Field(pattern=r"^/[^\x00]{0,4095}$")] | None = None
    on_lost: OnLost = OnLost.REBUILD
    start: StartArgv | None = None
    ready: Ready | None = None
    idle_timeout_s: Annotated[float, Field(ge=1, le=MAX_SECONDS, allow_inf_nan=False)] | None = IDLE_TIMEOUT_S
    on_idle: OnIdle = OnIdle.SNAPSHOT
    lifetime_s: Annotated[float, Field(gt=0, le=MAX_SECONDS, allow_inf_nan=False)] | None = None
    labels: dict[Name, Annotated[str, Field(max_length=256)]] = Field(default_factory=dict, max_length=64)
    detached: bool = True
    client_id: ClientName | None = None
    client_ttl_s: ClientTtl = CLIENT_TTL_S


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What the machine has: cores, and memory in bytes."""

    cpu_count: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What exists already: sandboxes not destroyed, and the sum of their memory limits in MiB."""

    sandbox_count: int
    memory_mib: int


class CatalogueImage(BaseModel):
    """An image of the catalogue, pinned by the engine's content id.

    Attributes:
        name: What callers ask for.
        image_id: `sha256:...` of the image.
        env: The image's own environment.
        user: The image's USER, or empty.
        workdir: The image's WORKDIR, or empty.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    image_id: str
    env: dict[str, str] = Field(default_factory=dict)
    user: str = ""
    workdir: str = ""


def admit(
    request: CreateRequest,
    *,
    policy: Policy,
    machine: MachineFacts,
    usage: Usage,
    catalogue: dict[str, CatalogueImage],
    snapshot: SnapshotRecord | None,
    snapshot_image: str | None,
) -> SandboxSpec:
    """Turn a request into an admitted specification.

    Args:
        request: The caller's wishes.
        policy: The tenant's bounds.
        machine: Cores and memory.
        usage: What exists already.
        catalogue: Images by name.
        snapshot: The snapshot asked for, already looked up; None when none was asked for.
        snapshot_image: Catalogue name the snapshot's sandbox was created under.

    Raises:
        InvalidArgument, NotFound, PermissionDenied, ResourceExhausted: naming the rule; nothing was created.
    """
    size = request.size or NAMED_SIZES["basic"]
    check_size(size, policy=policy, machine=machine)
    _check_env(request.env)
    _check_lifetime(request.lifetime_s, policy)
    _check_start(request)
    _check_name(request.name)
    image, boot = _choose_image(
        request, policy=policy, catalogue=catalogue, snapshot=snapshot, snapshot_image=snapshot_image
    )
    _check_usage(size, policy=policy, machine=machine, usage=usage)
    return SandboxSpec(
        image=image.name,
        boot=boot,
        size=size,
        env=request.env,
        user=request.user or image.user or None,
        workdir=request.workdir or image.workdir or None,
        on_lost=request.on_lost,
        start=request.start,
        ready=request.ready,
        idle_timeout_s=request.idle_timeout_s,
        on_idle=request.on_idle,
        lifetime_s=request.lifetime_s,
        labels=request.labels,
        disk_limit_bytes=policy.disk_limit_bytes,
        has_sudo=image.name not in policy.images_without_sudo,
        detached=request.detached,
        client_id=None if request.detached else request.client_id,
        client_ttl_s=request.client_ttl_s,
    )


def check_size(size: Size, *, policy: Policy, machine: MachineFacts) -> None:
    """Refuse a size beyond policy or machine.

    Raises:
        PermissionDenied: `size_not_allowed`.
        InvalidArgument: `size_exceeds_machine`.
    """
    if size.name != "custom" and size.name not in policy.sizes:
        raise _denied("size_not_allowed", f"policy does not allow size {size.name!r}", rule="sizes")
    if size.name == "custom" and size.vcpu > policy.max_custom_vcpu:
        raise _denied(
            "size_not_allowed",
            f"{size.vcpu} vCPU is above policy's {policy.max_custom_vcpu}",
            rule="max_custom_vcpu",
        )
    if size.name == "custom" and size.memory_mib > policy.max_custom_memory_mib:
        raise _denied(
            "size_not_allowed",
            f"{size.memory_mib} MiB is above policy's {policy.max_custom_memory_mib}",
            rule="max_custom_memory_mib",
        )
    if size.vcpu > machine.cpu_count and not policy.cpu_overcommit:
        raise InvalidArgument(
            f"{size.vcpu} vCPU exceed the machine's {machine.cpu_count}",
            code="size_exceeds_machine",
            advice="ask for less, or allow cpu_overcommit in the policy",
            details={"field": "size.vcpu"},
        )
    if size.memory_bytes > machine.memory_bytes:
        raise InvalidArgument(
            f"{size.memory_mib} MiB exceed the machine's {machine.memory_bytes // 1024**2}",
            code="size_exceeds_machine",
            advice="ask for less",
            details={"field": "size.memory_mib"},
        )


def _choose_image(
    request: CreateRequest,
    *,
    policy: Policy,
    catalogue: dict[str, CatalogueImage],
    snapshot: SnapshotRecord | None,
    snapshot_image: str | None,
) -> tuple[CatalogueImage, BootImage]:
    if request.snapshot is None:
        image = _find_image(request.image or policy.default_image, policy=policy, catalogue=catalogue)
        return image, BootImage(image_id=image.image_id, base_digest=image.image_id)
    if snapshot is None or snapshot_image is None:
        raise NotFound(
            f"there is no snapshot {request.snapshot}",
            code="snapshot_not_found",
            advice="list snapshots to see which exist",
        )
    image = _find_image(request.image or snapshot_image, policy=policy, catalogue=catalogue)
    if image.name != snapshot_image or image.image_id != snapshot.boot.base_digest:
        raise InvalidArgument(
            f"snapshot {snapshot.snapshot_id} was taken on {snapshot_image} at {snapshot.boot.base_digest}, "
            f"not on {image.name} at {image.image_id}",
            code="snapshot_image_mismatch",
            advice="leave image out, or pick a snapshot of that image",
            details={"base_digest": snapshot.boot.base_digest},
        )
    return image, snapshot.boot


def _find_image(name: str, *, policy: Policy, catalogue: dict[str, CatalogueImage]) -> CatalogueImage:
    if name not in policy.images:
        raise _denied(
            "image_not_allowed", f"image {name[:128]!r} is not in the policy's catalogue", rule="images"
        )
    image = catalogue.get(name)
    if image is None:
        raise NotFound(
            f"image {name!r} is allowed but not present at the engine",
            code="image_not_present",
            advice=f"run `sandkeeper images build {name}`",
        )
    return image


def _check_env(env: dict[str, str]) -> None:
    total = sum(len(key) + len(value.encode()) + 2 for key, value in env.items())
    if total > MAX_ENV_BYTES:
        raise InvalidArgument(
            f"env holds {total} bytes, more than {MAX_ENV_BYTES}",
            code="env_too_large",
            advice="put large values into files",
            details={"field": "env"},
        )


def _check_lifetime(lifetime_s: float | None, policy: Policy) -> None:
    limit = policy.max_lifetime_s
    if limit is not None and (lifetime_s is None or lifetime_s > limit):
        raise _denied("lifetime_not_allowed", f"policy bounds lifetimes to {limit} s", rule="max_lifetime_s")


def _check_name(name: str | None) -> None:
    if name is not None and is_sandbox_id(name):
        raise InvalidArgument(
            f"{name} has the form of a sandbox's id, so it cannot be a name",
            code="name_is_id",
            advice="choose another name",
            details={"field": "name"},
        )


def _check_start(request: CreateRequest) -> None:
    if request.ready is not None and request.start is None:
        raise InvalidArgument(
            "ready says when a start command is ready, and there is no start command",
            code="ready_without_start",
            advice="give start, or leave ready out",
            details={"field": "ready"},
        )


def _check_usage(size: Size, *, policy: Policy, machine: MachineFacts, usage: Usage) -> None:
    if usage.sandbox_count >= policy.max_sandboxes:
        raise ResourceExhausted(
            f"{usage.sandbox_count} sandboxes exist, policy allows {policy.max_sandboxes}",
            code="quota_sandboxes",
            advice="destroy some first",
            details={"rule": "max_sandboxes"},
        )
    check_memory(size.memory_mib, policy=policy, machine=machine, usage=usage)


def check_memory(memory_mib: int, *, policy: Policy, machine: MachineFacts, usage: Usage) -> None:
    """Refuse a memory limit for which the machine has no room beside `usage`.

    Raises:
        ResourceExhausted: `machine_memory_full`.
    """
    limit_mib = int(policy.memory_overcommit * machine.memory_bytes / 1024**2)
    if usage.memory_mib + memory_mib > limit_mib:
        raise ResourceExhausted(
            f"memory limits would sum to {usage.memory_mib + memory_mib} MiB, {limit_mib} are allowed",
            code="machine_memory_full",
            advice="destroy some sandboxes, ask for less, or raise memory_overcommit",
            retry_after_s=30,
            details={"rule": "memory_overcommit"},
        )


def _denied(code: str, message: str, *, rule: str) -> PermissionDenied:
    details: dict[str, Any] = {"rule": rule}
    return PermissionDenied(
        message, code=code, advice="ask for what the policy allows, or have it changed", details=details
    )
