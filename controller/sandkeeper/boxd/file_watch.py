"""Watching a folder of the box: one stream of typed events, with overflow told.

Owns the stream of boxd's WatchDir. Events are hints to look, not a journal: an overflow means that some are missing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from sandkeeper.boxd import errors
from sandkeeper.boxd.answers import Answer, checked
from sandkeeper.boxd.exchange import Exchange, FrameReader
from sandkeeper.boxd.transport import Transport

FileChange = Literal["ready", "created", "written", "removed", "renamed", "chmod", "overflow"]

_CHANGES: dict[str, FileChange] = {
    "EVENT_TYPE_CREATE": "created",
    "EVENT_TYPE_WRITE": "written",
    "EVENT_TYPE_REMOVE": "removed",
    "EVENT_TYPE_RENAME": "renamed",
    "EVENT_TYPE_CHMOD": "chmod",
}


@dataclass(frozen=True, slots=True)
class FileEvent:
    """Something happened to `name`, relative to the watched folder (`.` is the folder itself).

    `ready`, with an empty name, comes first: what happens from then on is seen. `overflow`, with an empty name, says
    that events are missing: look at everything again.
    """

    change: FileChange
    name: str


class _Overflow(Answer):
    overflow: bool = False


class _Told(Answer):
    name: Annotated[str, Field(max_length=4096)] = ""
    type: Annotated[str, Field(max_length=64)] = ""
    sandkeeper: _Overflow = _Overflow()


class _Frame(Answer):
    start: dict[str, object] | None = None
    filesystem: _Told | None = None


class FileWatch:
    """Watches folders of one box, over its link's transport; `user` as in `Files`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def watch(
        self, path: str, *, recursive: bool = False, user: str | None = None
    ) -> AsyncGenerator[FileEvent, None]:
        """Yield what happens in the folder `path`, for ever; the first is `ready`.

        Close it (`aclosing`).

        Raises:
            InvalidArgument: `not_a_folder`.
            ResourceExhausted: `watcher_limit`, `watch_limit`.
            Aborted: `connection_lost`: events are missing from here on.
        """
        step = f"watch {path}"
        exchange = await self._transport.open_stream(
            "/filesystem.Filesystem/WatchDir", {"path": path, "recursive": recursive}, step=step, user=user
        )
        try:
            frames = FrameReader(exchange)
            wait_s = self._transport.deadlines.silence_s
            while (frame := await frames.next(wait_s=wait_s)) is not None and not frame.is_end:
                told = checked(_Frame, frame.document, step=step)
                if told.start is not None:
                    exchange.admitted = "yes"
                    yield FileEvent("ready", "")
                elif told.filesystem is not None and (event := _event(told.filesystem)) is not None:
                    yield event
            raise _ended(exchange, None if frame is None else frame.document)
        finally:
            exchange.close()


def _event(told: _Told) -> FileEvent | None:
    if told.sandkeeper.overflow:
        return FileEvent("overflow", "")
    change = _CHANGES.get(told.type)
    return None if change is None else FileEvent(change, told.name)


def _ended(exchange: Exchange, document: dict[str, object] | None) -> Exception:
    refused = (document or {}).get("error")
    if isinstance(refused, dict):
        return errors.refusal(refused, step=exchange.step)
    return exchange.invalid("a watch ended by itself")
