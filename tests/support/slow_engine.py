"""A proxy before a container engine that holds chosen calls: what a slow engine is to whoever calls it.

Owns one unix socket and one thread per request. A held call goes on after its caller's death, as a real engine's
does: it is sent when it is released, whoever still waits for the answer.
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

WAIT_S = 60.0
_HEAD_END = b"\r\n\r\n"
_CHUNKED = b"transfer-encoding: chunked"
CALLS = {
    "create": r"POST /[^ ]*/containers/create",
    "start": r"POST /[^ ]*/containers/[^ /]+/start",
    "stop": r"POST /[^ ]*/containers/[^ /]+/stop",
    "pause": r"POST /[^ ]*/containers/[^ /]+/pause",
    "unpause": r"POST /[^ ]*/containers/[^ /]+/unpause",
    "update": r"POST /[^ ]*/containers/[^ /]+/update",
    "remove": r"DELETE /[^ ]*/containers/",
    "commit": r"POST /[^ ]*/commit",
    "import": r"POST /[^ ]*/images/create",
    "load": r"POST /[^ ]*/images/load",
    "tag": r"POST /[^ ]*/images/[^ ]+/tag",
    "untag": r"DELETE /[^ ]*/images/",
    "inspect": r"GET /[^ ]*/containers/[^ /]+/json",
}
"""Calls by the names the Protocol `Engine` has for them."""


@dataclass
class Hold:
    """One call that is held: the first one of its kind after the hold was made.

    Attributes:
        verb: Its kind.
        is_after: Held when the engine has done it, on the way back; else before the engine hears of it.
    """

    verb: str
    is_after: bool
    is_dropped: bool = False
    _reached: threading.Event = field(default_factory=threading.Event)
    _released: threading.Event = field(default_factory=threading.Event)
    _answered: threading.Event = field(default_factory=threading.Event)

    async def reached(self) -> None:
        """Return when the call has come to where it is held."""
        assert await asyncio.to_thread(self._reached.wait, WAIT_S), f"no {self.verb} came"

    async def release(self) -> None:
        """Let it go on, and return when the engine has answered it."""
        assert self._reached.is_set()
        self._released.set()
        assert await asyncio.to_thread(self._answered.wait, WAIT_S), f"{self.verb} had no answer"

    def drop(self) -> None:
        """Let it never reach the engine, as if its caller had died just before sending."""
        self.is_dropped = True
        self._released.set()


class SlowEngine:
    """The proxy; a context manager.

    Attributes:
        url: What an engine client connects to.
        seen: Names of the calls that came, in order.
    """

    def __init__(self, path: Path, *, engine_url: str) -> None:
        self.path = path
        self.url = f"unix://{path}"
        self.seen: list[str] = []
        self._engine_path = engine_url.removeprefix("unix://")
        self._holds: list[Hold] = []
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)

    def __enter__(self) -> Self:
        self._listener.bind(str(self.path))
        self._listener.listen(256)
        threading.Thread(target=self._accept, name="slow engine", daemon=True).start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.let_go()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.path.unlink(missing_ok=True)

    @contextmanager
    def hold(self, verb: str, *, after: bool = False) -> Iterator[Hold]:
        """Hold the next call of a kind; whatever is still held goes on when the block ends."""
        hold = Hold(verb, after)
        with self._lock:
            self._holds.append(hold)
        try:
            yield hold
        finally:
            with self._lock, suppress(ValueError):
                self._holds.remove(hold)
            hold._released.set()

    def let_go(self) -> None:
        """Hold nothing any more."""
        with self._lock:
            holds, self._holds = self._holds, []
        for hold in holds:
            hold._released.set()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(caller,), daemon=True).start()

    def _pass_on(self, caller: socket.socket) -> None:
        with closing(caller), suppress(OSError):
            request = _read_request(caller)
            if request is None:
                return
            hold = self._note(request)
            if hold is not None and not hold.is_after:
                hold._reached.set()
                hold._released.wait(WAIT_S)
                if hold.is_dropped:
                    return
            try:
                self._exchange(request, caller, hold=hold)
            finally:
                if hold is not None:
                    hold._answered.set()

    def _note(self, request: bytes) -> Hold | None:
        line = request.split(b"\r\n", 1)[0].decode("latin-1")
        verb = next((name for name, pattern in CALLS.items() if re.match(pattern, line)), "")
        with self._lock:
            if verb:
                self.seen.append(verb)
            found = next((hold for hold in self._holds if hold.verb == verb), None)
            if found is not None:
                self._holds.remove(found)
        return found

    def _exchange(self, request: bytes, caller: socket.socket, *, hold: Hold | None) -> None:
        with socket.socket(socket.AF_UNIX) as engine:
            engine.connect(self._engine_path)
            engine.sendall(request)
            if _CHUNKED in request.split(_HEAD_END, 1)[0].lower():
                # A stream such as an image that is loaded: passed on as it comes, until one side has had enough.
                threading.Thread(target=_pump, args=(caller, engine), daemon=True).start()
            is_first, is_caller_there = True, True
            while answer := engine.recv(65536):
                if is_first and hold is not None and hold.is_after:
                    hold._reached.set()
                    hold._released.wait(WAIT_S)
                is_first = False
                if hold is not None and hold.is_dropped:
                    is_caller_there = False
                if is_caller_there:
                    try:
                        caller.sendall(answer)
                    except OSError:
                        # The caller has died: the engine does not care, and is read to the end.
                        is_caller_there = False


def _pump(caller: socket.socket, engine: socket.socket) -> None:
    with suppress(OSError):
        while data := caller.recv(65536):
            engine.sendall(data)
        engine.shutdown(socket.SHUT_WR)  # a caller that died in the middle of its stream


def _read_request(caller: socket.socket) -> bytes | None:
    """Read one whole request (of one that streams, what has come) and ask the engine to end the connection after it."""
    gathered = b""
    while _HEAD_END not in gathered:
        data = caller.recv(65536)
        if not data:
            return None
        gathered += data
    head, body = gathered.split(_HEAD_END, 1)
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
    lengths = [int(line[15:]) for line in lines if line.lower().startswith(b"content-length:")]
    while len(body) < sum(lengths):
        data = caller.recv(65536)
        if not data:
            return None
        body += data
    return b"\r\n".join([*lines, b"Connection: close"]) + _HEAD_END + body
