"""Request targets of the file routes: paths and users quoted into a query. Pure."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import quote

from sandkeeper.core.errors import InvalidArgument

OCTETS = "application/octet-stream"


def file_target(route: str, *, path: str | None = None, user: str | None = None, more: str = "") -> str:
    """Return the route with its query; a path that is no Unicode goes as the bytes it came from.

    Raises:
        InvalidArgument: `request_not_encodable`.
    """
    words = [] if path is None else [f"path={_quoted(path)}"]
    if user is not None:
        words.append(f"username={_quoted(user)}")
    if more:
        words.append(more)
    return f"{route}?{'&'.join(words)}" if words else route


async def once(data: bytes) -> AsyncIterator[bytes]:
    """Yield `data`."""
    yield data


def _quoted(text: str) -> str:
    try:
        return quote(text.encode("utf-8", "surrogateescape"), safe="")
    except UnicodeEncodeError as error:
        raise InvalidArgument("a path that is no Unicode", code="request_not_encodable") from error
