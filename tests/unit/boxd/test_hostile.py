"""A hostile box: whatever it answers, the host gets a typed error in bounded time and memory."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandkeeper.boxd import BoxdLink
from sandkeeper.core.errors import Aborted, ResourceExhausted, SandkeeperError
from sandkeeper.core.ids import RunId
from sandkeeper.ports import real_ports
from tests.unit.boxd.peer import (
    QUICK,
    STREAM_HEAD,
    Answer,
    boxd_that,
    chunk,
    ended,
    hangs_up_after,
    messages,
    says,
    started,
    stream,
    unary,
)

R1 = RunId("r1")
OK = b"HTTP/1.1 200 OK\r\n"
MEMORY_LIMIT_BYTES = 40 * 1024 * 1024


def endless(opening: bytes, piece: bytes) -> Answer:
    """Answer with `opening` and then `piece` for ever, as fast as it is taken."""

    async def answer(request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(opening)
        while not writer.is_closing():
            writer.write(piece)
            await writer.drain()

    return answer


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    tracemalloc.start()
    yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MEMORY_LIMIT_BYTES


INVALID_UNARY = {
    "no HTTP": b"SSH-2.0-boxd\r\n\r\n",
    "no JSON": unary(b"<html>"),
    "an array": unary(b"[1]"),
    "no protocol": unary(b'{"birthId":"x","state":"running"}'),
    "another protocol": unary(b'{"protocol":2,"birthId":"x","state":"running"}'),
    "a state of its own": unary(b'{"protocol":1,"birthId":"x","state":"root"}'),
    "a long name": unary(b'{"protocol":1,"state":"running","birthId":"%b"}' % (b"x" * 300)),
    "a redirect": b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n",
    "an upgrade": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nxxxx",
    "an error without document": unary(b"oops", status="500 Internal Server Error"),
    "two answers": unary(b"{}") + unary(b"{}"),
    "both lengths": OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
    "a length that is none": OK + b"Content-Length: -1\r\n\r\n",
    "a long header": OK + b"A: " + b"x" * 400_000 + b"\r\n\r\n",
    "many headers": OK + b"A: b\r\n" * 40_000 + b"\r\n",
    "no end of 1xx": b"HTTP/1.1 100 Continue\r\n\r\n" * 20,
}


@pytest.mark.parametrize("name", INVALID_UNARY)
async def test_a_broken_unary_answer(name: str, tmp_path: Path) -> None:
    async with boxd_that(says(INVALID_UNARY[name]), at=tmp_path) as (link, _):
        with pytest.raises(Aborted) as caught:
            await link.hello(timeout_s=20)
    assert caught.value.code == "box_answer_invalid"


ENDLESS = {
    "headers": (OK, b"A: b\r\n" * 100),
    "one header": (OK + b"A: ", b"x" * 1000),
    "a status line": (b"HTTP/1.1 200 ", b"O" * 1000),
    "a body": (OK + b"Content-Length: 99999999999\r\n\r\n", b"x" * 10_000),
    "chunks": (OK + b"Transfer-Encoding: chunked\r\n\r\n", chunk(b"x" * 10_000)),
    "a chunk extension": (OK + b"Transfer-Encoding: chunked\r\n\r\n2;", b"x" * 1000),
    "trailers": (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"A: b\r\n" * 100),
    "informational answers": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 10),
}


@pytest.mark.parametrize("name", ENDLESS)
async def test_an_answer_without_end(name: str, tmp_path: Path) -> None:
    async with boxd_that(endless(*ENDLESS[name]), at=tmp_path) as (link, _):
        with pytest.raises(Aborted) as caught:
            await link.hello(timeout_s=20)
    assert caught.value.code == "box_answer_invalid"


INVALID_STREAMS = {
    "a huge frame": (STREAM_HEAD + chunk(b"\0\x7f\xff\xff\xff"), "unknown"),
    "another flag": (STREAM_HEAD + chunk(b"\x09\0\0\0\0"), "unknown"),
    "no events": (stream(), "unknown"),
    "an end without a start": (stream(ended()), "unknown"),
    "a start without an end": (stream(started()), "yes"),
    "a stop inside a frame": (STREAM_HEAD + chunk(b"\0\0\0\0\x05{") + b"0\r\n\r\n", "unknown"),
    "a wrong offset": (
        stream(started(), {"event": {"data": {"stdout": "aGk=", "sandkeeper": {"offset": 7}}}}),
        "yes",
    ),
    "an exit code of its own": (
        stream(
            started(),
            {"event": {"end": {"exitCode": 4096, "exited": True, "sandkeeper": {"outcome": "exited"}}}},
        ),
        "yes",
    ),
}


@pytest.mark.parametrize("name", INVALID_STREAMS)
async def test_a_broken_run_stream(name: str, tmp_path: Path) -> None:
    data, admitted = INVALID_STREAMS[name]
    async with boxd_that(says(data), at=tmp_path) as (link, _):
        with pytest.raises(Aborted) as caught:
            await link.runs.collect(["x"], run_id=R1)
    assert (caught.value.code, caught.value.admitted) == ("box_answer_invalid", admitted)


CUTS = {"at once": b"", "in the head": OK, "in the body": OK + b"Content-Length: 9\r\n\r\n{"}


@pytest.mark.parametrize("name", CUTS)
async def test_a_cut_answer(name: str, tmp_path: Path) -> None:
    async with boxd_that(hangs_up_after(CUTS[name]), at=tmp_path) as (link, _):
        with pytest.raises(Aborted) as caught:
            await link.hello(timeout_s=20)
    assert (caught.value.code, caught.value.admitted) == ("connection_lost", "unknown")


SILENCES = {
    "at once": b"",
    "in the head": OK,
    "after the head": STREAM_HEAD,
    "in a run": STREAM_HEAD + messages(started()),
}


@pytest.mark.parametrize("name", SILENCES)
async def test_a_stream_that_falls_silent(name: str, tmp_path: Path) -> None:
    async with boxd_that(says(SILENCES[name]), at=tmp_path, deadlines=QUICK) as (link, _):
        with pytest.raises(SandkeeperError) as caught:
            await link.runs.collect(["x"], run_id=R1)
    assert caught.value.code == "runtime_silent"
    assert caught.value.admitted == ("yes" if name == "in a run" else "unknown")


async def test_a_run_that_only_says_it_lives_ends_with_its_timeout(tmp_path: Path) -> None:
    alive = messages({"event": {"keepalive": {}}})
    async with boxd_that(
        endless(STREAM_HEAD + messages(started()), alive),
        at=tmp_path,
        deadlines=QUICK,
    ) as (link, _):
        with pytest.raises(SandkeeperError) as caught:
            await link.runs.collect(["x"], run_id=R1, timeout_ms=50)
    assert (caught.value.code, caught.value.admitted) == ("runtime_silent", "yes")


async def test_endless_output_is_counted_not_kept(tmp_path: Path) -> None:
    piece = b"A" * 43_692
    sent = 0

    async def answer(request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(STREAM_HEAD + messages(started()))
        for _ in range(1000):
            body = b'{"event":{"data":{"stdout":"%b"}}}' % piece
            writer.write(chunk(b"\0" + len(body).to_bytes(4, "big") + body))
            sent += len(piece) * 3 // 4
            await writer.drain()
        writer.write(stream(ended(stdoutBytes=sent))[len(STREAM_HEAD) :])

    async with boxd_that(answer, at=tmp_path) as (link, _):
        outcome = await link.runs.collect(["yes"], run_id=R1, max_output_bytes=1000)
    assert len(outcome.stdout_bytes) == 1000
    assert outcome.stdout_size_bytes == sent > 30_000_000


async def test_a_file_without_end_is_cut_at_the_bound(tmp_path: Path) -> None:
    answer = endless(OK + b"Transfer-Encoding: chunked\r\n\r\n", chunk(b"x" * 10_000))
    async with boxd_that(answer, at=tmp_path) as (link, _):
        with pytest.raises(ResourceExhausted) as caught:
            await link.files.read("/x", limit_bytes=1_000_000)
    assert caught.value.code == "file_too_large"


async def test_a_box_that_does_not_take_a_file_is_not_waited_for(tmp_path: Path) -> None:
    async def takes_nothing(
        request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await asyncio.Event().wait()

    async with boxd_that(takes_nothing, at=tmp_path, deadlines=QUICK) as (link, _):
        with pytest.raises(SandkeeperError) as caught:
            await link.files.write("/x", data=b"x" * 8_000_000)
    assert caught.value.code == "runtime_silent"


async def test_a_peer_that_stops_accepting_is_not_waited_for(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(tmp_path / "s"))
        deaf.listen(0)
        links = [
            BoxdLink(tmp_path / "s", generation=1, epoch=1, ports=real_ports(), deadlines=QUICK)
            for _ in range(4)
        ]
        for link in links:
            with pytest.raises(SandkeeperError) as caught:
                await link.hello(timeout_s=0.05)
            assert caught.value.code in ("runtime_silent", "connection_lost", "runtime_unreachable")
        for link in links:
            await link.aclose()
