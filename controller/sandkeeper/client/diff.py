"""What changed in a tree: a list of changes, and a patch of the texts among them.

Pure: two manifests and some contents in, changes and text out. The patch is in git's form, so `git apply` and
`patch -p1` take it; what it cannot carry (binary or very large files, devices, attributes) it names.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from sandkeeper.boxd.file_search import ManifestEntry

ChangeKind = Literal["added", "removed", "modified", "metadata"]

OURS = frozenset(
    {
        ".dockerenv",
        ".sandkeeper",
        ".sandkeeper-metadata",
        "etc/hostname",
        "etc/hosts",
        "etc/mtab",
        "etc/resolv.conf",
        "run/sandkeeper",
    }
)
"""Paths that belong to the runtime and differ in each."""

_NO_END = "\n\\ No newline at end of file\n"


@dataclass(frozen=True, slots=True)
class Change:
    """One path that is not as it was.

    Attributes:
        path: Absolute path.
        kind: `added`, `removed`, `modified` (type, content or link), `metadata` (mode, owner, attributes only).
        before: What lay there, if anything did.
        after: What lies there, if anything does.
    """

    path: str
    kind: ChangeKind
    before: ManifestEntry | None
    after: ManifestEntry | None


@dataclass(frozen=True, slots=True)
class Contents:
    """A changed file's bytes on both sides; None where there is no such file."""

    before: bytes | None
    after: bytes | None


@dataclass(frozen=True, slots=True)
class Diff:
    """What changed, sorted by path. Times of change are no change.

    Attributes:
        since: The snapshot it is compared with.
        changes: All of them.
        contents: Bytes of the changed files that are small enough for a patch, by path.
    """

    since: str
    changes: tuple[Change, ...]
    contents: Mapping[str, Contents]

    def patch(self) -> str:
        """Return a patch in git's form; files it cannot carry are named in it."""
        return "".join(text for change in self.changes for text in _patched(change, self.contents))


def compare(before: Mapping[str, ManifestEntry], after: Mapping[str, ManifestEntry]) -> tuple[Change, ...]:
    """Return what differs between two manifests of `/`."""
    changes = [
        Change(f"/{path}", kind, before.get(path), after.get(path))
        for path in before.keys() | after.keys()
        if path not in OURS and (kind := _kind(before.get(path), after.get(path))) is not None
    ]
    return tuple(sorted(changes, key=lambda change: change.path))


def is_text(data: bytes) -> bool:
    """Return whether `data` is UTF-8 without zero bytes."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in data


def _kind(before: ManifestEntry | None, after: ManifestEntry | None) -> ChangeKind | None:
    if before is None or after is None:
        return "added" if before is None else "removed"
    if _content(before) != _content(after):
        return "modified"
    return None if _metadata(before) == _metadata(after) else "metadata"


def _content(entry: ManifestEntry) -> tuple[object, ...]:
    return entry.type, entry.size_bytes, entry.link, entry.sha256


def _metadata(entry: ManifestEntry) -> tuple[object, ...]:
    return entry.mode, entry.uid, entry.gid, entry.xattrs


def _patched(change: Change, contents: Mapping[str, Contents]) -> Iterator[str]:
    was, now = _git_mode(change.before), _git_mode(change.after)
    if was is None and now is None:
        return  # folders, pipes, devices: git has no word for them
    if was is not None and now is not None and was[:2] != now[:2]:
        # Another type is another file to git.
        yield from _patched(
            Change(change.path, "removed", change.before, None), _one_side(contents, change, 0)
        )
        yield from _patched(Change(change.path, "added", None, change.after), _one_side(contents, change, 1))
        return
    if change.kind == "metadata" and was == now:
        return
    old, new = _quoted(f"a{change.path}"), _quoted(f"b{change.path}")
    yield f"diff --git {old} {new}\n"
    if was is None:
        yield f"new file mode {now}\n"
        old = "/dev/null"
    elif now is None:
        yield f"deleted file mode {was}\n"
        new = "/dev/null"
    elif was != now:
        yield f"old mode {was}\nnew mode {now}\n"
    held = contents.get(change.path)
    if change.kind == "metadata":
        return
    if held is None or not is_text(held.before or b"") or not is_text(held.after or b""):
        yield f"Binary files {old} and {new} differ\n"
        return
    yield from _hunks(held, old=old, new=new)


def _hunks(held: Contents, *, old: str, new: str) -> Iterator[str]:
    before, after = _lines(held.before), _lines(held.after)
    for line in difflib.unified_diff(before, after, old, new):
        yield line if line.endswith("\n") else line + _NO_END


def _lines(data: bytes | None) -> list[str]:
    """Cut at newlines only: `splitlines` would cut at form feeds too."""
    text = (data or b"").decode()
    *whole, rest = text.split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])


def _one_side(contents: Mapping[str, Contents], change: Change, side: int) -> dict[str, Contents]:
    held = contents.get(change.path)
    if held is None:
        return {}
    return {change.path: Contents(held.before, None) if side == 0 else Contents(None, held.after)}


def _git_mode(entry: ManifestEntry | None) -> str | None:
    """Return the mode as git says it: file, executable or link; None for what it does not know."""
    if entry is None or entry.type not in ("file", "symlink"):
        return None
    if entry.type == "symlink":
        return "120000"
    return "100755" if entry.mode & 0o100 else "100644"


def _quoted(path: str) -> str:
    """Quote as git does what a patch could not hold in one line."""
    if all(character.isprintable() and character not in '"\\' for character in path):
        return path
    escaped = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}"
        for byte in path.encode("utf-8", "surrogateescape")
    )
    return f'"{escaped}"'
