"""The SDK without await: the same names, generated from the async classes.

Owns one thread with an event loop per keeper (the portal) and the translation of what crosses it: coroutine methods
become plain ones, async iterators become iterators, handles that come back become their twins. There is no second
implementation of anything.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AbstractContextManager
from dataclasses import fields, is_dataclass, replace
from typing import Any, Self, cast

from sandkeeper.client import (
    alarms,
    files,
    forward,
    keeper,
    output,
    port_stream,
    ports,
    process,
    processes,
    sandbox,
    session,
    snapshots,
    state,
)
from sandkeeper.client.attempt import Attempt, AttemptReport, AttemptResult, Step
from sandkeeper.client.results import Event, RunResult, Snapshot
from sandkeeper.core.errors import SandkeeperError

__all__ = [
    "Attempt",
    "AttemptReport",
    "Event",
    "Forward",
    "Keeper",
    "Output",
    "PortStream",
    "Process",
    "RunResult",
    "Sandbox",
    "SandboxAlarms",
    "SandboxFiles",
    "SandboxPorts",
    "SandboxProcesses",
    "SandboxState",
    "SandkeeperError",
    "Session",
    "Snapshot",
    "Snapshots",
    "Step",
]


CLEANUP_WAIT_S = 60.0


class Portal:
    """A thread that runs an event loop, and the way into it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sandkeeper-portal", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run `work` on the loop and wait for it; an interrupt here cancels it there and waits for its clean-up."""
        ended = threading.Event()

        async def tracked() -> Any:
            try:
                return await work
            finally:
                ended.set()

        future = asyncio.run_coroutine_threadsafe(tracked(), self._loop)
        try:
            return future.result()
        except BaseException:
            if not ended.is_set():
                future.cancel()
                ended.wait(CLEANUP_WAIT_S)
            raise

    def close(self) -> None:
        """End the loop and the thread. Repeating is safe."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


class Twin:
    """Base of the generated classes: an original, and the portal to its loop."""

    _original: Any
    _portal: Portal

    @classmethod
    def _of(cls, original: Any, portal: Portal) -> Self:
        twin = cls.__new__(cls)
        twin._original = original
        twin._portal = portal
        return twin

    def __repr__(self) -> str:
        return f"<sync {self._original!r}>"


def _twin_class(original: type[Any]) -> type[Any]:
    """Return the class with the same public names as `original`, without await."""
    members: dict[str, Any] = {"__doc__": original.__doc__}
    for name, member in inspect.getmembers_static(original):
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            members[name] = property(_getter(name), doc=member.__doc__)
        elif inspect.isfunction(member):
            members[name] = _method(name, member)
    if hasattr(original, "__aenter__"):
        members |= {"__enter__": _enter, "__exit__": _exit}
    if hasattr(original, "__anext__"):
        members["__iter__"] = lambda self: _iterated(self._original, self._portal)
    return type(original.__name__, (Twin,), members)


def _enter(self: Twin) -> Twin:
    self._portal.call(self._original.__aenter__())
    return self


def _exit(self: Twin, *exc: object) -> None:
    self._portal.call(self._original.__aexit__(*exc))


def _getter(name: str) -> Any:
    return lambda self: _translated(getattr(self._original, name), self._portal)


def _method(name: str, member: Any) -> Any:
    @functools.wraps(member)
    def call(self: Twin, *args: Any, **kwargs: Any) -> Any:
        answer = getattr(self._original, name)(*args, **kwargs)
        if inspect.iscoroutine(answer):
            answer = self._portal.call(answer)
        return _translated(answer, self._portal)

    return call


def _translated(value: Any, portal: Portal) -> Any:
    """Return `value` with every handle in it replaced by its twin."""
    twin = _TWINS.get(type(value))
    if twin is not None:
        return twin._of(value, portal)
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(_translated(item, portal) for item in value)
    if isinstance(value, AsyncIterator):
        return _iterated(value, portal)
    if isinstance(value, AttemptReport | AttemptResult) and is_dataclass(value):
        changed = {field.name: _translated(getattr(value, field.name), portal) for field in fields(value)}
        return replace(value, **changed)
    return value


def _iterated(stream: AsyncIterator[Any], portal: Portal) -> Iterator[Any]:
    end = object()

    async def following() -> Any:
        return await anext(stream, end)

    try:
        while (item := portal.call(following())) is not end:
            yield _translated(item, portal)
    finally:
        closing = getattr(stream, "aclose", None)
        if closing is not None:
            portal.call(closing())


Sandbox: Any = _twin_class(sandbox.Sandbox)
SandboxFiles: Any = _twin_class(files.SandboxFiles)
SandboxState: Any = _twin_class(state.SandboxState)
SandboxAlarms: Any = _twin_class(alarms.SandboxAlarms)
Snapshots: Any = _twin_class(snapshots.Snapshots)
SandboxProcesses: Any = _twin_class(processes.SandboxProcesses)
Process: Any = _twin_class(process.Process)
Output: Any = _twin_class(output.Output)
Session: Any = _twin_class(session.Session)
SandboxPorts: Any = _twin_class(ports.SandboxPorts)
PortStream: Any = _twin_class(port_stream.PortStream)
Forward: Any = _twin_class(forward.Forward)
_KeeperVerbs: Any = _twin_class(keeper.Keeper)

_TWINS: dict[type[Any], Any] = {
    sandbox.Sandbox: Sandbox,
    files.SandboxFiles: SandboxFiles,
    state.SandboxState: SandboxState,
    alarms.SandboxAlarms: SandboxAlarms,
    snapshots.Snapshots: Snapshots,
    processes.SandboxProcesses: SandboxProcesses,
    process.Process: Process,
    output.Output: Output,
    session.Session: Session,
    ports.SandboxPorts: SandboxPorts,
    port_stream.PortStream: PortStream,
    forward.Forward: Forward,
}


def _attribute(name: str) -> property:
    return property(_getter(name))


_ATTRIBUTES: dict[Any, tuple[str, ...]] = {
    Sandbox: ("files", "state", "alarms", "processes", "ports"),
    Process: ("id", "generation", "has_terminal", "stdout", "stderr", "pty"),
    Output: ("stream", "offset"),
    Forward: ("host", "port", "last_error"),
}
for _twin, _names in _ATTRIBUTES.items():
    for _name in _names:
        setattr(_twin, _name, _attribute(_name))


class Keeper(_KeeperVerbs, AbstractContextManager[Any]):  # type: ignore[misc]  # the base is generated
    """`sandkeeper.Keeper` without await: a context manager with the same verbs."""

    snapshots = _attribute("snapshots")

    @classmethod
    def local(cls, state_dir: Any = None, **config: Any) -> Self:
        """As `sandkeeper.Keeper.local`."""
        return cast("Self", cls._of(keeper.Keeper.local(state_dir, **config), Portal()))

    @classmethod
    def join(cls, state_dir: Any = None, **options: Any) -> Self:
        """As `sandkeeper.Keeper.join`."""
        return cast("Self", cls._of(keeper.Keeper.join(state_dir, **options), Portal()))

    def __enter__(self) -> Self:
        try:
            self._portal.call(self._original.__aenter__())
        except BaseException:
            self._portal.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._portal.call(self._original.__aexit__(*exc))
        finally:
            self._portal.close()
