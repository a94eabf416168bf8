"""Searches, manifests and watches of a box that answers anything: typed items or a typed error, never half an end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandkeeper.boxd.file_search import GrepEnd, GrepMatch
from sandkeeper.boxd.file_watch import FileEvent
from sandkeeper.core.errors import InvalidArgument, NotFound, SandkeeperError
from tests.unit.boxd.peer import STREAM_HEAD, boxd_that, chunk, hangs_up_after, messages, stream, unary

LINES = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
MATCH = {"path": "/a", "line": 1, "text": "x", "offset": 0}
ENTRY = {"path": "a", "type": "file", "mode": 420, "uid": 0, "gid": 0, "size": 1, "mtimeNs": 5, "inode": 1}


def lines(*documents: dict[str, Any], end: bytes = b"0\r\n\r\n") -> bytes:
    body = b"".join(chunk(json.dumps(document).encode() + b"\n") for document in documents)
    return LINES + body + end


async def gathered(stream: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in stream]


async def test_matches_come_with_an_end_that_says_how_much_was_looked_at(tmp_path: Path) -> None:
    end = {"done": True, "files": 3, "matches": 1, "unreadable": 2, "truncated": True}
    async with boxd_that(hangs_up_after(lines(MATCH, end)), at=tmp_path) as (link, _):
        match, last = await gathered(link.files.grep("x"))
    assert match == GrepMatch(path="/a", line=1, text="x", offset=0)
    assert last == GrepEnd(files=3, matches=1, unreadable=2, is_truncated=True)


@pytest.mark.parametrize(
    "answer",
    [
        lines(MATCH, end=b""),
        lines({"path": "/a", "line": -1, "text": "x", "offset": 0}),
        lines(*[MATCH] * 5),
        lines({"path": "x" * 5000, "line": 1, "text": "", "offset": 0}),
    ],
    ids=["cut", "no line", "more than asked for", "a path too long"],
)
async def test_a_search_that_is_broken_is_no_result(tmp_path: Path, answer: bytes) -> None:
    async with boxd_that(hangs_up_after(answer), at=tmp_path) as (link, _):
        with pytest.raises(SandkeeperError) as broken:
            await gathered(link.files.grep("x", limit=3))
    assert broken.value.code in ("box_answer_invalid", "connection_lost")


async def test_a_search_without_its_end_is_no_result(tmp_path: Path) -> None:
    async with boxd_that(hangs_up_after(lines(MATCH)), at=tmp_path) as (link, _):
        with pytest.raises(SandkeeperError) as cut:
            await gathered(link.files.grep("x"))
    assert cut.value.code == "box_answer_invalid"


async def test_a_manifest_is_typed(tmp_path: Path) -> None:
    answer = lines(
        ENTRY, {**ENTRY, "path": "l", "type": "symlink", "link": "a", "xattrs": {"user.a": "eA=="}}
    )
    async with boxd_that(hangs_up_after(answer), at=tmp_path) as (link, _):
        plain, linked = await gathered(link.files.manifest("/"))
    assert (plain.path, plain.size_bytes, plain.mtime_ns, plain.link) == ("a", 1, 5, None)
    assert (linked.type, linked.link, linked.xattrs) == ("symlink", "a", (("user.a", "eA=="),))
    async with boxd_that(hangs_up_after(lines({**ENTRY, "type": "door"})), at=tmp_path) as (link, _):
        with pytest.raises(SandkeeperError) as unknown:
            await gathered(link.files.manifest("/"))
    assert unknown.value.code == "box_answer_invalid"


async def test_a_watch_has_a_beginning_events_and_overflows(tmp_path: Path) -> None:
    overflow = {"name": "", "type": "EVENT_TYPE_UNSPECIFIED", "sandkeeper": {"overflow": True}}
    answer = STREAM_HEAD + messages(
        {"start": {}},
        {"keepalive": {}},
        {"filesystem": {"name": "a", "type": "EVENT_TYPE_CREATE"}},
        {"filesystem": {"name": "b", "type": "EVENT_TYPE_OF_LATER"}},
        {"filesystem": overflow},
    )
    async with boxd_that(hangs_up_after(answer), at=tmp_path) as (link, _):
        events = link.files.watch("/tmp")
        seen = [await anext(events) for _ in range(3)]
        with pytest.raises(SandkeeperError) as cut:
            await anext(events)
    assert seen == [FileEvent("ready", ""), FileEvent("created", "a"), FileEvent("overflow", "")]
    assert cut.value.code == "connection_lost"


async def test_a_watch_that_is_refused_or_ends_says_so(tmp_path: Path) -> None:
    refusal = unary(b'{"code":"not_found","message":"no"}', status="404 Not Found")
    async with boxd_that(hangs_up_after(refusal), at=tmp_path) as (link, _):
        with pytest.raises(NotFound):
            await anext(link.files.watch("/nowhere"))
    async with boxd_that(hangs_up_after(stream({"start": {}})), at=tmp_path) as (link, _):
        with pytest.raises(SandkeeperError) as ended:
            await gathered(link.files.watch("/tmp"))
    assert ended.value.code == "box_answer_invalid"


async def test_bounds_are_checked_before_anything_is_sent(tmp_path: Path) -> None:
    async with boxd_that(hangs_up_after(b""), at=tmp_path) as (link, _):
        for work in (
            link.files.glob("*", limit=0),
            link.files.chmod("/a", mode=0o10000),
            anext(link.files.grep("x", limit=10**9)),
        ):
            with pytest.raises(InvalidArgument):
                await work
