"""Looking for files in the box: glob, grep, and the manifest of a tree.

Owns those routes of boxd. boxd follows no links and stays on the root's own file system; bounds hold on this side
too.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from sandkeeper.boxd import errors
from sandkeeper.boxd.answers import Answer, checked
from sandkeeper.boxd.file_targets import file_target
from sandkeeper.boxd.line_stream import json_lines
from sandkeeper.boxd.transport import Transport, basic_user
from sandkeeper.boxd.wire import encode_json
from sandkeeper.core.errors import InvalidArgument

GLOB_LIMIT = 10_000
GREP_LIMIT = 1000
MOST_FOUND = 100_000
MOST_ENTRIES = 4_000_000

_Path = Annotated[str, Field(max_length=4096)]
_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Small = Annotated[int, Field(ge=0, lt=2**32)]


class Globbed(Answer):
    """Paths that matched, absolute and sorted; `is_truncated` when there are more."""

    paths: Annotated[tuple[_Path, ...], Field(max_length=MOST_FOUND)] = ()
    is_truncated: Annotated[bool, Field(alias="truncated")] = False


class GrepMatch(Answer):
    """A line that matched.

    Attributes:
        path: Absolute path of its file.
        line: Its number, from 1.
        text: The line, at most 4 KiB of it.
        offset: Place of its first byte in the file.
        is_cut: Whether `text` is not all of it.
    """

    path: _Path
    line: _Count
    text: Annotated[str, Field(max_length=16 * 1024)]
    offset: _Count
    is_cut: Annotated[bool, Field(alias="cut")] = False


class GrepEnd(Answer):
    """How much was looked at: files, matches, files that could not be read, and whether a bound ended it."""

    files: _Count = 0
    matches: _Count = 0
    unreadable: _Count = 0
    is_truncated: Annotated[bool, Field(alias="truncated")] = False


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """One path of a tree: `path` is relative to its root, which itself is `.`."""

    path: str
    type: str
    mode: int
    uid: int
    gid: int
    size_bytes: int
    mtime_ns: int
    link: str | None
    xattrs: tuple[tuple[str, str], ...]
    sha256: str | None


class _Manifested(Answer):
    path: _Path
    type: Literal["file", "folder", "symlink", "pipe", "socket", "char", "block"]
    mode: _Small
    uid: _Small
    gid: _Small
    size: _Count
    mtime_ns: int
    link: _Path | None = None
    xattrs: dict[str, str] = Field(default_factory=dict)
    sha256: Annotated[str | None, Field(max_length=64)] = None


class FileSearch:
    """Searches in one box, over its link's transport; `user` as in `Files`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def glob(
        self, pattern: str, *, root: str = "", limit: int = GLOB_LIMIT, user: str | None = None
    ) -> Globbed:
        """Return the paths below `root` that match: `*`, `?`, `[..]` in a component, `**` for any number of them.

        Raises:
            InvalidArgument: A bad pattern; `limit_invalid`.
        """
        _check_limit(limit)
        answer = await self._transport.unary(
            "POST",
            "/sandkeeper/v1/files/glob",
            {"pattern": pattern, "root": root, "limit": limit},
            step=f"glob {pattern}",
            wait_s=self._transport.deadlines.silence_s,
            user=user,
        )
        return checked(Globbed, answer, step=f"glob {pattern}")

    async def grep(
        self,
        pattern: str,
        *,
        root: str = "",
        include: Sequence[str] = (),
        limit: int = GREP_LIMIT,
        ignore_case: bool = False,
        ignore_binary: bool = True,
        user: str | None = None,
    ) -> AsyncGenerator[GrepMatch | GrepEnd, None]:
        """Yield the lines below `root` that match a regular expression (RE2 syntax); the last is a `GrepEnd`.

        Raises:
            InvalidArgument: A bad pattern; `limit_invalid`.
            Aborted: `box_answer_invalid`: the answer was cut.
        """
        _check_limit(limit)
        document = {
            "pattern": pattern,
            "root": root,
            "include": list(include),
            "limit": limit,
            "ignoreCase": ignore_case,
            "ignoreBinary": ignore_binary,
        }
        step = f"grep {pattern:.60}"
        lines = self._lines(
            "POST", "/sandkeeper/v1/files/grep", document, step=step, user=user, limit_lines=limit + 1
        )
        async with aclosing(lines) as found:
            async for line in found:
                if line.get("done") is True:
                    yield checked(GrepEnd, line, step=step)
                    return
                yield checked(GrepMatch, line, step=step)
        raise errors.invalid_answer("a search without its end", step=step, admitted="yes")

    async def manifest(
        self, path: str, *, has_hashes: bool = False, user: str | None = None
    ) -> AsyncGenerator[ManifestEntry, None]:
        """Yield every path below `path` on its own file system, links not followed.

        Raises:
            Aborted: `box_answer_invalid`, `connection_lost`: what was yielded is not all.
        """
        step = f"manifest {path}"
        target = file_target("/sandkeeper/v1/manifest", path=path, user=user, more=f"hash={int(has_hashes)}")
        lines = self._lines("GET", target, None, step=step, user=None, limit_lines=MOST_ENTRIES)
        async with aclosing(lines) as found:
            async for line in found:
                seen = checked(_Manifested, line, step=step)
                yield ManifestEntry(
                    path=seen.path,
                    type=seen.type,
                    mode=seen.mode,
                    uid=seen.uid,
                    gid=seen.gid,
                    size_bytes=seen.size,
                    mtime_ns=seen.mtime_ns,
                    link=seen.link,
                    xattrs=tuple(sorted(seen.xattrs.items())),
                    sha256=seen.sha256,
                )

    async def _lines(
        self,
        method: str,
        target: str,
        document: dict[str, Any] | None,
        *,
        step: str,
        user: str | None,
        limit_lines: int,
    ) -> AsyncGenerator[dict[str, Any], None]:
        body = b"" if document is None else encode_json(document)
        wait_s = self._transport.deadlines.silence_s
        exchange = await self._transport.begin(method, target, step=step, body=body, headers=basic_user(user))
        try:
            await exchange.expect(200, wait_s=wait_s)
            async with aclosing(json_lines(exchange, wait_s=wait_s, limit_lines=limit_lines)) as lines:
                async for line in lines:
                    yield line
        finally:
            exchange.close()


def _check_limit(limit: int) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST_FOUND:
        raise InvalidArgument(f"limit is 1 to {MOST_FOUND}, not {limit!r:.40}", code="limit_invalid")
