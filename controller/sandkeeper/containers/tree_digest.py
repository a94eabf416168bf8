"""The hash of a file tree, from the tar stream an engine gives of it.

Pure over a stream of chunks: owns what counts as the same tree (names, types, modes, owners, sizes, whole
seconds of times, links, attributes, contents) and that memory stays flat. Never talks to an engine.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, cast

READ_BYTES = 256 * 1024
ENGINES_OWN = frozenset(
    {
        ".dockerenv",
        "dev",
        "dev/console",
        "dev/pts",
        "dev/shm",
        "etc/hostname",
        "etc/hosts",
        "etc/mtab",
        "etc/resolv.conf",
    }
)
"""What the engine makes anew in every container it creates, whatever the image holds there."""
_TOUCHED = "etc"
_WHOLE = 2**256


@dataclass(frozen=True, slots=True)
class TreeDigest:
    """What a tree hashes to.

    Attributes:
        sha256: Sum of the hashes of all entries, so that their order in the stream does not count.
        entry_count: How many entries there were.
    """

    sha256: str
    entry_count: int


class ChunkReader:
    """The reading side of a file over an iterator of chunks."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks: Iterator[bytes] = iter(chunks)
        self._left = bytearray()

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes, fewer at the end only; all that is left for a negative size."""
        while size < 0 or len(self._left) < size:
            chunk = next(self._chunks, None)
            if chunk is None:
                break
            self._left += chunk
        end = len(self._left) if size < 0 else size
        taken = bytes(self._left[:end])
        del self._left[:end]
        return taken


def as_file(chunks: Iterable[bytes]) -> IO[bytes]:
    """Return what `tarfile` needs of a file, over a stream of chunks: it only ever reads forward."""
    return cast("IO[bytes]", ChunkReader(chunks))


def digest_of(chunks: Iterable[bytes]) -> TreeDigest:
    """Return the digest of the tree in a tar stream.

    Raises:
        tarfile.TarError: It is no tar stream, or cut.
    """
    total, count = 0, 0
    with tarfile.open(fileobj=as_file(chunks), mode="r|", bufsize=READ_BYTES) as archive:
        while (member := archive.next()) is not None:
            name = member.name.removeprefix("./").rstrip("/")
            if name and name not in ENGINES_OWN:
                total += _hash_of(name, member, archive)
                count += 1
            archive.members = []  # type: ignore[attr-defined]  # the library keeps all it has seen
    return TreeDigest(f"{total % _WHOLE:064x}", count)


def _hash_of(name: str, member: tarfile.TarInfo, archive: tarfile.TarFile) -> int:
    content = hashlib.sha256()
    file = archive.extractfile(member) if member.isreg() else None
    while file is not None and (piece := file.read(READ_BYTES)):
        content.update(piece)
    attributes = sorted(item for item in member.pax_headers.items() if item[0].startswith("SCHILY.xattr."))
    shown = (
        name,
        member.type,
        member.mode,
        member.uid,
        member.gid,
        member.size if member.isreg() else 0,
        int(member.mtime) if name != _TOUCHED else 0,
        member.linkname,
        member.devmajor if member.isdev() else 0,
        member.devminor if member.isdev() else 0,
        attributes,
        content.hexdigest(),
    )
    return int.from_bytes(hashlib.sha256(repr(shown).encode("utf-8", "surrogateescape")).digest(), "big")
