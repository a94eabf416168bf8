"""Periodic work of a process: each chore on its own, whatever becomes of the others.

Owns when chores run and that none ends unseen: a typed error is logged and the next turn tries again, a defect is
handed to `fatal`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from sandkeeper.core.errors import SandkeeperError
from sandkeeper.ports import Ports

log = structlog.get_logger(__name__)

Work = Callable[[], Awaitable[Any]]


class Chores:
    """The chores of one process."""

    def __init__(self, *, ports: Ports, fatal: Callable[[str], None]) -> None:
        self._ports = ports
        self._fatal = fatal
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self, name: str, work: Work, *, every_s: float) -> None:
        """Do `work` every `every_s` seconds, counted from the end of the last turn, until `close`."""
        task = self._ports.spawn(self._repeat(name, work, every_s), name=f"chore {name}")
        task.add_done_callback(self._on_end)
        self._tasks.append(task)

    def close(self) -> None:
        """End all chores. Repeating is safe."""
        while self._tasks:
            self._tasks.pop().cancel()

    async def _repeat(self, name: str, work: Work, every_s: float) -> None:
        while True:
            await self._ports.sleep(every_s)
            try:
                await work()
            except SandkeeperError as error:
                log.warning("chore_failed", chore=name, code=error.code, message=error.message)

    def _on_end(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.critical("chore_ended", name=task.get_name(), error=repr(error), exc_info=error)
            self._fatal(f"{task.get_name()} ended with {error!r}")
