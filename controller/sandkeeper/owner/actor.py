"""The Ray actors: thin shells that keep a host alive in a process of its own.

Owns the loop thread of each actor and what is done when a host cannot go on: the process ends, and Ray makes
a new incarnation. Ray re-runs the constructor only, so everything starts there.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import ray
import structlog

from sandkeeper.core.ids import OwnerId
from sandkeeper.owner.config import Config
from sandkeeper.owner.directory import DirectoryHost
from sandkeeper.owner.host import OwnerHost
from sandkeeper.owner.identity import Identity
from sandkeeper.owner.logs import log_to_file
from sandkeeper.ports import real_ports

log = structlog.get_logger(__name__)

NAMESPACE = "sandkeeper"
DIRECTORY_NAME = "directory"
MAX_CONCURRENCY = 10_000
FATAL_EXIT = 70


class LoopThread:
    """An event loop in a thread of its own, so that a host runs from the constructor on."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run `work` on the loop; an error in it ends the process."""
        # What is imported by now stays: looking through it in each full collection holds a verb up for 20 ms.
        gc.freeze()
        asyncio.run_coroutine_threadsafe(work, self._loop).add_done_callback(_end_on_error)

    async def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run `work` on the loop and wait for it on the caller's loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


def _end_on_error(work: Any) -> None:
    error = work.exception()
    if error is not None:
        end_process(repr(error))


def end_process(reason: str) -> None:
    """End this process at once: what it did is durable, what it was doing is recovered by the next one."""
    log.critical("actor_ends", reason=reason, pid=os.getpid())
    faulthandler.dump_traceback()
    os._exit(FATAL_EXIT)


class SandboxOwner:
    """One owner as an actor: named, detached, restarted for ever on this machine."""

    def __init__(self, owner_id: str, config_json: str) -> None:
        config = Config.model_validate_json(config_json)
        log_to_file(config.paths.logs / f"{owner_id}.log")
        self._thread = LoopThread(f"owner {owner_id}")
        self._host = OwnerHost(OwnerId(owner_id), config=config, ports=real_ports(), fatal=end_process)
        self._thread.begin(self._host.start())

    async def call(self, verb: str, payload: dict[str, Any]) -> Any:
        """Run one verb of the owner's dispatch table; errors are SandkeeperErrors."""
        return await self._thread.call(self._host.call(verb, payload))


class SandboxDirectory:
    """The directory as an actor: one of it, named, detached, restarted for ever on this machine."""

    def __init__(self, config_json: str) -> None:
        config = Config.model_validate_json(config_json)
        log_to_file(config.paths.logs / "directory.log")
        self._config_json = config_json
        self._node = node_resource(config)
        self._thread = LoopThread("directory")
        self._host = DirectoryHost(
            config=config, ports=real_ports(), spawn_owner=self._spawn_owner, fatal=end_process
        )
        self._thread.begin(self._host.start())

    async def ready(self) -> bool:
        """Return when the constructor has run."""
        return True

    async def _spawn_owner(self, owner_id: OwnerId) -> None:
        actor_class: Any = ray.remote(SandboxOwner)
        owner = actor_class.options(**actor_options(owner_id, node=self._node))
        await asyncio.to_thread(owner.remote, owner_id, self._config_json)


def actor_options(name: str, *, node: str) -> dict[str, Any]:
    """Return the Ray options of an actor of ours: it runs on this machine or not at all.

    No task is retried by Ray: a client repeats a call with its request id, which Ray cannot know.
    """
    return {
        "name": name,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "max_restarts": -1,
        "max_task_retries": 0,
        "max_concurrency": MAX_CONCURRENCY,
        "num_cpus": 0,
        "resources": {node: 0.001},
    }


def node_resource(config: Config) -> str:
    """Return the custom Ray resource that stands for this machine's state folder."""
    identity = Path(config.paths.machine).read_text()
    return f"sk-node-{Identity.model_validate_json(identity).machine_id}"
