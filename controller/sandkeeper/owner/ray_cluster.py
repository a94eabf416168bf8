"""The Ray of one installation, for the directory and the owners only.

Ray binds its ports on all interfaces of the machine; its token authentication is what keeps others out, and
sandboxes have no network to reach it by.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ray

from sandkeeper.owner.actor import DIRECTORY_NAME, NAMESPACE, SandboxDirectory, actor_options, node_resource
from sandkeeper.owner.config import Config
from sandkeeper.store.processes import ProcessMark, is_alive, start_ticks

PARTS = ("raylet", "gcs_server")
OBJECT_STORE_BYTES = 80 * 1024 * 1024


class RayCluster:
    """Starts and stops Ray in this process. All calls block."""

    def __init__(self, config: Config, *, folder: Path) -> None:
        self._config = config
        self._folder = folder
        self._parts: list[ProcessMark] = []

    def start(self) -> None:
        """Start a Ray head and the directory actor in it.

        Ray's memory monitor is off: admission bounds memory, and an owner must not be picked.
        """
        os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # noqa: SIM112 - Ray's own spelling
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        node = node_resource(self._config)
        ray.init(
            include_dashboard=False,
            namespace=NAMESPACE,
            num_cpus=1,
            resources={node: 1},
            object_store_memory=OBJECT_STORE_BYTES,
            log_to_driver=False,
            _temp_dir=str(self._folder),
            _node_ip_address="127.0.0.1",
        )
        options = actor_options(DIRECTORY_NAME, node=node)
        actor_class: Any = ray.remote(SandboxDirectory)
        directory = actor_class.options(**options).remote(self._config.model_dump_json())
        self._parts = _parts_of(os.getpid())
        ray.get(directory.ready.remote(), timeout=60)

    @property
    def is_whole(self) -> bool:
        """Whether Ray's own processes live; without them a dead owner would never come back."""
        return all(is_alive(mark) for mark in self._parts)

    def stop(self) -> None:
        """Stop Ray with all actors; containers go on."""
        ray.shutdown()


def _parts_of(pid: int) -> list[ProcessMark]:
    """Return Ray's processes among the children of a process."""
    found: list[ProcessMark] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            ticks = start_ticks(child)
            if ticks is not None and Path(f"/proc/{child}/comm").read_text().strip() in PARTS:
                found.append(ProcessMark(pid=child, start_ticks=ticks))
    return found
