"""Comparing a sandbox with a snapshot: both trees are listed in their boxes, and the contents that differ are read.

Owns the throw-away fork of the snapshot. What is running may go on writing while it is read: a difference is as old
as its own reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

from sandkeeper.boxd.file_search import ManifestEntry
from sandkeeper.client.boxed import Boxed
from sandkeeper.client.diff import Change, Contents, Diff, compare
from sandkeeper.core.errors import NotFound, ResourceExhausted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sandkeeper.client.sandbox import Sandbox

FORK_LIFETIME_S = 900.0
MOST_PATHS = 1_000_000
PATCHED_FILE_BYTES = 1024 * 1024
PATCHED_BYTES = 32 * 1024 * 1024


class Tree(Boxed):
    """The file tree of one box, read as root."""

    async def manifest(self) -> dict[str, ManifestEntry]:
        """Return all there is, with hashes, by path.

        Raises:
            ResourceExhausted: `too_many_found`: more than a million paths.
        """
        found: dict[str, ManifestEntry] = {}
        stream = self._stream(lambda link: link.files.manifest("/", has_hashes=True, user="root"))
        async with aclosing(stream) as entries:
            async for entry in entries:
                found[entry.path] = entry
                if len(found) > MOST_PATHS:
                    raise ResourceExhausted(f"more than {MOST_PATHS} paths", code="too_many_found")
        return found

    async def content(self, entry: ManifestEntry | None) -> bytes | None:
        """Return the bytes of a file, the target of a link, None for anything else."""
        if entry is None or entry.type not in ("file", "symlink"):
            return None
        if entry.link is not None:
            return entry.link.encode("utf-8", "surrogateescape")
        try:
            return await self._with_box(
                lambda link: link.files.read(f"/{entry.path}", user="root", length=PATCHED_FILE_BYTES + 1)
            )
        except NotFound:
            return None  # it went away meanwhile


async def difference(
    sandbox: Tree,
    snapshot_id: str,
    *,
    forking: Callable[..., Awaitable[tuple[Sandbox, ...]]],
    tree_of: Callable[[Sandbox], Tree],
) -> Diff:
    """Return what differs between `sandbox` and a snapshot."""
    async with _forked(snapshot_id, forking=forking) as fork:
        base = tree_of(fork)
        before, after = await asyncio.gather(base.manifest(), sandbox.manifest())
        changes = compare(before, after)
        contents = await _contents(changes, base=base, sandbox=sandbox)
    return Diff(since=snapshot_id, changes=changes, contents=contents)


async def _contents(changes: tuple[Change, ...], *, base: Tree, sandbox: Tree) -> dict[str, Contents]:
    held: dict[str, Contents] = {}
    left_bytes = PATCHED_BYTES
    for change in changes:
        sizes = [side.size_bytes for side in (change.before, change.after) if side is not None]
        if change.kind == "metadata" or max(sizes) > PATCHED_FILE_BYTES or sum(sizes) > left_bytes:
            continue
        left_bytes -= sum(sizes)
        pair = Contents(await base.content(change.before), await sandbox.content(change.after))
        if max(len(pair.before or b""), len(pair.after or b"")) <= PATCHED_FILE_BYTES:
            held[change.path] = pair
    return held


@asynccontextmanager
async def _forked(snapshot_id: str, *, forking: Callable[..., Awaitable[Any]]) -> AsyncIterator[Sandbox]:
    (fork,) = await forking(snapshot_id, 1, lifetime_s=FORK_LIFETIME_S, on_lost="stop")
    try:
        yield fork
    finally:
        await fork.destroy()
