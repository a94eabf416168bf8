"""A boxd that says exactly what a test tells it to, byte for byte, over a unix socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from sandkeeper.boxd import BoxdLink, Deadlines
from sandkeeper.boxd.wire import encode_frame
from sandkeeper.ports import real_ports

Answer = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

QUICK = Deadlines(connect_s=0.5, answer_s=0.2, silence_s=0.2, keepalive_s=1, grace_s=0.1)
"""Deadlines for answers that never come."""
PATIENT = Deadlines(connect_s=5, answer_s=20, silence_s=20, keepalive_s=1, grace_s=5)
"""Deadlines that a busy machine does not reach."""


def unary(document: bytes, *, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        status.encode(),
        len(document),
        document,
    )


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/connect+json\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def messages(*documents: dict[str, object]) -> bytes:
    """Return the messages of a stream, each in a chunk of its own."""
    return b"".join(chunk(encode_frame(document)) for document in documents)


def stream(*documents: dict[str, object], end: dict[str, object] | None = None) -> bytes:
    """Return a whole streamed answer: the messages, the end-of-stream frame, the last chunk."""
    return STREAM_HEAD + messages(*documents) + chunk(encode_frame(end or {}, is_end=True)) + b"0\r\n\r\n"


def started(**ours: object) -> dict[str, object]:
    return {"event": {"start": {"pid": 7, "sandkeeper": {"runId": "r1", "generation": 3, **ours}}}}


def ended(**ours: object) -> dict[str, object]:
    return {
        "event": {
            "end": {
                "exitCode": 0,
                "exited": True,
                "status": "exit status 0",
                "sandkeeper": {"outcome": "exited", **ours},
            }
        }
    }


def says(data: bytes) -> Answer:
    """Answer every request with `data` and keep the connection."""

    async def answer(request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    return answer


def hangs_up_after(data: bytes) -> Answer:
    """Answer with `data` and close."""

    async def answer(request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        writer.close()

    return answer


@asynccontextmanager
async def boxd_that(
    answer: Answer, *, at: Path, deadlines: Deadlines = PATIENT
) -> AsyncIterator[tuple[BoxdLink, list[bytes]]]:
    """Serve `answer` at a socket in `at` and give a link to it, with the request heads it has seen."""
    heads: list[bytes] = []
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                heads.append(head)
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        head += await reader.readexactly(int(line.split(b":")[1]))
                await answer(head, reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            return
        finally:
            tasks.discard(task)
            writer.close()

    path = at / "control.sock"
    server = await asyncio.start_unix_server(serve, path, limit=1024 * 1024)
    link = BoxdLink(path, generation=3, epoch=5, ports=real_ports(), deadlines=deadlines)
    try:
        yield link, heads
    finally:
        await link.aclose()
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
