"""Files of the box: whole, ranged and streamed, folders, and tar archives both ways.

Owns the file half of boxd's protocol. Paths are paths of the box; the host never opens them. What comes out is
bounded and streamed, so neither side's size decides the other's memory.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator

from sandkeeper.boxd import errors
from sandkeeper.boxd.answers import ArchiveLoaded, EntriesAnswer, EntryAnswer, FileEntry, checked
from sandkeeper.boxd.exchange import ERROR_LIMIT_BYTES, Exchange
from sandkeeper.boxd.file_edits import FileEdits, document_in
from sandkeeper.boxd.file_search import FileSearch
from sandkeeper.boxd.file_targets import OCTETS, file_target, once
from sandkeeper.boxd.file_watch import FileWatch
from sandkeeper.core.errors import AlreadyExists, InvalidArgument, NotFound, ResourceExhausted

READ_LIMIT_BYTES = 64 * 1024 * 1024
"""Default bound of a file read into memory."""
STREAM_LIMIT_BYTES = 16 * 1024**3
"""Default bound of a streamed download: a hostile box must not fill the host's disk."""

_TAR = "application/x-tar"


class Files(FileEdits, FileSearch, FileWatch):
    """Files of one box, over its link's transport; with all of `FileEdits`, `FileSearch` and `FileWatch`.

    `user` is the user of the box as whom to act; None = its default user. Relative paths start at that
    user's home. Every method raises SandkeeperError as `sandkeeper.boxd.errors` maps it; NotFound,
    InvalidArgument and PermissionDenied are what the path deserves.
    """

    async def read(
        self,
        path: str,
        *,
        offset: int = 0,
        length: int | None = None,
        user: str | None = None,
        limit_bytes: int = READ_LIMIT_BYTES,
    ) -> bytes:
        """Return the file's bytes, from `offset`, at most `length`; b"" beyond its end.

        Raises:
            ResourceExhausted: There are more than `limit_bytes` to read (`file_too_large`); stream instead.
        """
        gathered = bytearray()
        async for piece in self.stream(
            path, offset=offset, length=length, user=user, limit_bytes=limit_bytes
        ):
            gathered += piece
        return bytes(gathered)

    async def stream(
        self,
        path: str,
        *,
        offset: int = 0,
        length: int | None = None,
        user: str | None = None,
        limit_bytes: int = STREAM_LIMIT_BYTES,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the file's bytes as they come; a slow reader slows boxd. Close it (`aclosing`) to stop early.

        Raises:
            ResourceExhausted: More than `limit_bytes` came (`file_too_large`).
            Aborted: `connection_lost`: the file was cut; what was yielded is a prefix.
        """
        if offset < 0 or (length is not None and length < 0):
            raise InvalidArgument(f"read {path}: offset {offset}, length {length}", code="range_invalid")
        if length == 0:
            return
        is_ranged = offset > 0 or length is not None
        headers = ""
        if is_ranged:
            headers = f"Range: bytes={offset}-{'' if length is None else offset + length - 1}\r\n"
        exchange = await self._transport.begin(
            "GET", file_target("/files", path=path, user=user), step=f"read {path}", headers=headers
        )
        try:
            wait_s = self._transport.deadlines.answer_s
            wanted = (206, 416) if is_ranged else (200,)
            if await exchange.expect(*wanted, wait_s=wait_s) == 416:
                await exchange.read_all(limit_bytes=ERROR_LIMIT_BYTES, wait_s=wait_s)
                return
            allowed = limit_bytes if length is None else min(length, limit_bytes)
            async for piece in self._pieces(exchange, limit_bytes=allowed):
                yield piece
        finally:
            exchange.close()

    async def write(self, path: str, *, data: bytes | AsyncIterable[bytes], user: str | None = None) -> str:
        """Write the file anew, atomically, parents included; return its absolute path.

        The file appears with all its bytes or not at all. Repeating is safe.

        Raises:
            ResourceExhausted: `disk_full`.
        """
        step = f"write {path}"
        chunks = once(data) if isinstance(data, bytes) else data
        target = file_target("/files", path=path, user=user)
        body = await self._send("POST", target, chunks=chunks, step=step, content_type=OCTETS)
        # The answer is a list of one entry; wrapped, it goes through the same checks as every other answer.
        entries = checked(EntriesAnswer, document_in(b'{"entries":%b}' % body, step=step), step=step).entries
        if len(entries) != 1:
            raise errors.invalid_answer(f"{len(entries)} files written", step=step, admitted="yes")
        return entries[0].path

    async def stat(self, path: str, *, user: str | None = None) -> FileEntry:
        """Return what lies at `path`."""
        return await self._entry("Stat", {"path": path}, step=f"stat {path}", user=user)

    async def exists(self, path: str, *, user: str | None = None) -> bool:
        """Return whether something lies at `path`."""
        try:
            await self.stat(path, user=user)
        except NotFound:
            return False
        return True

    async def list(self, path: str, *, depth: int = 1, user: str | None = None) -> tuple[FileEntry, ...]:
        """Return the entries below `path`, to `depth` levels; links are not followed.

        Raises:
            Aborted: `box_answer_invalid`, also for a listing beyond 16 MiB.
        """
        step = f"list {path}"
        answer = await self._transport.unary(
            "POST", "/filesystem.Filesystem/ListDir", {"path": path, "depth": depth}, step=step, user=user
        )
        return checked(EntriesAnswer, answer, step=step).entries

    async def mkdir(self, path: str, *, exist_ok: bool = False, user: str | None = None) -> None:
        """Make a folder and its parents.

        Raises:
            AlreadyExists: It is there, and `exist_ok` is false.
        """
        try:
            await self._entry("MakeDir", {"path": path}, step=f"mkdir {path}", user=user)
        except AlreadyExists:
            if not exist_ok:
                raise

    async def move(self, source: str, *, destination: str, user: str | None = None) -> FileEntry:
        """Rename `source` to `destination`. Not safe to repeat blindly: the second finds no source."""
        document = {"source": source, "destination": destination}
        return await self._entry("Move", document, step=f"move {source}", user=user)

    async def remove(self, path: str, *, user: str | None = None) -> None:
        """Remove what lies at `path`, folders with all in them. Repeating is safe."""
        await self._transport.unary(
            "POST",
            "/filesystem.Filesystem/Remove",
            {"path": path},
            step=f"remove {path}",
            wait_s=self._transport.deadlines.silence_s,
            user=user,
        )

    async def upload_archive(
        self, path: str, *, chunks: AsyncIterable[bytes], user: str | None = None
    ) -> ArchiveLoaded:
        """Unpack a tar stream below the folder `path`, which is made. Repeating is safe.

        Raises:
            InvalidArgument: A member would land outside `path`; nothing outside was written.
        """
        step = f"upload to {path}"
        target = file_target("/sandkeeper/v1/archive", path=path, user=user)
        body = await self._send("PUT", target, chunks=chunks, step=step, content_type=_TAR)
        return checked(ArchiveLoaded, document_in(body, step=step), step=step)

    async def download_archive(
        self, path: str, *, user: str | None = None, limit_bytes: int = STREAM_LIMIT_BYTES
    ) -> AsyncGenerator[bytes, None]:
        """Yield a tar stream of the folder or file `path`, names relative to it. Close it (`aclosing`).

        What is in it was chosen by the box: unpack with a filter that stays inside its folder.
        """
        target = file_target("/sandkeeper/v1/archive", path=path, user=user)
        exchange = await self._transport.begin("GET", target, step=f"download {path}")
        try:
            await exchange.expect(200, wait_s=self._transport.deadlines.answer_s)
            async for piece in self._pieces(exchange, limit_bytes=limit_bytes):
                yield piece
        finally:
            exchange.close()

    async def _entry(
        self, method: str, document: dict[str, str], *, step: str, user: str | None
    ) -> FileEntry:
        answer = await self._transport.unary(
            "POST", f"/filesystem.Filesystem/{method}", dict(document), step=step, user=user
        )
        return checked(EntryAnswer, answer, step=step).entry

    async def _pieces(self, exchange: Exchange, *, limit_bytes: int) -> AsyncIterator[bytes]:
        total = 0
        while data := await exchange.read(wait_s=self._transport.deadlines.silence_s):
            total += len(data)
            if total > limit_bytes:
                raise ResourceExhausted(
                    f"{exchange.step}: more than {limit_bytes} bytes", code="file_too_large"
                )
            yield bytes(data)
