"""Changes of files that are no writes: append, copy, chmod, chown, symlink; and lstat.

Owns those routes of boxd. Nothing here is repeated by itself: what a repeat means is said at each.
"""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Annotated, Any

from pydantic import Field

from sandkeeper.boxd import errors
from sandkeeper.boxd.answers import Answer, EntryAnswer, FileEntry, checked
from sandkeeper.boxd.exchange import ERROR_LIMIT_BYTES
from sandkeeper.boxd.file_targets import OCTETS, file_target, once
from sandkeeper.boxd.transport import Transport
from sandkeeper.boxd.wire import BadFrame, decode_json
from sandkeeper.core.errors import InvalidArgument

_Count = Annotated[int, Field(ge=0, lt=2**63)]


class Appended(Answer):
    """What an append came to.

    Attributes:
        path: Absolute path of the file.
        written_bytes: Bytes added by this call.
        size_bytes: Size of the file after it.
    """

    path: Annotated[str, Field(max_length=4096)]
    written_bytes: _Count
    size_bytes: _Count


class FileEdits:
    """Changes of files of one box, over its link's transport; `user` as in `Files`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def append(
        self, path: str, *, data: bytes | AsyncIterable[bytes], user: str | None = None
    ) -> Appended:
        """Add to the end of a file, which is made if it is missing. Not safe to repeat.

        Raises:
            InvalidArgument: `body_cut`: what had come by then is in the file; details say nothing of it.
        """
        step = f"append {path}"
        target = file_target("/sandkeeper/v1/files/append", path=path, user=user)
        body = await self._send(
            "POST",
            target,
            chunks=once(data) if isinstance(data, bytes) else data,
            step=step,
            content_type=OCTETS,
        )
        return checked(Appended, document_in(body, step=step), step=step)

    async def copy(
        self,
        source: str,
        *,
        destination: str,
        recursive: bool = False,
        preserve_owner: bool = False,
        user: str | None = None,
    ) -> FileEntry:
        """Copy a file, or with `recursive` a folder, without following links inside it.

        Raises:
            AlreadyExists: The destination is a folder.
            InvalidArgument: `is_a_folder` without `recursive`.
        """
        document = {
            "source": source,
            "destination": destination,
            "recursive": recursive,
            "preserveOwner": preserve_owner,
        }
        answer = await self._edit("copy", document, step=f"copy {source}", user=user)
        return checked(EntryAnswer, answer, step=f"copy {source}").entry

    async def chmod(self, path: str, *, mode: int, recursive: bool = False, user: str | None = None) -> None:
        """Set permission bits. Repeating is safe.

        Raises:
            InvalidArgument: `mode_invalid`.
        """
        if isinstance(mode, bool) or not isinstance(mode, int) or not 0 <= mode <= 0o7777:
            raise InvalidArgument(f"mode is 0 to 0o7777, not {mode!r:.40}", code="mode_invalid")
        document = {"path": path, "mode": mode, "recursive": recursive}
        await self._edit("chmod", document, step=f"chmod {path}", user=user)

    async def chown(self, path: str, *, owner: str, recursive: bool = False, user: str | None = None) -> None:
        """Give to `owner`: a name or number, with `:group` if the group changes too. Repeating is safe."""
        document = {"path": path, "user": owner, "recursive": recursive}
        await self._edit("chown", document, step=f"chown {path}", user=user)

    async def symlink(self, path: str, *, target: str, user: str | None = None) -> FileEntry:
        """Make `path` a symbolic link with the text `target`.

        Raises:
            AlreadyExists: Something lies at `path`.
        """
        document = {"path": path, "target": target}
        answer = await self._edit("symlink", document, step=f"symlink {path}", user=user)
        return checked(EntryAnswer, answer, step=f"symlink {path}").entry

    async def lstat(self, path: str, *, user: str | None = None) -> FileEntry:
        """Return what lies at `path` itself: a link as a link, its target as the text in it."""
        document = {"path": path, "sandkeeper": {"noFollow": True}}
        answer = await self._transport.unary(
            "POST", "/filesystem.Filesystem/Stat", document, step=f"lstat {path}", user=user
        )
        return checked(EntryAnswer, answer, step=f"lstat {path}").entry

    async def _edit(
        self, verb: str, document: dict[str, Any], *, step: str, user: str | None
    ) -> dict[str, Any]:
        return await self._transport.unary(
            "POST",
            file_target(f"/sandkeeper/v1/files/{verb}", user=user),
            document,
            step=step,
            wait_s=self._transport.deadlines.silence_s,
        )

    async def _send(
        self, method: str, target: str, *, chunks: AsyncIterable[bytes], step: str, content_type: str
    ) -> bytes:
        wait_s = self._transport.deadlines.silence_s
        exchange = await self._transport.begin(
            method, target, step=step, body=None, content_type=content_type
        )
        try:
            await exchange.send_body(chunks, wait_s=wait_s)
            await exchange.expect(200, wait_s=wait_s)
            return await exchange.read_all(limit_bytes=ERROR_LIMIT_BYTES, wait_s=wait_s)
        finally:
            exchange.close()


def document_in(data: bytes, *, step: str) -> dict[str, Any]:
    """Return the JSON object boxd answered with.

    Raises:
        Aborted: `box_answer_invalid`.
    """
    try:
        return decode_json(data)
    except BadFrame as error:
        raise errors.invalid_answer(str(error), step=step, admitted="yes") from error
