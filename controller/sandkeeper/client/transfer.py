"""Trees as tar streams, both ways, with memory that does not grow with the tree.

Owns packing and unpacking on this side, by the standard library's tarfile in a thread with a short pipe between it
and the event loop. What is unpacked was chosen by a box: every member goes through `hostile.admit_member` first.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import tarfile
import tempfile
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, cast

from sandkeeper.client.hostile import HostileMemberError, OutwardLinkError, admit_member
from sandkeeper.core.errors import Aborted, InvalidArgument, NotFound, ResourceExhausted

CHUNK_BYTES = 256 * 1024
PIPE_BYTES = FILE_PIECE_BYTES = 1024 * 1024

OnBytes = Callable[[int], None]
OnLeftOut = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Parcel:
    """A tar stream and the folder of the box it is to be unpacked into."""

    folder: str
    chunks: AsyncGenerator[bytes, None]


def packed(source: Path, *, path: str, on_bytes: OnBytes | None = None) -> Parcel:
    """Return a file or folder of this machine as a tar stream for `path` of the box.

    Raises:
        NotFound: `local_not_found`.
        InvalidArgument: `path_invalid`.
    """
    if not source.exists():
        raise NotFound(f"there is nothing at {source} on this machine", code="local_not_found")
    if source.is_dir():
        return Parcel(folder=path, chunks=_stream(source, name=".", on_bytes=on_bytes))
    folder, _, name = path.rpartition("/")
    name = name or source.name
    if name in (".", ".."):
        raise InvalidArgument(f"{path!r} is no place for a file", code="path_invalid")
    folder = folder or ("/" if path.startswith("/") else ".")
    if source.is_file() and not source.is_symlink():
        return Parcel(folder=folder, chunks=_file_stream(source, name=name, on_bytes=on_bytes))
    return Parcel(folder=folder, chunks=_stream(source, name=name, on_bytes=on_bytes))


async def _file_stream(source: Path, *, name: str, on_bytes: OnBytes | None) -> AsyncGenerator[bytes, None]:
    """Yield the archive of one file without tarfile's thread and pipe, which cost three times the copy itself."""
    loop = asyncio.get_running_loop()
    sent = 0
    try:
        with source.open("rb", buffering=0) as file:
            member = _portable(
                tarfile.TarFile(fileobj=BytesIO(), mode="w").gettarinfo(arcname=name, fileobj=file)
            )
            assert member is not None
            yield member.tobuf(tarfile.PAX_FORMAT)
            while sent < member.size:
                data = await loop.run_in_executor(None, file.read, min(FILE_PIECE_BYTES, member.size - sent))
                if not data:
                    raise OSError("it became shorter meanwhile")
                yield data
                sent += len(data)
                if on_bytes is not None:
                    on_bytes(sent)
            yield bytes(-member.size % tarfile.BLOCKSIZE + 2 * tarfile.BLOCKSIZE)
    except OSError as error:
        raise _unreadable(source, error) from error


async def _stream(source: Path, *, name: str, on_bytes: OnBytes | None) -> AsyncGenerator[bytes, None]:
    """Yield the tar stream; the packing thread ends with the stream, whoever ends first."""
    read_fd, write_fd = _roomy_pipe()
    loop = asyncio.get_running_loop()
    packing = loop.run_in_executor(None, _pack, source, name, write_fd)
    sent = 0
    try:
        with os.fdopen(read_fd, "rb", buffering=0) as pipe:
            while data := await loop.run_in_executor(None, pipe.read, CHUNK_BYTES):
                yield data
                sent += len(data)
                if on_bytes is not None:
                    on_bytes(sent)
    finally:
        failure = await asyncio.shield(packing)
    if failure is not None:
        raise failure


def _pack(source: Path, name: str, write_fd: int) -> Exception | None:
    """Write the tar; return what went wrong, because a reader that left is not a failure to raise in a thread."""
    try:
        with (
            os.fdopen(write_fd, "wb", buffering=CHUNK_BYTES) as pipe,
            tarfile.open(fileobj=pipe, mode="w|", format=tarfile.PAX_FORMAT, bufsize=CHUNK_BYTES) as tar,
        ):
            _add(tar, source, name)
    except BrokenPipeError:
        return None
    except OSError as error:
        return _unreadable(source, error)
    return None


def _unreadable(source: Path, error: OSError) -> InvalidArgument:
    return InvalidArgument(
        f"packing {source} failed: {error.strerror or error} {error.filename or ''}".rstrip(),
        code="local_unreadable",
    )


def _add(tar: tarfile.TarFile, source: Path, name: str) -> None:
    """Add a file or a whole folder, links as links, without tarfile's growing list of what it added."""
    tar.add(source, arcname=name, recursive=False, filter=_portable)
    _forget(tar)
    if source.is_dir() and not source.is_symlink():
        for entry in sorted(os.listdir(source)):
            _add(tar, source / entry, f"{name}/{entry}")


