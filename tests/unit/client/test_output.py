"""Output read through any cuts is byte-exact, or the loss is told with its size; a lost runtime is never an end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandkeeper.boxd.events import RunLost, RunOutput
from sandkeeper.client.output import Output
from sandkeeper.client.process import Process
from sandkeeper.client.run_order import RunOrder
from sandkeeper.client.runs import Runner
from sandkeeper.core.errors import Aborted, NotFound, SandkeeperError
from sandkeeper.core.ids import RunId, SandboxId
from sandkeeper.ports import Ports
from sandkeeper.virtual import VirtualLoop, run_virtual, virtual_ports
from tests.fakes.boxd import Result
from tests.fakes.leases import FakeLeases

SANDBOX = SandboxId("sb1")
CUP = "\u2615"


class Stage:
    """A process over fake leases, in virtual time."""

    def __init__(self, ports: Ports) -> None:
        self.ports = ports
        self.leases = FakeLeases(ports=ports)

    async def begin(self, result: Result) -> Process:
        boxes = self.leases.as_boxes()
        self.leases.box.programs["say"] = lambda box, argv: result
        order = RunOrder(argv=("say",), run_id=RunId("r1"), timeout_s=None, send_bytes=0)
        seen = await Runner(boxes, ports=self.ports).begin(SANDBOX, order)
        return Process(
            SANDBOX,
            order.run_id,
            generation=seen.generation,
            has_terminal=False,
            boxes=boxes,
            ports=self.ports,
        )


def played(script: Callable[[Stage], Coroutine[Any, Any, Any]]) -> Any:
    loop = VirtualLoop()
    return run_virtual(script(Stage(virtual_ports(loop, seed=1))), loop=loop)


async def pieces_of(output: Output) -> list[RunOutput | RunLost]:
    return [piece async for piece in output]


@given(
    content=st.binary(max_size=200),
    piece_bytes=st.integers(1, 64),
    cuts=st.lists(st.integers(0, 6), max_size=8),
    offset=st.integers(0, 220),
)
@settings(max_examples=60, deadline=None)
def test_any_cuts_and_any_pieces_give_the_same_bytes(
    content: bytes, piece_bytes: int, cuts: list[int], offset: int
) -> None:
    async def script(stage: Stage) -> None:
        process = await stage.begin(Result(stdout=content, stderr=b"other"))
        stage.leases.box.piece_bytes = piece_bytes
        stage.leases.cuts.extend(
            (count, Aborted("cut", code="connection_lost", admitted="yes")) for count in cuts
        )
        output = process.output("stdout", offset=offset)
        place = offset
        for piece in await pieces_of(output):
            assert isinstance(piece, RunOutput)
            assert (piece.stream, piece.offset) == ("stdout", place)
            assert piece.data == content[place : place + len(piece.data)]
            place += len(piece.data)
        assert place == max(offset, len(content)) == output.offset
        result = await process.wait()
        assert (result.stdout_bytes, result.stderr_bytes, result.truncated) == (content, b"other", False)

    played(script)


@given(text=st.text("a\u00e9\u2615\U0001f600", max_size=40), piece_bytes=st.integers(1, 7))
@settings(max_examples=40, deadline=None)
def test_characters_cut_between_pieces_stay_whole(text: str, piece_bytes: int) -> None:
    async def script(stage: Stage) -> None:
        process = await stage.begin(Result(stdout=text.encode()))
        stage.leases.box.piece_bytes = piece_bytes
        assert "".join([part async for part in process.stdout.text()]) == text

    played(script)


def test_a_loss_is_told_with_its_size_and_shown_in_the_text() -> None:
    async def script(stage: Stage) -> None:
        process = await stage.begin(Result(stdout=b"0123456789"))
        stage.leases.box.kept_from = 4
        assert await pieces_of(process.stdout) == [RunLost("stdout", 0, 4), RunOutput("stdout", 4, b"456789")]
        assert "".join([part async for part in process.output("stdout").text()]) == "\ufffd456789"
        assert (await process.wait()).truncated

    played(script)


def test_a_reader_that_stopped_goes_on_where_it_was() -> None:
    async def script(stage: Stage) -> None:
        process = await stage.begin(Result(stdout=b"abcdef"))
        stage.leases.box.piece_bytes = 2
        assert (await anext(process.stdout)) == RunOutput("stdout", 0, b"ab")
        await process.stdout.aclose()
        assert process.stdout.offset == 2
        assert [piece.offset for piece in await pieces_of(process.stdout)] == [2, 4]
        assert await pieces_of(process.stdout) == []

    played(script)


def test_a_new_owner_changes_nothing_and_a_lost_runtime_is_no_end() -> None:
    async def script(stage: Stage) -> None:
        process = await stage.begin(Result(stdout=b"never seen", duration_s=50.0))
        reading = stage.ports.spawn(pieces_of(process.stdout), name="read")
        waiting = stage.ports.spawn(process.wait(), name="wait")
        await stage.ports.sleep(1.0)
        stage.leases.epoch = stage.leases.box.epoch = 2
        await stage.ports.sleep(1.0)
        stage.leases.box.die()
        stage.leases.new_runtime()
        with pytest.raises(SandkeeperError) as lost:
            await reading
        assert lost.value.code == "run_interrupted"
        result = await waiting
        assert (result.outcome, result.exit_code, result.generation) == ("interrupted", None, 1)
        with pytest.raises(SandkeeperError) as unsent:
            await process.kill()
        assert (unsent.value.code, unsent.value.admitted) == ("run_interrupted", "no")

    played(script)


@given(
    pieces=st.lists(st.binary(max_size=30), max_size=5),
    room=st.integers(1, 40),
)
@settings(max_examples=30, deadline=None)
def test_what_is_not_read_at_once_is_written_once(pieces: list[bytes], room: int) -> None:
    async def script(stage: Stage) -> None:
        process = await stage.begin(Result(duration_s=50.0))
        stage.leases.box.stdin_room = room
        for piece in pieces:
            await process.write(piece)
        assert bytes(stage.leases.box.stdin) == b"".join(pieces)
        await process.kill()

    played(script)


def test_what_is_known_no_more_is_not_found() -> None:
    async def script(stage: Stage) -> None:
        process = await stage.begin(Result())
        stage.leases.box.runs.clear()
        with pytest.raises(NotFound):
            await process.wait()
        with pytest.raises(NotFound):
            await anext(process.stdout)

    played(script)


def test_waiting_can_be_given_up_and_the_process_goes_on() -> None:
    async def script(stage: Stage) -> None:
        process = await stage.begin(Result(exit_code=3, duration_s=5.0))
        waiting = stage.ports.spawn(process.wait(), name="wait")
        await stage.ports.sleep(1.0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await process.wait()).exit_code == 3

    played(script)
