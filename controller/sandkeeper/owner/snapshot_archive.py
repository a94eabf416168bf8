"""The archive of a snapshot: one tar of the engine's image archive and a manifest, written and checked as streams.

Owns the format (docs/snapshots.md) and what is checked before an engine sees anything of it. Memory stays flat.
Everything here blocks; nothing here talks to an engine.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, Annotated, Any, Literal, NamedTuple, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandkeeper.core.errors import DataLoss, InvalidArgument, NotFound, ResourceExhausted, SandkeeperError
from sandkeeper.core.record import SnapshotRecord

IMAGE = "image.tar"
MANIFEST = "manifest.json"
CHUNK_BYTES = 1024 * 1024
MAX_MANIFEST_BYTES = 1024 * 1024
MAX_CONFIGURATION_BYTES = 8 * 1024 * 1024
_CONFIGURATION = re.compile(r"^(?:blobs/sha256/)?([0-9a-f]{64})(?:\.json)?$")


class Manifest(BaseModel):
    """What an archive says of itself.

    Attributes:
        format: Version of the format.
        image: Catalogue name of the image the snapshot stands on.
        sha256: Of the image archive inside.
        image_bytes: Its length.
        snapshot: The snapshot's row where it was exported; its `boot` has image id and base digest.
        exported_at: When.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    image: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    image_bytes: int
    snapshot: SnapshotRecord
    exported_at: datetime


class Finished(NamedTuple):
    """An archive that is there: its manifest, and its length."""

    manifest: Manifest
    size_bytes: int


class ArchiveWriter:
    """Writes one archive beside its final place; it appears there with all its bytes, durable, or not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(f".{path.name}.part")
        self._hash = hashlib.sha256()
        self._image_bytes = 0
        self._file: IO[bytes] | None = None

    def open(self) -> None:
        """Begin; room for the image's header is left.

        Raises:
            InvalidArgument: `path_unwritable`.
            ResourceExhausted: `disk_full`.
        """
        try:
            self._file = self._part.open("wb")
            self._file.write(bytes(tarfile.BLOCKSIZE))
        except OSError as error:
            raise _unwritable(self._path, error) from error

    def write(self, chunk: bytes) -> None:
        """Append a piece of the image archive; called from the engine's thread."""
        assert self._file is not None
        try:
            self._file.write(chunk)
        except OSError as error:
            raise _unwritable(self._path, error) from error
        self._hash.update(chunk)
        self._image_bytes += len(chunk)

    def finish(self, *, image: str, snapshot: SnapshotRecord, at: datetime) -> Finished:
        """Write manifest and header, make the file durable, and give it its name."""
        assert self._file is not None
        manifest = Manifest(
            image=image,
            sha256=self._hash.hexdigest(),
            image_bytes=self._image_bytes,
            snapshot=snapshot,
            exported_at=at,
        )
        text = manifest.model_dump_json(indent=1).encode()
        try:
            self._file.write(bytes(-self._image_bytes % tarfile.BLOCKSIZE))
            self._file.write(_header(MANIFEST, len(text), at))
            self._file.write(text + bytes(-len(text) % tarfile.BLOCKSIZE + 2 * tarfile.BLOCKSIZE))
            size_bytes = self._file.tell()
            self._file.seek(0)
            self._file.write(_header(IMAGE, self._image_bytes, at))
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._part.replace(self._path)
        except OSError as error:
            raise _unwritable(self._path, error) from error
        return Finished(manifest, size_bytes)

    def discard(self) -> None:
        """Leave nothing of an archive that was not finished. Repeating is safe."""
        if self._file is not None:
            self._file.close()
        self._part.unlink(missing_ok=True)