def _portable(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out what cannot live in a box (devices, pipes) and who owned it here."""
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


async def unpack(
    chunks: AsyncIterable[bytes],
    *,
    folder: Path,
    on_bytes: OnBytes | None = None,
    on_left_out: OnLeftOut | None = None,
) -> int:
    """Unpack a box's tar stream into `folder`, which is made; return the bytes of content.

    Symbolic links that lead outside are left out, and named to `on_left_out`.

    Raises:
        Aborted: `archive_hostile`: a member would have left the folder, or it is no archive.
        ResourceExhausted: `disk_full`.
    """
    read_fd, write_fd = _roomy_pipe()
    loop = asyncio.get_running_loop()
    unpacking = loop.run_in_executor(None, _unpack, read_fd, folder)
    came = 0
    try:
        with os.fdopen(write_fd, "wb", buffering=0) as pipe:
            async for data in chunks:
                if not await loop.run_in_executor(None, _written, pipe, data):
                    break
                came += len(data)
                if on_bytes is not None:
                    on_bytes(came)
    finally:
        size_bytes, left_out, failure = await asyncio.shield(unpacking)
    if on_left_out is not None:
        for name in left_out:
            on_left_out(name)
    if failure is not None:
        raise failure
    return size_bytes


def _roomy_pipe() -> tuple[int, int]:
    """Return a pipe that holds some chunks: with the usual 64 KiB each chunk is four hops between two threads."""
    read_fd, write_fd = os.pipe()
    with suppress(OSError):  # a user has a limit of such pages
        fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return read_fd, write_fd


def _written(pipe: BinaryIO | object, data: bytes) -> bool:
    view = memoryview(data)
    try:
        while view:
            view = view[cast("BinaryIO", pipe).write(view) :]
    except BrokenPipeError:
        # The unpacking thread ended early; what it returns says why.
        return False
    return True


def _unpack(read_fd: int, folder: Path) -> tuple[int, list[str], Exception | None]:
    size_bytes = 0
    left_out: list[str] = []
    try:
        with os.fdopen(read_fd, "rb", buffering=CHUNK_BYTES) as pipe:
            folder.mkdir(parents=True, exist_ok=True)
            with tarfile.open(fileobj=pipe, mode="r|", bufsize=CHUNK_BYTES) as tar:
                while (member := tar.next()) is not None:
                    _refuse_below(left_out, member.name)
                    try:
                        _extract(tar, admit_member(member, folder=folder), folder)
                    except OutwardLinkError:
                        left_out.append(member.name)
                    size_bytes += member.size if member.isreg() else 0
                    _forget(tar)
            while pipe.read(CHUNK_BYTES):
                pass
    except (tarfile.TarError, HostileMemberError) as error:
        return (
            size_bytes,
            left_out,
            Aborted(
                f"the archive that came is refused: {type(error).__name__}: {error}",
                code="archive_hostile",
                advice="look at the folder in the sandbox: a member is absolute, leaves the folder or is a device",
                admitted="yes",
            ),
        )
    except OSError as error:
        kind = ResourceExhausted if error.errno == 28 else InvalidArgument
        code = "disk_full" if error.errno == 28 else "local_unwritable"
        return (
            size_bytes,
            left_out,
            kind(f"writing below {folder} failed: {error.strerror or error}", code=code),
        )
    return size_bytes, left_out, None


def _refuse_below(left_out: list[str], name: str) -> None:
    """Refuse a member that lies below a link that was left out: it was meant for what is outside."""
    for link in left_out:
        if name.startswith(f"{link}/"):
            raise HostileMemberError(f"{name!r} lies below the link {link!r}, which leads outside")


def _forget(tar: tarfile.TarFile) -> None:
    """Drop the members tarfile keeps: memory must not grow with the tree."""
    tar.members = []  # type: ignore[attr-defined]  # documented only in its source


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    if hasattr(tarfile, "data_filter"):
        tar.extract(member, folder, filter="data")
    else:
        tar.extract(member, folder)


class Arriving:
    """A file that appears at `target` with all its bytes or not at all."""

    def __init__(self, target: Path, *, name: str) -> None:
        """`name` is used when `target` is a folder."""
        self._target = target
        self._name = name
        self.size_bytes = 0

    def __enter__(self) -> Self:
        if self._target.is_dir():
            self._target = self._target / self._name
        self._target.parent.mkdir(parents=True, exist_ok=True)
        fd, name = tempfile.mkstemp(dir=self._target.parent, prefix=".sandkeeper-")
        self._path: Path | None = Path(name)
        self._file = os.fdopen(fd, "wb")
        return self

    def write(self, data: bytes) -> None:
        """Add bytes."""
        self._file.write(data)
        self.size_bytes += len(data)

    def keep(self) -> None:
        """Put the file in its place."""
        self._file.close()
        assert self._path is not None
        # mkstemp makes it for its owner alone; a download is an ordinary file.
        mask = os.umask(0)
        os.umask(mask)
        self._path.chmod(0o666 & ~mask)
        self._path.replace(self._target)
        self._path = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
