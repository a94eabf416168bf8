"""Tells the directory that this client lives, for as long as its keeper is open.

Owns one thread with a loop of its own: a program that blocks its event loop for a minute is not gone. What is bound to
the client is destroyed when no beat came for `ttl_s`; the beats begin with the first thing that is bound.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from sandkeeper.client.installation import Installation
from sandkeeper.control.caller import ControlCaller
from sandkeeper.core.admission import CreateRequest
from sandkeeper.core.errors import SandkeeperError
from sandkeeper.core.verbs import Heartbeat as Beat
from sandkeeper.core.verbs import checked
from sandkeeper.ports import sleep_for

BEATS_PER_TTL = 3
ANSWER_S = 5.0


def heartbeat_of(installation: Installation, *, client_id: str, ttl_s: float) -> Heartbeat:
    """Return the heartbeat of a client of that installation; it does not beat yet.

    Raises:
        InvalidArgument: `invalid_parameters`: no such id or time.
    """
    beat = checked(Beat, client_id=client_id, ttl_s=ttl_s)
    return Heartbeat(installation.directory_socket, beat=beat)


class Heartbeat:
    """The heartbeat of one client; a client that comes back with the id of an earlier one keeps what was its own.

    Attributes:
        client_id: The client's id.
        beats: Beats that were answered.
        last_error: Why the last beat was not answered, None when it was: the next one tries again.
    """

    def __init__(self, directory_socket: Path, *, beat: Beat) -> None:
        self.client_id = beat.client_id
        self.beats = 0
        self.last_error: SandkeeperError | None = None
        self._socket = directory_socket
        self._beat = beat
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beating: asyncio.Task[None] | None = None
        self._is_ending = False

    def bind(self, request: CreateRequest) -> CreateRequest:
        """Return the create as one that ends with this client, unless it is detached; from now on it is heard."""
        if request.detached:
            return request
        self.start()
        return request.model_copy(update={"client_id": self.client_id, "client_ttl_s": self._beat.ttl_s})

    def start(self) -> None:
        """Begin to beat. Repeating is safe; after `close` it does nothing."""
        if self._thread is not None or self._is_ending:
            return
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="sandkeeper-heartbeat", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Stop, and return when the thread has ended. Repeating is safe."""
        self._is_ending = True
        thread, self._thread = self._thread, None
        if thread is None or self._loop is None:
            return
        self._loop.call_soon_threadsafe(self._stop)
        await asyncio.to_thread(thread.join)

    def _run(self) -> None:
        assert self._loop is not None
        try:
            self._loop.run_until_complete(self._go_on())
        except asyncio.CancelledError:
            return
        finally:
            self._loop.close()

    def _stop(self) -> None:
        """Runs on the thread's loop: a beat under way, or the pause, ends at once."""
        if self._beating is not None:
            self._beating.cancel()

    async def _go_on(self) -> None:
        self._beating = asyncio.current_task()
        caller = ControlCaller(self._socket)
        try:
            while not self._is_ending:
                await self._one(caller)
                await sleep_for(self._beat.ttl_s / BEATS_PER_TTL)
        finally:
            await caller.close()

    async def _one(self, caller: ControlCaller) -> None:
        try:
            await caller.call("heartbeat", self._beat.model_dump(mode="json"), timeout_s=ANSWER_S)
            self.beats, self.last_error = self.beats + 1, None
        except SandkeeperError as error:
            # A directory that is away blames nobody for the silence: when it is back, every grace starts anew.
            self.last_error = error
