"""Terminals, and limits beside the timeout, through the typed client and a real box."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

import pytest
import pytest_asyncio

from sandkeeper.boxd.events import RunEnded, RunEvent, RunLimits, RunOutput, RunStarted, TerminalSize
from sandkeeper.boxd.link import BoxdLink
from sandkeeper.core.errors import InvalidArgument, NotFound
from sandkeeper.core.ids import RunId
from tests.integration.box import Box, running_box

pytestmark = pytest.mark.docker
SIZE = TerminalSize(cols=100, rows=30)


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with running_box() as box:
        yield box


@pytest_asyncio.fixture
async def link(box: Box) -> AsyncIterator[BoxdLink]:
    link = box.link()
    await link.go(birth_id=box.birth_id)
    yield link
    await link.aclose()


async def follow(link: BoxdLink, run_id: str, *argv: str) -> tuple[bytes, RunEnded]:
    """Return all the terminal shows, and the end; attaches when the run is there."""
    seen = b""
    async with aclosing(link.runs.start(argv, run_id=RunId(run_id), terminal=SIZE)) as events:
        async for event in events:
            if isinstance(event, RunOutput):
                assert event.stream == "pty"
                seen += event.data
            if isinstance(event, RunEnded):
                return seen, event
    raise AssertionError("no end")


async def test_a_terminal_has_its_size_and_kind(link: BoxdLink) -> None:
    seen, ended = await follow(link, "t1", "sh", "-c", "stty size; tty; echo $TERM")
    lines = seen.decode().split()
    assert lines[:2] == ["30", "100"]
    assert lines[2].startswith("/dev/pts/")
    assert lines[3] == "xterm-256color"
    assert ended.exit_code == 0


async def test_typing_resizing_and_two_viewers(link: BoxdLink) -> None:
    argv = ("sh", "-c", "read a; stty size; echo got $a; read b; exit 5")
    first = asyncio.ensure_future(follow(link, "t2", *argv))
    await _known(link, "t2")
    second = asyncio.ensure_future(follow(link, "t2", *argv))
    await link.runs.resize(RunId("t2"), TerminalSize(cols=90, rows=20))
    await link.runs.send_keys(RunId("t2"), data=b"word\n")
    await link.runs.send_keys(RunId("t2"), data=b"\n")
    (one, end_one), (two, end_two) = await asyncio.gather(first, second)
    assert b"20 90" in one
    assert b"got word" in one
    assert one == two
    assert end_one.exit_code == end_two.exit_code == 5


async def test_a_bad_size_is_refused(link: BoxdLink) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await link.runs.resize(RunId("t2"), TerminalSize(cols=0, rows=20))
    assert caught.value.code == "terminal_size_invalid"
    with pytest.raises(NotFound):
        await link.runs.resize(RunId("t-none"), SIZE)


async def test_a_quiet_command_is_ended_and_says_why(link: BoxdLink) -> None:
    limits = RunLimits(quiet_timeout_ms=500)
    outcome = await link.runs.collect(
        ["sh", "-c", "echo begun; sleep 60"], run_id=RunId("q1"), timeout_ms=30_000, limits=limits
    )
    assert (outcome.outcome, outcome.reason, outcome.stdout) == ("timeout", "quiet", "begun\n")


async def test_a_talking_command_is_not_quiet(link: BoxdLink) -> None:
    limits = RunLimits(quiet_timeout_ms=800)
    argv = ["sh", "-c", "for i in 1 2 3 4 5 6; do echo $i; sleep 0.3; done"]
    outcome = await link.runs.collect(argv, run_id=RunId("q2"), timeout_ms=30_000, limits=limits)
    assert (outcome.outcome, outcome.exit_code) == ("exited", 0)


async def test_cpu_time_of_the_whole_tree_is_bounded(link: BoxdLink) -> None:
    limits = RunLimits(cpu_limit_ms=600)
    argv = ["sh", "-c", "sh -c 'while :; do :; done' & wait"]
    outcome = await link.runs.collect(argv, run_id=RunId("c1"), timeout_ms=30_000, limits=limits)
    assert (outcome.outcome, outcome.reason) == ("timeout", "cpu")
    assert outcome.not_stopped == ()


async def test_the_deadline_says_so(link: BoxdLink) -> None:
    outcome = await link.runs.collect(["sleep", "60"], run_id=RunId("d1"), timeout_ms=300)
    assert (outcome.outcome, outcome.reason) == ("timeout", "deadline")


async def test_what_was_used_is_told(link: BoxdLink) -> None:
    argv = ["sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"]
    outcome = await link.runs.collect(argv, run_id=RunId("u1"), timeout_ms=60_000)
    assert outcome.usage.user_ms > 0
    assert outcome.usage.max_rss_bytes > 100_000


async def _known(link: BoxdLink, run_id: str) -> RunEvent:
    """Wait until the run has been started."""
    while True:
        for run in await link.runs.list():
            if run.run_id == run_id:
                return RunStarted(run.pid, run.run_id, 1, attached=False)
        await asyncio.sleep(0.01)


async def test_attach_without_knowing_the_command(link: BoxdLink) -> None:
    whole = await link.runs.collect(["sh", "-c", "echo one; echo two >&2; exit 4"], run_id=RunId("a1"))
    seen: dict[str, bytes] = {"stdout": b"", "stderr": b""}
    async with aclosing(link.runs.attach(RunId("a1"), offsets={"stdout": 2})) as events:
        async for event in events:
            if isinstance(event, RunOutput):
                seen[event.stream] += event.data
            if isinstance(event, RunEnded):
                assert event.exit_code == whole.exit_code == 4
    assert seen == {"stdout": b"e\n", "stderr": b"two\n"}


async def test_attach_to_an_unknown_run(link: BoxdLink) -> None:
    with pytest.raises(NotFound):
        async with aclosing(link.runs.attach(RunId("a-none"))) as events:
            await anext(events)
