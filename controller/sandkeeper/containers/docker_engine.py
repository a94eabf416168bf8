"""The real engine: docker's API behind the Protocol `Engine`.

Owns which call takes which client and which lane of the thread door, and that every foreign error is mapped. What a
container looks like is `settings`; what a document means is `docker_views`; what takes more than one request is
`docker_calls`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from sandkeeper.containers import docker_calls as calls
from sandkeeper.containers import docker_views as views
from sandkeeper.containers import image_streams
from sandkeeper.containers.docker_connection import DockerApi, DockerConnection
from sandkeeper.containers.engine import EngineFacts, EngineImage, ListedRuntime, RuntimeSettings
from sandkeeper.containers.errors import FOREIGN_ERRORS, mapped
from sandkeeper.containers.process_exit import wait_for_exit
from sandkeeper.containers.settings import INSTALLATION_LABEL, limits
from sandkeeper.containers.thread_door import ThreadDoor
from sandkeeper.core.errors import FailedPrecondition, Internal, NotFound, SandkeeperError, Unavailable
from sandkeeper.core.ids import BirthId, InstallationId
from sandkeeper.core.observation import RuntimeObservation, RuntimeState
from sandkeeper.core.sizes import Size
from sandkeeper.ports import Ports

Answer = TypeVar("Answer")

RETRY_EVERY_S = 0.05
RETRIES = 600
TAIL_LINES = 400


class DockerEngine:
    """One docker engine, as one installation sees it. See `Engine` for what each verb promises.

    Attributes:
        url: Its address, as the docker library takes it.
    """

    def __init__(self, url: str, *, installation_id: InstallationId, ports: Ports) -> None:
        self.url = url
        self._installation_id = installation_id
        self._ports = ports
        self._docker = DockerConnection(url)
        self._door = ThreadDoor("engine")
        self._root_dir: str | None = None

    async def facts(self) -> EngineFacts:
        return await self._quick("facts", calls.facts)

    async def create(self, settings: RuntimeSettings) -> None:
        step = f"create {settings.birth_id}"
        await self._until_true(step, lambda api: calls.create(api, settings))

    async def start(self, birth_id: BirthId) -> None:
        try:
            await self._slow(f"start {birth_id}", lambda api: api.start(birth_id))
        except (FailedPrecondition, Internal) as error:
            seen = await self.inspect(birth_id)
            if seen is not None and seen.state is RuntimeState.FROZEN:
                raise FailedPrecondition(f"start {birth_id}: it is frozen", code="runtime_frozen") from error
            raise

    async def inspect(self, birth_id: BirthId) -> RuntimeObservation | None:
        found = await self._quick(
            f"inspect {birth_id}",
            partial(calls.find_runtime, birth_id=birth_id, installation_id=self._installation_id),
        )
        return None if found is None else views.runtime_observation(found)

    async def freeze(self, birth_id: BirthId) -> None:
        await self._reach(RuntimeState.FROZEN, birth_id, step="freeze", act=lambda api: api.pause(birth_id))

    async def thaw(self, birth_id: BirthId) -> None:
        await self._reach(RuntimeState.RUNNING, birth_id, step="thaw", act=lambda api: api.unpause(birth_id))

    async def stop(self, birth_id: BirthId, *, grace_s: float) -> None:
        await self._slow(
            f"stop {birth_id}",
            lambda api: calls.stop(api, birth_id, installation_id=self._installation_id, grace_s=grace_s),
        )

    async def remove(self, birth_id: BirthId) -> None:
        await self._until_true(
            f"remove {birth_id}",
            lambda api: calls.remove(api, birth_id, installation_id=self._installation_id),
        )

    async def update(self, birth_id: BirthId, size: Size) -> None:
        await self._quick(f"update {birth_id}", lambda api: api.update_limits(birth_id, limits(size)))

    async def delta_bytes(self, birth_id: BirthId) -> int:
        document = await self._slow(f"size of {birth_id}", lambda api: api.inspect_with_size(birth_id))
        return int(document.get("SizeRw") or 0)

    async def commit(self, birth_id: BirthId, *, tag: str) -> str:
        return await self._slow(
            f"commit {birth_id}",
            lambda api: calls.commit(api, birth_id, installation_id=self._installation_id, tag=tag),
        )

    async def changed_paths(self, birth_id: BirthId) -> list[str]:
        return await self._slow(
            f"changes of {birth_id}", lambda api: image_streams.changed_paths(api, birth_id)
        )

    async def read_file(self, birth_id: BirthId, path: str, *, max_bytes: int) -> bytes | None:
        return await self._quick(
            f"file of {birth_id}",
            lambda api: image_streams.read_file(api, birth_id, path, max_bytes=max_bytes),
        )

    async def flatten(self, image_id: str, *, name: str, tag: str) -> str:
        return await self._until_given_up(
            f"flatten {image_id}",
            lambda api, is_given_up: image_streams.flatten(
                api,
                image_id,
                installation_id=self._installation_id,
                name=name,
                tag=tag,
                is_given_up=is_given_up,
            ),
        )

    async def save_image(self, image_id: str, *, sink: Callable[[bytes], object]) -> None:
        await self._until_given_up(
            f"save {image_id}",
            lambda api, is_given_up: image_streams.save_image(
                api, image_id, sink=sink, is_given_up=is_given_up
            ),
        )

    async def load_image(self, chunks: Iterable[bytes]) -> None:
        await self._until_given_up(
            "load image",
            lambda api, is_given_up: image_streams.load_image(api, chunks, is_given_up=is_given_up),
        )

    async def image(self, ref: str) -> EngineImage | None:
        return await self._quick(f"image {ref}", lambda api: calls.find_image(api, ref))

    async def tag(self, image_id: str, tag: str) -> None:
        repository, _, label = tag.rpartition(":")
        await self._quick(f"tag {image_id}", lambda api: api.tag(image_id, repository, tag=label, force=True))

    async def untag_or_remove_image(self, ref: str) -> None:
        await self._slow(f"remove image {ref}", lambda api: calls.remove_image(api, ref))

    async def sync(self) -> None:
        if self._root_dir is None:
            self._root_dir = (await self.facts()).root_dir
        await self._door.call_slow(partial(calls.sync_folder, self._root_dir))

    async def list_runtimes(self) -> list[ListedRuntime]:
        filters = {"label": f"{INSTALLATION_LABEL}={self._installation_id}"}
        entries = await self._quick("list runtimes", lambda api: api.containers(all=True, filters=filters))
        return [
            views.listed_runtime(entry)
            for entry in entries
            if views.is_ours(entry["Labels"], name=entry["Names"][0], installation_id=self._installation_id)
        ]

    async def list_images(self) -> list[EngineImage]:
        return await self._quick(
            "list images", lambda api: calls.list_images(api, installation_id=self._installation_id)
        )

    async def wait_exit(self, birth_id: BirthId, pid: int) -> None:
        await wait_for_exit(birth_id, pid)

    async def output_tail(self, birth_id: BirthId, *, max_bytes: int) -> str:
        try:
            output = await self._quick(
                f"output of {birth_id}", lambda api: api.logs(birth_id, tail=TAIL_LINES)
            )
        except NotFound:
            return ""
        return bytes(output[-max_bytes:]).decode(errors="replace") if max_bytes > 0 else ""

    async def close(self) -> None:
        self._door.close()
        self._docker.close()

    async def _reach(
        self, goal: RuntimeState, birth_id: BirthId, *, step: str, act: Callable[[DockerApi], object]
    ) -> None:
        """Act, and when the engine refuses, see whether the runtime already is where it was to be brought."""
        try:
            await self._quick(f"{step} {birth_id}", act)
        except (FailedPrecondition, Internal) as error:
            seen = await self.inspect(birth_id)
            if seen is not None and seen.state is goal:
                return
            if seen is None or seen.state not in (RuntimeState.RUNNING, RuntimeState.FROZEN):
                state = "gone" if seen is None else seen.state.value
                raise FailedPrecondition(
                    f"{step} {birth_id}: it is {state}", code="runtime_not_running"
                ) from error
            raise

    async def _until_true(self, step: str, work: Callable[[DockerApi], bool]) -> None:
        """Repeat a call that says False while the same thing, asked for by somebody else, is under way."""
        for _ in range(RETRIES):
            if await self._slow(step, work):
                return
            await self._ports.sleep(RETRY_EVERY_S)
        raise Unavailable(
            f"{step}: the engine is still busy with it",
            code="engine_busy",
            admitted="unknown",
            retry_after_s=5.0,
        )

    async def _until_given_up(
        self, step: str, work: Callable[[DockerApi, image_streams.IsGivenUp], Answer]
    ) -> Answer:
        """Run a long call that looks now and then whether its caller was cancelled."""
        given_up = threading.Event()
        running = self._ports.spawn(self._slow(step, lambda api: work(api, given_up.is_set)), name=step)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            given_up.set()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            raise

    async def _quick(self, step: str, work: Callable[[DockerApi], Answer]) -> Answer:
        return await self._door.call(lambda: _mapping_errors(step, lambda: work(self._docker.quick())))

    async def _slow(self, step: str, work: Callable[[DockerApi], Answer]) -> Answer:
        return await self._door.call_slow(lambda: _mapping_errors(step, lambda: work(self._docker.slow())))


def _mapping_errors(step: str, work: Callable[[], Answer]) -> Answer:
    try:
        return work()
    except SandkeeperError:
        raise
    except FOREIGN_ERRORS as error:
        raise mapped(error, step=step) from error
