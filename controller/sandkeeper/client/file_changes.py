"""Files of a sandbox beyond reading and writing: change, search, watch.

Owns which of them may be repeated after a cut. Paths are paths of the box; the host opens none of them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from sandkeeper.boxd.answers import FileEntry
from sandkeeper.boxd.file_search import GLOB_LIMIT, GREP_LIMIT, Globbed, GrepEnd, GrepMatch
from sandkeeper.boxd.file_watch import FileEvent
from sandkeeper.client.boxed import Boxed
from sandkeeper.client.boxes import wants_renewal
from sandkeeper.core.errors import ResourceExhausted, SandkeeperError

WATCH_PAUSE_S = 0.2


class FileChanges(Boxed):
    """The part of `sandbox.files` that is not about content and trees."""

    async def append(self, path: str, data: bytes | str, *, user: str | None = None) -> int:
        """Add to the end of a file, which is made if missing; return its size. Not repeated by us once begun."""
        content = data.encode() if isinstance(data, str) else bytes(data)
        appended = await self._with_box(
            lambda link: link.files.append(path, data=content, user=user), is_repeatable=False
        )
        return appended.size_bytes

    async def lstat(self, path: str, *, user: str | None = None) -> FileEntry:
        """Return what lies at `path` itself: a link as a link, with the text in it as its target.

        Raises:
            NotFound: Nothing does.
        """
        return await self._with_box(lambda link: link.files.lstat(path, user=user))

    async def copy(
        self,
        path: str,
        destination: str,
        *,
        recursive: bool = False,
        preserve_owner: bool = False,
        user: str | None = None,
    ) -> FileEntry:
        """Copy a file, or with `recursive` a folder; links inside are copied as links.

        Raises:
            AlreadyExists: The destination is a folder.
            InvalidArgument: `is_a_folder` without `recursive`.
        """
        return await self._with_box(
            lambda link: link.files.copy(
                path, destination=destination, recursive=recursive, preserve_owner=preserve_owner, user=user
            ),
            is_repeatable=False,
        )

    async def chmod(self, path: str, mode: int, *, recursive: bool = False, user: str | None = None) -> None:
        """Set permission bits. May be repeated."""
        await self._with_box(lambda link: link.files.chmod(path, mode=mode, recursive=recursive, user=user))

    async def chown(self, path: str, owner: str, *, recursive: bool = False, user: str | None = None) -> None:
        """Give to `owner`: a name or number, `:group` after it changes the group too. May be repeated."""
        await self._with_box(lambda link: link.files.chown(path, owner=owner, recursive=recursive, user=user))

    async def symlink(self, path: str, target: str, *, user: str | None = None) -> FileEntry:
        """Make `path` a symbolic link with the text `target`.

        Raises:
            AlreadyExists: Something lies at `path`.
        """
        return await self._with_box(
            lambda link: link.files.symlink(path, target=target, user=user), is_repeatable=False
        )

    async def glob(
        self, pattern: str, *, root: str = "", limit: int = GLOB_LIMIT, user: str | None = None
    ) -> tuple[str, ...]:
        """Return the paths below `root` that match, sorted: `*`, `?`, `[..]`, and `**` for any number of folders.

        Raises:
            ResourceExhausted: More than `limit` match (`too_many_found`).
        """
        found: Globbed = await self._with_box(
            lambda link: link.files.glob(pattern, root=root, limit=limit, user=user)
        )
        if found.is_truncated:
            raise ResourceExhausted(f"glob {pattern}: more than {limit} paths", code="too_many_found")
        return found.paths

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
        """Yield the lines below `root` that match a regular expression (RE2), searched in the box.

        The last item is a `GrepEnd`: it says how much was looked at, and whether `limit` cut it. Without one the
        search is not over: the iteration raises.
        """
        stream = self._stream(
            lambda link: link.files.grep(
                pattern,
                root=root,
                include=include,
                limit=limit,
                ignore_case=ignore_case,
                ignore_binary=ignore_binary,
                user=user,
            )
        )
        async with aclosing(stream) as found:
            async for item in found:
                yield item

    async def watch(
        self, path: str, *, recursive: bool = False, user: str | None = None
    ) -> AsyncGenerator[FileEvent, None]:
        """Yield what happens in the folder `path`, for ever; close it (`aclosing`) or break to end.

        The first event is `ready`: what happens after it is seen. After a cut the folder is watched anew and an
        `overflow` says that events may be missing; so it does when too many came at once.
        """
        is_first = True
        while True:
            try:
                opening = self._stream(lambda link: link.files.watch(path, recursive=recursive, user=user))
                async with aclosing(opening) as events:
                    async for event in events:
                        if event.change != "ready":
                            yield event
                        else:
                            yield event if is_first else FileEvent("overflow", "")
                            is_first = False
            except SandkeeperError as error:
                if is_first or not wants_renewal(error):
                    raise
            await self._ports.sleep(WATCH_PAUSE_S)
            await self._boxes.renew(self._sandbox_id)
