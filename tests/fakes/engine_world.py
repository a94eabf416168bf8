"""The containers and images of a fake engine, and what each engine call does to them.

Everything here is synchronous: one method is one atomic effect. Time, cancellation, crashes and the network between
caller and engine are in `engine.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from sandkeeper.containers.engine import EngineImage, ListedRuntime, RuntimeSettings
from sandkeeper.core.errors import (
    AlreadyExists,
    DataLoss,
    FailedPrecondition,
    NotFound,
    ResourceExhausted,
    SandkeeperError,
    Unavailable,
)
from sandkeeper.core.ids import BirthId, InstallationId
from sandkeeper.core.observation import RuntimeObservation, RuntimeState
from sandkeeper.core.sizes import Size
from sandkeeper.ports import Ports
from tests.fakes.image_archive import image_id_of, pack_image, unpack_image

EMPTY_IMAGE_BYTES = 1_000_000
FIRST_PID = 1_000_000  # above what a real process can have, so that a mistaken kill hits nothing
KILLED = 137


class FakeBox(Protocol):
    """What runs inside a started fake container, such as a fake boxd. Called by the world, never awaited."""

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...

    def die(self) -> None:
        """End at once: every connection breaks, nothing answers any more."""
        ...


@dataclass(eq=False)
class FakeImage:
    image_id: str
    files: Mapping[str, bytes]
    tags: set[str]
    created_at: datetime
    parent_id: str | None = None
    is_commit_of: InstallationId | None = None
    salt: str = ""

    @property
    def size_bytes(self) -> int:
        return EMPTY_IMAGE_BYTES + sum(map(len, self.files.values()))


@dataclass(eq=False)
class FakeRuntime:
    """A container. `files` is its whole writable view: a commit captures it, a box inside reads and writes it."""

    settings: RuntimeSettings
    files: dict[str, bytes]
    created_at: datetime
    size: Size
    state: RuntimeState = RuntimeState.CREATED
    pid: int | None = None
    exit_code: int | None = None
    oom_killed: bool = False
    log: str = ""
    memory_in_use_bytes: int = 0
    hole_bytes: int = 0
    pending_kill: tuple[int, bool] | None = None
    box: FakeBox | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def birth_id(self) -> BirthId:
        return self.settings.birth_id

    @property
    def is_alive(self) -> bool:
        return self.state in (RuntimeState.RUNNING, RuntimeState.FROZEN)


Boot = Callable[[FakeRuntime], FakeBox | None]


class FakeWorld:
    """All containers and images of one machine.

    Attributes:
        boot: Called at each start of a container; what it returns runs inside until it dies.
        any_image: Every image id that is asked for exists, empty.
        is_disk_full: Creates and commits fail.
        fixed_pid: Pid of every process 1; None gives each start a number of its own.
        cgroup_version: With 1, a kill of a frozen container takes effect at its thaw; with 2 at once.
        is_engine_up: Whether calls are answered (kept by `stop_engine`, `start_engine`).
    """

    def __init__(self, ports: Ports, *, boot: Boot | None = None, any_image: bool = False) -> None:
        self.boot = boot
        self.any_image = any_image
        self.is_disk_full = False
        self.cgroup_version = 1
        self.fixed_pid: int | None = None
        self.is_engine_up = True
        self.engine_starts = 0
        self.runtimes: dict[BirthId, FakeRuntime] = {}
        self.images: dict[str, FakeImage] = {}
        self._ports = ports
        self._next_pid = FIRST_PID

    # ------------------------------------------------------------- what a test does to the machine

    def add_image(
        self, image_id: str, *, files: Mapping[str, bytes] | None = None, tags: Iterable[str] = ()
    ) -> FakeImage:
        image = FakeImage(image_id, dict(files or {}), set(tags), self._ports.clock.now())
        self.images[image_id] = image
        return image

    def kill_container(self, birth_id: BirthId, exit_code: int = KILLED, *, oom: bool = False) -> None:
        """End process 1 as if from outside; of a container that is not alive, nothing."""
        runtime = self.runtimes[birth_id]
        if runtime.state is RuntimeState.FROZEN and self.cgroup_version == 1:
            runtime.pending_kill = (exit_code, oom)
        elif runtime.is_alive:
            self._end(runtime, exit_code, oom=oom)

    def stop_engine(self, *, live_restore: bool = True) -> None:
        """The engine goes away: calls fail, and without live-restore all containers end with it."""
        self.is_engine_up = False
        if not live_restore:
            for runtime in self.runtimes.values():
                if runtime.is_alive:
                    self._end(runtime, KILLED)

    def start_engine(self) -> None:
        """The engine comes back with what it had."""
        self.is_engine_up = True
        self.engine_starts += 1

    def restart_machine(self) -> None:
        """Power goes and comes back: every container has ended, the engine answers again."""
        self.stop_engine(live_restore=False)
        self.start_engine()

    # ------------------------------------------------------------- effects of engine calls

    def create(self, settings: RuntimeSettings) -> None:
        present = self.runtimes.get(settings.birth_id)
        if present is not None:
            if present.settings.installation_id == settings.installation_id:
                return
            raise AlreadyExists(f"create {settings.birth_id}: not ours", code="name_conflict")
        self._need_disk(f"create {settings.birth_id}")
        image = self._find(settings.image_id)
        if image is None:
            if not self.any_image:
                raise DataLoss(f"create {settings.birth_id}: no such image", code="image_missing")
            image = self.add_image(settings.image_id)
        now = self._ports.clock.now()
        self.runtimes[settings.birth_id] = FakeRuntime(settings, dict(image.files), now, settings.size)

    def start(self, birth_id: BirthId) -> None:
        runtime = self.existing(birth_id)
        if runtime.state is RuntimeState.FROZEN:
            raise FailedPrecondition(f"start {birth_id}: it is frozen", code="runtime_frozen")
        if runtime.state is RuntimeState.RUNNING:
            return
        runtime.state, runtime.pid = RuntimeState.RUNNING, self.fixed_pid or self._next_pid
        runtime.exit_code, runtime.oom_killed = None, False
        runtime.ended = asyncio.Event()
        self._next_pid += 1
        runtime.box = self.boot(runtime) if self.boot else None

    def freeze(self, birth_id: BirthId) -> None:
        runtime = self._alive(birth_id, step="freeze")
        if runtime.state is RuntimeState.RUNNING:
            runtime.state = RuntimeState.FROZEN
            if runtime.box:
                runtime.box.freeze()

    def thaw(self, birth_id: BirthId) -> None:
        runtime = self._alive(birth_id, step="thaw")
        if runtime.state is RuntimeState.FROZEN:
            runtime.state = RuntimeState.RUNNING
            if runtime.pending_kill:
                exit_code, oom = runtime.pending_kill
                self._end(runtime, exit_code, oom=oom)
            elif runtime.box:
                runtime.box.thaw()

    def stop(self, birth_id: BirthId) -> None:
        runtime = self.existing(birth_id)
        if runtime.state is RuntimeState.FROZEN:
            self.thaw(birth_id)
        if runtime.is_alive:
            self._end(runtime, 0)

    def remove(self, birth_id: BirthId, *, installation_id: InstallationId) -> None:
        runtime = self.runtimes.get(birth_id)
        if runtime is None or runtime.settings.installation_id != installation_id:
            return
        if runtime.is_alive:
            self._end(runtime, KILLED)
        del self.runtimes[birth_id]
        self._prune(self.images.get(runtime.settings.image_id))

    def update(self, birth_id: BirthId, size: Size) -> None:
        runtime = self.existing(birth_id)
        if runtime.is_alive and runtime.memory_in_use_bytes > size.memory_bytes:
            raise FailedPrecondition(f"update {birth_id}: more is in use", code="size_below_usage")
        runtime.size = size

    def delta_bytes(self, birth_id: BirthId) -> int:
        runtime = self.existing(birth_id)
        below = self.images[runtime.settings.image_id].files
        written = (body for path, body in runtime.files.items() if below.get(path) != body)
        return runtime.hole_bytes + sum(map(len, written))

    def commit(self, birth_id: BirthId, *, tag: str, installation_id: InstallationId) -> str:
        runtime = self.existing(birth_id)
        self._need_disk(f"commit {birth_id}")
        image = self._add_made(runtime.files)
        image_id = image.image_id
        image.parent_id, image.is_commit_of = runtime.settings.image_id, installation_id
        self.tag(image_id, tag)
        return image_id

    def changed_paths(self, birth_id: BirthId) -> list[str]:
        runtime = self.existing(birth_id)
        below = self.images[runtime.settings.image_id].files
        return [path for path, body in runtime.files.items() if below.get(path) != body]

    def read_file(self, birth_id: BirthId, path: str, *, max_bytes: int) -> bytes | None:
        body = self.existing(birth_id).files.get(path)
        return None if body is None else body[:max_bytes]

    def flatten(self, image_id: str, *, tag: str, installation_id: InstallationId) -> str:
        image = self._existing_image(image_id, step="flatten")
        self._need_disk(f"flatten {image_id}")
        flat = self._add_made(image.files)
        flat.is_commit_of = installation_id
        self.tag(flat.image_id, tag)
        return flat.image_id

    def save_image(self, image_id: str) -> bytes:
        image = self._existing_image(image_id, step="save")
        return pack_image(image.files, salt=image.salt)

    def load_image(self, chunks: Iterable[bytes]) -> None:
        salt, files = unpack_image(chunks)
        image_id = image_id_of(files, salt=salt)
        self._need_disk(f"load {image_id}")
        if image_id not in self.images:
            image = self.add_image(image_id, files=files)
            image.salt, image.is_commit_of = salt, InstallationId("loaded")

    def tag(self, image_id: str, tag: str) -> None:
        image = self._find(image_id)
        if image is None:
            raise DataLoss(f"tag {image_id}: no such image", code="image_missing")
        for other in self.images.values():
            other.tags.discard(tag)
        image.tags.add(tag)

    def untag_or_remove_image(self, ref: str) -> None:
        image = self._find(ref)
        if image is None:
            return
        left = image.tags - {ref}
        if ref == image.image_id and len(image.tags) > 1:
            raise FailedPrecondition(f"remove image {ref}: has several references", code="image_in_use")
        is_last = ref == image.image_id or not left
        if is_last and self._is_used(image):
            raise FailedPrecondition(f"remove image {ref}: a container uses it", code="image_in_use")
        image.tags = set() if is_last else left
        self._prune(image)

    # ------------------------------------------------------------- what the engine shows

    def observe(self, birth_id: BirthId) -> RuntimeObservation | None:
        runtime = self.runtimes.get(birth_id)
        if runtime is None:
            return None
        return RuntimeObservation(
            birth_id=birth_id,
            state=runtime.state,
            pid=runtime.pid if runtime.is_alive else None,
            exit_code=runtime.exit_code,
            oom_killed=runtime.oom_killed,
        )

    def list_runtimes(self, installation_id: InstallationId) -> list[ListedRuntime]:
        return [
            ListedRuntime(
                birth_id=runtime.birth_id,
                state=runtime.state,
                exit_code=runtime.exit_code,
                created_at=runtime.created_at,
            )
            for runtime in self.runtimes.values()
            if runtime.settings.installation_id == installation_id
        ]

    def list_images(self, installation_id: InstallationId) -> list[EngineImage]:
        repository = f"sandkeeper-{installation_id}:"
        return [
            self.show(image)
            for image in self.images.values()
            if any(tag.startswith(repository) for tag in image.tags)
            or (not image.tags and image.is_commit_of == installation_id and not self._has_child(image))
        ]

    def find_image(self, ref: str) -> EngineImage | None:
        image = self._find(ref)
        return None if image is None else self.show(image)

    @staticmethod
    def show(image: FakeImage) -> EngineImage:
        return EngineImage(image.image_id, image.size_bytes, tuple(sorted(image.tags)), image.created_at)

    def existing(self, birth_id: BirthId) -> FakeRuntime:
        runtime = self.runtimes.get(birth_id)
        if runtime is None:
            raise NotFound(f"there is no runtime {birth_id}", code="runtime_missing")
        return runtime

    # ------------------------------------------------------------- inside

    def _alive(self, birth_id: BirthId, *, step: str) -> FakeRuntime:
        runtime = self.existing(birth_id)
        if not runtime.is_alive:
            raise FailedPrecondition(f"{step} {birth_id}: {runtime.state}", code="runtime_not_running")
        return runtime

    def _end(self, runtime: FakeRuntime, exit_code: int, *, oom: bool = False) -> None:
        runtime.state, runtime.exit_code, runtime.pid = RuntimeState.EXITED, exit_code, None
        runtime.oom_killed, runtime.pending_kill = oom, None
        box, runtime.box = runtime.box, None
        if box:
            box.die()
        runtime.ended.set()

    def _need_disk(self, step: str) -> None:
        if self.is_disk_full:
            raise ResourceExhausted(f"{step}: no space left on device", code="disk_full")

    def _find(self, ref: str) -> FakeImage | None:
        if ref in self.images:
            return self.images[ref]
        return next((image for image in self.images.values() if ref in image.tags), None)

    def _add_made(self, files: Mapping[str, bytes]) -> FakeImage:
        salt = self._ports.new_token()
        image = self.add_image(image_id_of(files, salt=salt), files=files)
        image.salt = salt
        return image

    def _existing_image(self, image_id: str, *, step: str) -> FakeImage:
        image = self._find(image_id)
        if image is None:
            raise DataLoss(f"{step} {image_id}: no such image", code="image_missing")
        return image

    def _is_used(self, image: FakeImage) -> bool:
        return any(runtime.settings.image_id == image.image_id for runtime in self.runtimes.values())

    def _has_child(self, image: FakeImage) -> bool:
        return any(other.parent_id == image.image_id for other in self.images.values())

    def _prune(self, image: FakeImage | None) -> None:
        """Drop an image that nobody names, stands on or was made from, and then its parents likewise."""
        while image is not None and image.is_commit_of and not image.tags:
            if self._is_used(image) or self._has_child(image):
                return
            del self.images[image.image_id]
            image = self.images.get(image.parent_id or "")


def engine_is_away(step: str, *, is_sent: bool) -> SandkeeperError:
    return Unavailable(
        f"{step}: the container engine does not answer",
        code="engine_unavailable",
        admitted="unknown" if is_sent else "no",
    )
