"""What the rest of Sandkeeper asks of a container engine, in its own words.

Owns the Protocol `Engine` and the values that cross it. Holds no implementation: `docker_engine` is the real one,
and every implementation passes `tests/conformance/test_engine.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from sandkeeper.core.ids import BirthId, InstallationId
from sandkeeper.core.observation import RuntimeObservation
from sandkeeper.core.sizes import Size

OOM_SCORE_ADJ = 300
"""Runtimes go before owners (-500) and the rest of the machine (0) when the machine's memory runs out."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine says about itself.

    Attributes:
        server_version: Its version text.
        storage_driver: Name of the driver that holds layers.
        cgroup_version: 1 or 2.
        has_disk_quota: Whether a runtime's writable layer can be given a size limit.
        root_dir: Folder of the engine's state, on the engine's machine.
        ncpu: Cores the engine sees.
        memory_bytes: Memory the engine sees.
    """

    server_version: str
    storage_driver: str
    cgroup_version: int
    has_disk_quota: bool
    root_dir: str
    ncpu: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class EngineImage:
    """One image as the engine shows it.

    Attributes:
        image_id: Content id, `sha256:...`.
        size_bytes: Size with all layers below.
        tags: References it is known by; empty for one that has lost its last.
        created_at: When it was made.
    """

    image_id: str
    size_bytes: int
    tags: tuple[str, ...]
    created_at: datetime


class ListedRuntime(RuntimeObservation):
    """A container as the engine's listing shows it: without pid and without the memory killer's word.

    Attributes:
        created_at: When the engine made it.
    """

    created_at: datetime


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """All that is fixed when a runtime is created.

    Attributes:
        birth_id: Container name, host name and label.
        installation_id: Whose container it is, as a label.
        image_id: What it is started from.
        size: Its limits.
        boxd_dir: Host folder with the boxd binary, mounted read-only at `/.sandkeeper`.
        run_dir: Host folder `r/<birth_id>`, mounted read-only at `/run/sandkeeper`. Its last part must be the birth
            id: `wait_exit` tells the container's process by it.
        has_sudo: Whether programs inside may gain root through set-uid files.
        oom_score_adj: How early the kernel picks its processes when memory runs out.
    """

    birth_id: BirthId
    installation_id: InstallationId
    image_id: str
    size: Size
    boxd_dir: str
    run_dir: str
    has_sudo: bool = True
    oom_score_adj: int = OOM_SCORE_ADJ


class Engine(Protocol):
    """A container engine, seen by one installation.

    Every verb may be repeated: names make them idempotent. A call that was sent goes on when its caller is cancelled:
    the cancelled caller waits for its answer, then raises the cancellation. Any verb may raise:

        Unavailable: `engine_unavailable`; `admitted` is "no" when nothing was sent, else "unknown".
        ResourceExhausted: `disk_full`.
        Internal: `engine_error`, with the engine's own message.
    """

    async def facts(self) -> EngineFacts:
        """Return what the engine says about itself."""
        ...

    async def create(self, settings: RuntimeSettings) -> None:
        """Make the container, not started. One of that birth id that is already there is success.

        Raises:
            DataLoss: `image_missing`.
            AlreadyExists: `name_conflict`: a container of that name is not ours.
        """
        ...

    async def start(self, birth_id: BirthId) -> None:
        """Start process 1. Already running is success.

        Raises:
            NotFound: `runtime_missing`.
            FailedPrecondition: `runtime_frozen`.
        """
        ...

    async def inspect(self, birth_id: BirthId) -> RuntimeObservation | None:
        """Return what is seen of the container, or None when there is none of ours by that name."""
        ...

    async def freeze(self, birth_id: BirthId) -> None:
        """Stop the scheduling of every process. Already frozen is success.

        Raises:
            NotFound: `runtime_missing`.
            FailedPrecondition: `runtime_not_running`.
        """
        ...

    async def thaw(self, birth_id: BirthId) -> None:
        """Undo `freeze`. Already running is success.

        Raises:
            NotFound: `runtime_missing`.
            FailedPrecondition: `runtime_not_running`.
        """
        ...

    async def stop(self, birth_id: BirthId, *, grace_s: float) -> None:
        """End process 1: SIGTERM, after `grace_s` (rounded up to whole seconds) SIGKILL. A frozen one is thawed first.

        Not running is success.

        Raises:
            NotFound: `runtime_missing`.
        """
        ...

    async def remove(self, birth_id: BirthId) -> None:
        """Kill and remove the container with its writable layer. Absent is success."""
        ...

    async def update(self, birth_id: BirthId, size: Size) -> None:
        """Change the limits of a container in any state, memory and swap in one step.

        Raises:
            NotFound: `runtime_missing`.
            FailedPrecondition: `size_below_usage`: more memory is in use than the new limit allows.
        """
        ...

    async def delta_bytes(self, birth_id: BirthId) -> int:
        """Return the apparent size of what the container has written (holes count as written).

        Raises:
            NotFound: `runtime_missing`.
        """
        ...

    async def commit(self, birth_id: BirthId, *, tag: str) -> str:
        """Write the container's root filesystem into a new image known as `tag`, and return its image id.

        Does not freeze: that is the caller's part. The image keeps the configuration of the image the container came
        from; nothing of the container's own (labels, environment, host name) goes into it. A repeat makes a new image
        and takes the tag from the old one, which is then the reaper's. Not durable until `sync`.

        Raises:
            NotFound: `runtime_missing`.
        """
        ...

    async def changed_paths(self, birth_id: BirthId) -> list[str]:
        """Return the paths added or changed since the container's image, folders among them.

        Raises:
            NotFound: `runtime_missing`.
        """
        ...

    async def read_file(self, birth_id: BirthId, path: str, *, max_bytes: int) -> bytes | None:
        """Return the beginning of a file of a container that stands still; None for what is no regular file.

        Links are followed inside the container only.
        """
        ...

    async def flatten(self, image_id: str, *, name: str, tag: str) -> str:
        """Write the image's tree as one layer into a new image known as `tag`, and return its image id.

        The tree is compared by hash before the image counts; its configuration is the old one's. A container `name`,
        never started, is used on the way and removed. A cancelled call ends soon. Not durable until `sync`.

        Raises:
            DataLoss: `image_missing`, or `flatten_mismatch`: the trees differ.
        """
        ...

    async def save_image(self, image_id: str, *, sink: Callable[[bytes], object]) -> None:
        """Give an archive of the image, without any reference in it, to `sink`, piece by piece, on another thread.

        Memory stays flat. A cancelled call ends soon, and `sink` is not called after it has ended.

        Raises:
            DataLoss: `image_missing`.
        """
        ...

    async def load_image(self, chunks: Iterable[bytes]) -> None:
        """Load an archive made by `save_image`; `chunks` is read on another thread.

        Raises:
            DataLoss: `archive_refused`.
        """
        ...

    async def image(self, ref: str) -> EngineImage | None:
        """Return the image by id or reference, or None."""
        ...

    async def tag(self, image_id: str, tag: str) -> None:
        """Give an image one more reference; taken away from another image that has it.

        Raises:
            DataLoss: `image_missing`.
        """
        ...

    async def untag_or_remove_image(self, ref: str) -> None:
        """Take a reference away; with the last one the image goes, and what of its parents nobody else names.

        Absent is success.

        Raises:
            FailedPrecondition: `image_in_use`: a container stands on its last reference.
        """
        ...

    async def sync(self) -> None:
        """Make images written so far survive a power loss, where the engine's folder is on this machine.

        Raises:
            DataLoss: `sync_failed`.
        """
        ...

    async def list_runtimes(self) -> list[ListedRuntime]:
        """Return all containers of this installation, in any state."""
        ...

    async def list_images(self) -> list[EngineImage]:
        """Return the images of this installation's repository, and those of its commits that have lost all tags."""
        ...

    async def wait_exit(self, birth_id: BirthId, pid: int) -> None:
        """Return when the container's process 1, of host pid `pid`, is gone; at once if it is gone already.

        Works while the engine is down. A frozen process is not gone.
        """
        ...

    async def output_tail(self, birth_id: BirthId, *, max_bytes: int) -> str:
        """Return the end of what process 1 wrote to its standard output and error; empty when there is no container."""
        ...

    async def close(self) -> None:
        """Let go of connections and threads. Calls still running end on their own; new ones are refused."""
        ...
