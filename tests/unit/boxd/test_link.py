"""The link against a peer that keeps the contract: verbs, stamps, kept connections, collected runs."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from contextlib import aclosing
from pathlib import Path

import pytest

from sandkeeper.boxd import BoxdLink, RunEnded, RunOutput, RunStarted
from sandkeeper.boxd.wire import FrameDecoder
from sandkeeper.core.errors import Aborted, AlreadyExists, FailedPrecondition, InvalidArgument, Unavailable
from sandkeeper.core.ids import BirthId, RunId
from sandkeeper.ports import real_ports
from tests.unit.boxd.peer import (
    QUICK,
    STREAM_HEAD,
    boxd_that,
    ended,
    hangs_up_after,
    messages,
    says,
    started,
    stream,
    unary,
)

HELLO = {
    "protocol": 1,
    "build": "b1",
    "birthId": "sk-1",
    "generation": 3,
    "epoch": 5,
    "state": "running",
    "new": 1,
}
R1 = RunId("r1")


def output(data: bytes, *, offset: int, name: str = "stdout") -> dict[str, object]:
    return {"event": {"data": {name: b64encode(data).decode(), "sandkeeper": {"offset": offset}}}}


async def test_hello_is_typed_and_stamped(tmp_path: Path) -> None:
    async with boxd_that(says(unary(json.dumps(HELLO).encode())), at=tmp_path) as (link, heads):
        hello = await link.hello()
    assert (hello.birth_id, hello.generation, hello.epoch, hello.state) == ("sk-1", 3, 5, "running")
    assert b"Sandkeeper-Epoch: 5\r\n" in heads[0]
    assert b"Sandkeeper-Generation: 3\r\n" in heads[0]


async def test_calls_one_after_another_share_a_connection(tmp_path: Path) -> None:
    peers = set()

    async def answer(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.add(writer)
        writer.write(stream(started(), ended()) if b"/Start" in head else unary(json.dumps(HELLO).encode()))

    async with boxd_that(answer, at=tmp_path) as (link, heads):
        for _ in range(3):
            await link.hello()
            await link.runs.collect(["true"], run_id=R1)
    assert len(heads) == 6
    assert len(peers) == 1


async def test_go_checks_who_answered(tmp_path: Path) -> None:
    async with boxd_that(says(unary(json.dumps(HELLO).encode())), at=tmp_path) as (link, _):
        await link.go(birth_id=BirthId("sk-1"), env={"A": "b"})
        with pytest.raises(Aborted, match="birth id"):
            await link.go(birth_id=BirthId("sk-2"))


async def test_a_stale_epoch_is_told_the_highest(tmp_path: Path) -> None:
    document = {
        "code": "failed_precondition",
        "message": "old",
        "sandkeeper": {"code": "stale_epoch", "epoch": 9},
    }
    answer = says(unary(json.dumps(document).encode(), status="409 Conflict"))
    async with boxd_that(answer, at=tmp_path) as (link, _):
        with pytest.raises(FailedPrecondition) as caught:
            await link.resume()
    assert (caught.value.code, caught.value.details) == ("stale_epoch", {"epoch": 9})


async def test_quiesce_says_drained_or_busy(tmp_path: Path) -> None:
    async with boxd_that(says(unary(b'{"state":"busy","runs":["r1"]}')), at=tmp_path) as (link, _):
        answer = await link.quiesce(reason="snapshot", wait_s=0.5)
    assert (answer.state, answer.runs) == ("busy", ("r1",))


async def test_a_run_is_collected_with_true_sizes(tmp_path: Path) -> None:
    documents: tuple[dict[str, object], ...] = (
        started(),
        output(b"hello ", offset=0),
        {"event": {"keepalive": {}}},
        output(b"wor", offset=6),
        output(b"oops", offset=0, name="stderr"),
        ended(stdoutBytes=11, stderrBytes=4, durationMs=8),
    )
    async with boxd_that(says(stream(*documents)), at=tmp_path) as (link, _):
        outcome = await link.runs.collect(["echo"], run_id=R1)
    assert (outcome.stdout, outcome.stderr_bytes, outcome.truncated) == ("hello wor", b"oops", True)
    assert (outcome.stdout_size_bytes, outcome.exit_code, outcome.generation, outcome.pid) == (11, 0, 3, 7)


async def test_output_beyond_the_cap_is_not_kept_even_if_it_is_sent(tmp_path: Path) -> None:
    documents = (started(), output(b"x" * 100, offset=0), ended(stdoutBytes=100))
    async with boxd_that(says(stream(*documents)), at=tmp_path) as (link, _):
        outcome = await link.runs.collect(["yes"], run_id=R1, max_output_bytes=10)
    assert (len(outcome.stdout_bytes), outcome.stdout_size_bytes, outcome.truncated) == (10, 100, True)


async def test_what_a_start_says(tmp_path: Path) -> None:
    bodies: list[bytes] = []

    async def answer(request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bodies.append(request.split(b"\r\n\r\n", 1)[1])
        writer.write(stream(started(), ended()))

    async with boxd_that(answer, at=tmp_path) as (link, _):
        await link.runs.collect(
            ["sh", "-c", "é"], run_id=R1, cwd="/w", env={"A": "1"}, user="u", stdin=b"in", timeout_ms=9
        )
    [frame] = FrameDecoder().feed(bodies[0])
    assert frame.document == {
        "process": {"cmd": "sh", "args": ["-c", "é"], "envs": {"A": "1"}, "cwd": "/w"},
        "stdin": False,
        "sandkeeper": {
            "runId": "r1",
            "stdin": "data",
            "detached": False,
            "stdinData": "aW4=",
            "user": "u",
            "timeoutMs": 9,
            "maxOutputBytes": 1024 * 1024,
            "stdoutOffset": 0,
            "stderrOffset": 0,
        },
    }


async def test_a_cut_stream_goes_on_where_it_was(tmp_path: Path) -> None:
    cut = hangs_up_after(STREAM_HEAD + messages(started(), output(b"abc", offset=0), ended())[:-9])
    seen: list[object] = []

    async def keep(link: BoxdLink) -> None:
        async with aclosing(link.runs.start(["x"], run_id=R1)) as events:
            async for event in events:
                seen.append(event)  # noqa: PERF401 - what came before the cut counts

    async with boxd_that(cut, at=tmp_path) as (link, _):
        with pytest.raises(Aborted) as caught:
            await keep(link)
    assert (caught.value.code, caught.value.admitted) == ("connection_lost", "yes")
    assert seen == [RunStarted(7, R1, 3, False), RunOutput("stdout", 0, b"abc")]
    rest = (started(attached=True), output(b"de", offset=3), ended(stdoutBytes=5))
    (tmp_path / "again").mkdir()
    async with (
        boxd_that(says(stream(*rest)), at=tmp_path / "again") as (link, _),
        aclosing(link.runs.start(["x"], run_id=R1, stdout_offset=3)) as events,
    ):
        again = [event async for event in events]
    assert again[:2] == [RunStarted(7, R1, 3, True), RunOutput("stdout", 3, b"de")]
    assert isinstance(again[2], RunEnded)


async def test_a_reader_that_leaves_early_does_not_spoil_the_next_call(tmp_path: Path) -> None:
    peers = []

    async def answer(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(writer)
        writer.write(stream(started(), ended()) if b"/Start" in head else unary(json.dumps(HELLO).encode()))

    async with boxd_that(answer, at=tmp_path) as (link, _):
        async with aclosing(link.runs.start(["x"], run_id=R1)) as events:
            await anext(events)
        exchange = await link._transport.begin("POST", "/process.Process/Start", step="left unread")
        await exchange.head(wait_s=20)
        while not exchange._connection._is_complete:
            await asyncio.sleep(0)
        exchange.close()
        assert (await link.hello(timeout_s=20)).birth_id == "sk-1"
    assert peers[2] is not peers[1]


async def test_refusals_before_the_start(tmp_path: Path) -> None:
    conflict: dict[str, object] = {
        "error": {"code": "already_exists", "message": "m", "sandkeeper": {"code": "run_id_conflict"}}
    }
    async with boxd_that(says(stream(end=conflict)), at=tmp_path) as (link, _):
        with pytest.raises(AlreadyExists) as caught:
            await link.runs.collect(["x"], run_id=R1)
    assert caught.value.admitted == "no"


async def test_an_error_after_the_start_is_admitted(tmp_path: Path) -> None:
    answer = says(stream(started(), end={"error": {"code": "unavailable", "message": "going"}}))
    async with boxd_that(answer, at=tmp_path) as (link, _):
        with pytest.raises(Unavailable) as caught:
            await link.runs.collect(["x"], run_id=R1)
    assert caught.value.admitted == "yes"


@pytest.mark.parametrize(
    ("argv", "run_id", "stdin", "code"),
    [
        ([], "r", None, "argv_invalid"),
        (["a\0b"], "r", None, "argv_invalid"),
        (["a"], "r/1", None, "run_id_invalid"),
        (["a"], "", None, "run_id_invalid"),
        (["a"], "r", b"x" * 800_000, "stdin_too_large"),
        (["\udcff"], "r", None, "request_not_encodable"),
        (["x" * 1_100_000], "r", None, "request_not_encodable"),
    ],
)
async def test_what_cannot_be_started_is_refused_here(
    argv: list[str], run_id: str, stdin: bytes | None, code: str, tmp_path: Path
) -> None:
    link = BoxdLink(tmp_path / "nothing", generation=1, epoch=1, ports=real_ports())
    with pytest.raises(InvalidArgument) as caught:
        await link.runs.collect(argv, run_id=RunId(run_id), stdin=stdin)
    assert caught.value.code == code


async def test_nobody_there(tmp_path: Path) -> None:
    link = BoxdLink(tmp_path / "control.sock", generation=1, epoch=1, ports=real_ports())
    with pytest.raises(Unavailable) as caught:
        await link.hello()
    assert (caught.value.code, caught.value.admitted) == ("runtime_unreachable", "no")


async def test_a_cancelled_run_is_killed_first(tmp_path: Path) -> None:
    asked: list[bytes] = []
    is_running = asyncio.Event()

    async def answer(request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(request)
        if b"/Start" in request:
            writer.write(STREAM_HEAD + messages(started()))
            is_running.set()
        else:
            writer.write(unary(b'{"sandkeeper":{"notStopped":[]}}'))

    async with boxd_that(answer, at=tmp_path) as (link, _):
        run = asyncio.get_running_loop().create_task(link.runs.collect(["sleep"], run_id=R1))
        await is_running.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    assert b'"tree":true' in asked[-1]


async def test_a_start_that_boxd_reads_after_the_kill_is_killed_too(tmp_path: Path) -> None:
    kills = 0
    is_asked = asyncio.Event()
    unknown = unary(b'{"code":"not_found","sandkeeper":{"code":"no_such_run"}}', status="404 Not Found")

    async def answer(request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal kills
        if b"/Start" in request:
            is_asked.set()
            return
        kills += 1
        writer.write(unknown if kills == 1 else unary(b"{}"))

    async with boxd_that(answer, at=tmp_path) as (link, _):
        run = asyncio.get_running_loop().create_task(link.runs.collect(["sleep"], run_id=R1))
        await is_asked.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    assert kills == 2


async def test_kill_says_what_it_could_not_stop(tmp_path: Path) -> None:
    async with boxd_that(says(unary(b'{"sandkeeper":{"notStopped":[12]}}')), at=tmp_path) as (link, _):
        assert await link.runs.kill_tree(R1) == (12,)


async def test_a_silent_box_is_not_waited_for(tmp_path: Path) -> None:
    async with boxd_that(says(b""), at=tmp_path, deadlines=QUICK) as (link, _):
        with pytest.raises(Unavailable) as caught:
            await link.hello(timeout_s=0.05)
    assert (caught.value.code, caught.value.admitted) == ("runtime_silent", "unknown")
