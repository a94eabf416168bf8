"""The one door through which blocking engine calls leave the event loop.

Owns the threads and the meaning of a cancelled call. Knows nothing of engines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sandkeeper.core.errors import Unavailable

Answer = TypeVar("Answer")

THREADS = 16
SLOW_THREADS = 8


class ThreadDoor:
    """Runs blocking calls on a bounded number of threads.

    A call that has begun cannot be called back: a caller cancelled meanwhile waits until the call has ended, drops
    its answer and only then raises the cancellation, so that whoever cancelled it knows that nothing of it is
    running any more. A call still queued when its caller is cancelled never begins.

    Long calls share fewer threads than there are, so that quick ones always find one.
    """

    def __init__(self, name: str, *, threads: int = THREADS, slow_threads: int = SLOW_THREADS) -> None:
        self._threads = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=name)
        self._slow_turns = asyncio.Semaphore(slow_threads)
        self._is_closed = False

    async def call(self, work: Callable[[], Answer]) -> Answer:
        """Run `work` on a thread and return what it returns."""
        if self._is_closed:
            raise Unavailable("this engine was closed", code="engine_closed")
        running = self._threads.submit(work)
        answer = asyncio.wrap_future(running)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            if not running.cancel():
                await _ended(answer)
            raise

    async def call_slow(self, work: Callable[[], Answer]) -> Answer:
        """Run `work`, which may take long, when one of the few threads for such work is free."""
        async with self._slow_turns:
            return await self.call(work)

    def close(self) -> None:
        """Take no more calls. Those running end on their own; those queued never begin."""
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)


async def _ended(answer: asyncio.Future[Answer]) -> None:
    """Wait until `answer` is there, however often the waiting task is cancelled; its error is the canceller's loss."""
    while not answer.done():
        try:
            await asyncio.wait({answer})
        except asyncio.CancelledError:
            continue
    if not answer.cancelled():
        answer.exception()
