"""The calling side: one try, and what is known of it when it fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from sandkeeper.boxd.paths import SocketAddress
from sandkeeper.control.caller import ControlCaller
from sandkeeper.control.server import ControlServer
from sandkeeper.core.errors import FailedPrecondition, Internal, Unavailable
from tests.unit.control.test_server import TABLE

OK_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: "


@asynccontextmanager
async def peer_that(answers: bytes | None, *, at: Path) -> AsyncIterator[ControlCaller]:
    """A peer that reads a request, writes these bytes and hangs up; None: it only hangs."""
    path = at / "control.sock"
    served: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        await reader.readuntil(b"\r\n\r\n")
        if answers is None:
            await reader.read()
        else:
            writer.write(answers)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_unix_server(serve, str(path))
    caller = ControlCaller(path)
    try:
        yield caller
    finally:
        await caller.close()
        server.close()
        await server.wait_closed()
        await asyncio.gather(*(task for task in served if task is not None))


def answer(document: object) -> bytes:
    body = json.dumps(document).encode()
    return OK_HEAD + str(len(body)).encode() + b"\r\n\r\n" + body


async def test_a_call_and_its_answer(tmp_path: Path) -> None:
    async with peer_that(answer({"ok": {"n": 1}}), at=tmp_path) as caller:
        assert await caller.call("double", {}) == {"n": 1}
        assert await caller.call("double", {}) == {"n": 1}


async def test_an_answer_of_nothing_is_an_answer(tmp_path: Path) -> None:
    async with peer_that(answer({"ok": None}), at=tmp_path) as caller:
        assert await caller.call("delete", {}) is None


async def test_an_error_is_raised_as_it_was(tmp_path: Path) -> None:
    told = FailedPrecondition("no", code="sandbox_paused", sandbox_id="sb1", admitted="yes", details={"n": 1})
    async with peer_that(answer({"error": told.to_wire()}), at=tmp_path) as caller:
        with pytest.raises(FailedPrecondition) as refusal:
            await caller.call("pause", {})
    assert refusal.value == told


async def test_nobody_there_means_nothing_was_admitted(tmp_path: Path) -> None:
    for path in (tmp_path / "control.sock", tmp_path / "no" / "folder.sock"):
        caller = ControlCaller(path)
        with pytest.raises(Unavailable) as refusal:
            await caller.call("pause", {})
        await caller.close()
        assert (refusal.value.code, refusal.value.admitted) == ("owner_unreachable", "no")


async def test_a_socket_nobody_listens_on_any_more(tmp_path: Path) -> None:
    server = ControlServer(tmp_path / "control.sock", table=TABLE)
    await server.start()
    await server.close()
    caller = ControlCaller(tmp_path / "control.sock")
    with pytest.raises(Unavailable) as refusal:
        await caller.call("double", {"number": 1})
    await caller.close()
    assert refusal.value.admitted == "no"


@pytest.mark.parametrize(
    "words",
    [b"", b"HTTP/1.1 200 OK\r\n", OK_HEAD + b'100\r\n\r\n{"ok": 1', b"what?\r\n\r\n"],
    ids=["nothing", "half a head", "half a body", "no HTTP"],
)
async def test_a_server_that_dies_in_the_middle_leaves_it_unknown(tmp_path: Path, words: bytes) -> None:
    async with peer_that(words, at=tmp_path) as caller:
        with pytest.raises(Unavailable) as refusal:
            await caller.call("pause", {})
    assert (refusal.value.code, refusal.value.admitted) == ("owner_unreachable", "unknown")
    assert refusal.value.retry_after_s


async def test_an_answer_that_takes_too_long_leaves_it_unknown(tmp_path: Path) -> None:
    async with peer_that(None, at=tmp_path) as caller:
        with pytest.raises(Unavailable) as refusal:
            await caller.call("pause", {}, timeout_s=0.01)
    assert refusal.value.admitted == "unknown"


@pytest.mark.parametrize("document", [{}, [], {"answer": 1}, "ok"])
async def test_what_is_no_answer_is_a_defect(tmp_path: Path, document: object) -> None:
    async with peer_that(answer(document), at=tmp_path) as caller:
        with pytest.raises(Internal) as refusal:
            await caller.call("pause", {})
    assert (refusal.value.code, refusal.value.admitted) == ("control_answer_invalid", "unknown")


async def test_paths_longer_than_an_address_work_on_both_sides(tmp_path: Path) -> None:
    path = tmp_path / ("d" * 100) / ("e" * 100) / "control.sock"
    server = ControlServer(path, table=TABLE)
    path.parent.mkdir(parents=True)
    await server.start()
    caller = ControlCaller(path)
    assert await caller.call("double", {"number": 4}) == {"number": 8}
    await caller.close()
    await server.close()
    assert len(SocketAddress(path).path.name) < 20


async def test_a_long_path_s_folder_is_made_before_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / ("d" * 100) / ("e" * 100) / "control.sock"
    server = ControlServer(path, table=TABLE)
    await server.start()
    await server.close()
    assert path.parent.is_dir()
