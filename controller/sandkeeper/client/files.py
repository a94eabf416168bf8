"""Files of a sandbox: whole files, folders, and trees both ways.

Reads and whole-file writes are repeated on a fresh lease when the first attempt was cut. A rename is not: a repeat
would not find its source. Paths are paths of the box.
"""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

from sandkeeper.boxd.answers import ArchiveLoaded, FileEntry
from sandkeeper.client.box_link import BoxLink
from sandkeeper.client.file_changes import FileChanges
from sandkeeper.client.transfer import Arriving, OnBytes, OnLeftOut, packed, unpack
from sandkeeper.core.errors import InvalidArgument

READ_LIMIT_BYTES = 64 * 1024 * 1024


class SandboxFiles(FileChanges):
    """`sandbox.files`. Relative paths start at the home of the user acted for (`user`; None = the default)."""

    async def read(
        self,
        path: str,
        *,
        offset: int = 0,
        length: int | None = None,
        user: str | None = None,
        limit_bytes: int = READ_LIMIT_BYTES,
    ) -> bytes:
        """Return the bytes of a file, from `offset`, at most `length`.

        Raises:
            NotFound: There is no such file.
            ResourceExhausted: More than `limit_bytes` (`file_too_large`); download it instead.
        """
        return await self._with_box(
            lambda link: link.files.read(
                path, offset=offset, length=length, user=user, limit_bytes=limit_bytes
            )
        )

    async def read_text(self, path: str, *, user: str | None = None, errors: str = "strict") -> str:
        """Return a file as UTF-8 text; `errors` as for `bytes.decode`."""
        return (await self.read(path, user=user)).decode("utf-8", errors)

    async def write(self, path: str, data: bytes | str, *, user: str | None = None) -> str:
        """Write a file anew, parents included, all of it or nothing; return its absolute path. May be repeated."""
        if not isinstance(data, str | bytes | bytearray | memoryview):
            raise InvalidArgument(
                f"content is bytes or text, not {type(data).__name__}", code="content_invalid"
            )
        content = data.encode() if isinstance(data, str) else bytes(data)
        return await self._with_box(lambda link: link.files.write(path, data=content, user=user))

    async def stat(self, path: str, *, user: str | None = None) -> FileEntry:
        """Return what lies at `path`.

        Raises:
            NotFound: Nothing does.
        """
        return await self._with_box(lambda link: link.files.stat(path, user=user))

    async def exists(self, path: str, *, user: str | None = None) -> bool:
        """Return whether something lies at `path`."""
        return await self._with_box(lambda link: link.files.exists(path, user=user))

    async def list(self, path: str, *, depth: int = 1, user: str | None = None) -> tuple[FileEntry, ...]:
        """Return what lies below the folder `path`, `depth` levels deep, links not followed."""
        return await self._with_box(lambda link: link.files.list(path, depth=depth, user=user))

    async def mkdir(self, path: str, *, exist_ok: bool = True, user: str | None = None) -> None:
        """Make a folder and its parents.

        Raises:
            AlreadyExists: It is there and `exist_ok` is false.
        """
        await self._with_box(lambda link: link.files.mkdir(path, exist_ok=exist_ok, user=user))

    async def remove(self, path: str, *, user: str | None = None) -> None:
        """Remove what lies at `path`, folders with all in them. May be repeated."""
        await self._with_box(lambda link: link.files.remove(path, user=user))

    async def rename(self, path: str, destination: str, *, user: str | None = None) -> FileEntry:
        """Rename `path` to `destination`. Not repeated by us once it may have happened."""
        return await self._with_box(
            lambda link: link.files.move(path, destination=destination, user=user), is_repeatable=False
        )

    async def upload(
        self, local: Path | str, path: str, *, user: str | None = None, on_bytes: OnBytes | None = None
    ) -> ArchiveLoaded:
        """Copy a local file to `path`, or a local folder's content into the folder `path`.

        Streams with flat memory. `on_bytes` is told how many bytes have gone so far. May be repeated.

        Raises:
            NotFound: There is nothing at `local` (`local_not_found`).
        """
        source = Path(local)

        async def send(link: BoxLink) -> ArchiveLoaded:
            parcel = packed(source, path=path, on_bytes=on_bytes)
            return await link.files.upload_archive(parcel.folder, chunks=parcel.chunks, user=user)

        return await self._with_box(send)

    async def download(
        self,
        path: str,
        local: Path | str,
        *,
        user: str | None = None,
        on_bytes: OnBytes | None = None,
        on_left_out: OnLeftOut | None = None,
    ) -> int:
        """Copy a file or a folder's content of the box to `local`; return the bytes of content that came.

        What comes was chosen by the box: members that would land outside `local` and devices are refused, and
        nothing outside is written. Symbolic links that lead outside are left out, each named to `on_left_out`.

        Raises:
            Aborted: `archive_hostile`, `connection_lost`.
            NotFound: There is nothing at `path`.
        """
        entry = await self.stat(path, user=user)
        target = Path(local)
        if entry.type != "directory":
            return await self._download_file(path, target, user=user, on_bytes=on_bytes)

        async def fetch(link: BoxLink) -> int:
            stream = link.files.download_archive(path, user=user)
            async with aclosing(stream):
                return await unpack(stream, folder=target, on_bytes=on_bytes, on_left_out=on_left_out)

        return await self._with_box(fetch)

    async def _download_file(
        self, path: str, target: Path, *, user: str | None, on_bytes: OnBytes | None
    ) -> int:
        async def fetch(link: BoxLink) -> int:
            stream = link.files.stream(path, user=user)
            with Arriving(target, name=Path(path).name) as arriving:
                async with aclosing(stream):
                    async for piece in stream:
                        arriving.write(piece)
                        if on_bytes is not None:
                            on_bytes(arriving.size_bytes)
                arriving.keep()
                return arriving.size_bytes

        return await self._with_box(fetch)


__all__ = ["ArchiveLoaded", "FileEntry", "SandboxFiles"]