class ArchiveReader:
    """Reads one archive; what it was opened on is what is checked and then loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._image_at = 0
        self._manifest: Manifest | None = None

    def check(self) -> Manifest:
        """Open the archive, check all of it, and return its manifest.

        Raises:
            NotFound: `archive_not_found`.
            DataLoss: `archive_damaged`: cut, or not what its hash says.
            InvalidArgument: `archive_refused`: it is no archive of one untagged image, or of another format.
        """
        try:
            self._file = self._path.open("rb")
        except OSError as error:
            raise NotFound(f"{self._path}: {error.strerror}", code="archive_not_found") from error
        try:
            with tarfile.open(fileobj=self._file, mode="r:") as archive:
                image = archive.getmember(IMAGE)
                manifest = _manifest_of(archive)
            self._image_at = image.offset_data
            if not image.isreg() or image.size != manifest.image_bytes:
                raise _damaged(f"the image has {image.size} bytes, its manifest says {manifest.image_bytes}")
            self._manifest = manifest
            digest = hashlib.sha256()
            for chunk in self.image():
                digest.update(chunk)
            if digest.hexdigest() != manifest.sha256:
                raise _damaged(f"sha256 {digest.hexdigest()}, its manifest says {manifest.sha256}")
            self._check_image(manifest)
        except (tarfile.TarError, KeyError, OSError, EOFError) as error:
            raise _damaged(str(error)) from error
        return manifest

    def image(self) -> Iterator[bytes]:
        """Yield the image archive from its beginning; may be called again."""
        assert self._file is not None
        assert self._manifest is not None
        self._file.seek(self._image_at)
        left = self._manifest.image_bytes
        while left:
            chunk = self._file.read(min(CHUNK_BYTES, left))
            if not chunk:
                raise _damaged(f"it ends {left} bytes early")
            left -= len(chunk)
            yield chunk

    def close(self) -> None:
        """Close the file. Repeating is safe."""
        if self._file is not None:
            self._file.close()

    def _check_image(self, manifest: Manifest) -> None:
        """One image, of the id that was promised, that takes no name at the engine."""
        assert self._file is not None
        section = cast("IO[bytes]", _Section(self._file, start=self._image_at, size=manifest.image_bytes))
        with tarfile.open(fileobj=section, mode="r:") as image:
            entries = _json(image, "manifest.json", limit_bytes=MAX_MANIFEST_BYTES)
            if not isinstance(entries, list) or len(entries) != 1 or not isinstance(entries[0], dict):
                raise _refused("it holds not exactly one image")
            if entries[0].get("RepoTags"):
                raise _refused("its image would take names at the engine")
            found = _CONFIGURATION.match(str(entries[0].get("Config")))
            configuration = _content(
                image, str(entries[0].get("Config")), limit_bytes=MAX_CONFIGURATION_BYTES
            )
        image_id = f"sha256:{hashlib.sha256(configuration).hexdigest()}"
        if found is None or image_id != manifest.snapshot.boot.image_id:
            raise _refused(f"its image is {image_id}, promised was {manifest.snapshot.boot.image_id}")


class _Section(io.RawIOBase):
    """A part of a file, as a file."""

    def __init__(self, file: IO[bytes], *, start: int, size: int) -> None:
        self._file, self._start, self._size, self._at = file, start, size, 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._at)
        self._file.seek(self._start + self._at)
        chunk = self._file.read(left if size < 0 else min(size, left))
        self._at += len(chunk)
        return chunk


def _manifest_of(archive: tarfile.TarFile) -> Manifest:
    content = _content(archive, MANIFEST, limit_bytes=MAX_MANIFEST_BYTES)
    try:
        return Manifest.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise _refused(f"its manifest: {field}: {first['msg']}") from error


def _json(archive: tarfile.TarFile, name: str, *, limit_bytes: int) -> Any:
    try:
        return json.loads(_content(archive, name, limit_bytes=limit_bytes))
    except ValueError as error:
        raise _refused(f"{name}: {error}") from error


def _content(archive: tarfile.TarFile, name: str, *, limit_bytes: int) -> bytes:
    member = archive.getmember(name)
    file = archive.extractfile(member) if member.isreg() and member.size <= limit_bytes else None
    if file is None:
        raise _refused(f"{name} is no file of at most {limit_bytes} bytes")
    return file.read()


def _header(name: str, size: int, at: datetime) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = size, int(at.timestamp()), 0o600
    return member.tobuf(format=tarfile.GNU_FORMAT)


def _unwritable(path: Path, error: OSError) -> SandkeeperError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ResourceExhausted(f"{path}: {error.strerror}", code="disk_full", advice="free space there")
    return InvalidArgument(f"{path}: {error.strerror}", code="path_unwritable")


def _damaged(problem: str) -> DataLoss:
    return DataLoss(
        f"the archive is damaged: {problem}", code="archive_damaged", advice="export the snapshot again"
    )


def _refused(problem: str) -> InvalidArgument:
    return InvalidArgument(f"no archive of a snapshot: {problem}", code="archive_refused")
