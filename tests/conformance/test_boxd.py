"""What every boxd keeps, the real one behind its link and the fake one: control, fences, runs by id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from sandkeeper.boxd import BoxControl, BoxdLink, RunEnded, RunStarted
from sandkeeper.core.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    SandkeeperError,
    Unavailable,
)
from sandkeeper.core.ids import BirthId, RunId
from sandkeeper.ports import real_ports
from tests.fakes.boxd import FakeBoxd, FakeLink
from tests.integration.box import running_box

Link = BoxdLink | FakeLink
BIRTH = BirthId("sk-conformance")


class Subject:
    """One box before its go, and links to it that are closed with the test."""

    def __init__(self, birth_id: BirthId, make: Callable[[int, int], Link]) -> None:
        self.birth_id = birth_id
        self._make = make
        self._links: list[Link] = []

    def link(self, *, generation: int = 1, epoch: int = 1) -> Link:
        made = self._make(generation, epoch)
        self._links.append(made)
        return made

    async def close(self) -> None:
        for link in self._links:
            await link.aclose()


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.docker)])
def made(request: pytest.FixtureRequest) -> Iterator[Subject]:
    if request.param == "fake":
        box = FakeBoxd(BIRTH, ports=real_ports())
        yield Subject(BIRTH, lambda generation, epoch: box.link(generation=generation, epoch=epoch))
    else:
        with running_box() as real:
            yield Subject(
                real.birth_id, lambda generation, epoch: real.link(generation=generation, epoch=epoch)
            )


@pytest.fixture
async def box(made: Subject) -> AsyncIterator[Subject]:
    yield made
    await made.close()


async def code_of(call: object) -> tuple[type[SandkeeperError], str, str]:
    with pytest.raises(SandkeeperError) as caught:
        await call  # type: ignore[misc]
    return type(caught.value), caught.value.code, caught.value.admitted


async def test_control(box: Subject) -> None:
    link = box.link()
    control: BoxControl = link
    hello = await control.hello(timeout_s=10)
    assert (hello.state, hello.generation, hello.birth_id) == ("waiting", 0, box.birth_id)
    assert await code_of(link.runs.collect(["true"], run_id=RunId("r"))) == (Unavailable, "not_started", "no")
    assert await code_of(control.go(birth_id=BirthId("sk-other"))) == (
        FailedPrecondition,
        "wrong_birth",
        "no",
    )
    for _ in range(2):
        hello = await control.go(birth_id=box.birth_id, env={"A": "1"})
        assert (hello.state, hello.generation, hello.epoch) == ("running", 1, 1)
    assert (await link.runs.collect(["true"], run_id=RunId("r"))).exit_code == 0


async def test_fences(box: Subject) -> None:
    old, new = box.link(epoch=1), box.link(epoch=3)
    await old.go(birth_id=box.birth_id)
    assert (await new.go(birth_id=box.birth_id)).epoch == 3
    stale = (FailedPrecondition, "stale_epoch", "no")
    assert await code_of(old.go(birth_id=box.birth_id)) == stale
    assert await code_of(old.quiesce(reason="x")) == stale
    assert await code_of(old.resume()) == stale
    assert await code_of(old.runs.collect(["true"], run_id=RunId("r"))) == stale
    assert await code_of(old.files.write("/tmp/x", data=b"")) == stale
    wrong = (FailedPrecondition, "wrong_generation", "no")
    other = box.link(generation=2, epoch=3)
    assert await code_of(other.go(birth_id=box.birth_id)) == wrong
    assert await code_of(other.runs.collect(["true"], run_id=RunId("r"))) == wrong
    assert (await new.hello(timeout_s=10)).generation == 1


async def test_quiesce(box: Subject) -> None:
    link = box.link()
    await link.go(birth_id=box.birth_id)
    running = asyncio.get_running_loop().create_task(link.runs.collect(["sleep", "0.5"], run_id=RunId("r")))
    while not await link.runs.list():
        await asyncio.sleep(0.01)
    busy = await link.quiesce(reason="idle")
    assert (busy.state, busy.runs) == ("busy", ("r",))
    forced = await link.quiesce(reason="stop", force=True)
    assert (forced.state, forced.runs) == ("drained", ("r",))
    draining = (Unavailable, "draining", "no")
    assert await code_of(link.runs.collect(["true"], run_id=RunId("s"))) == draining
    assert await code_of(link.files.write("/tmp/x", data=b"")) == draining
    assert (await link.hello(timeout_s=10)).state == "draining"
    assert (await link.resume()).state == "running"
    assert (await running).exit_code == 0
    assert (await link.quiesce(reason="idle", wait_s=5)).state == "drained"


async def test_runs(box: Subject) -> None:
    link = box.link()
    await link.go(birth_id=box.birth_id)
    first = await link.runs.collect(["echo", "a"], run_id=RunId("r"))
    assert (first.stdout, first.exit_code, first.outcome, first.attached) == ("a\n", 0, "exited", False)
    again = await link.runs.collect(["echo", "a"], run_id=RunId("r"))
    assert (again.stdout, again.attached, again.pid) == ("a\n", True, first.pid)
    conflict = (AlreadyExists, "run_id_conflict", "no")
    assert await code_of(link.runs.collect(["echo", "b"], run_id=RunId("r"))) == conflict
    assert (await link.runs.collect(["false"], run_id=RunId("f"))).exit_code == 1
    missing = (InvalidArgument, "exec_not_found", "no")
    assert await code_of(link.runs.collect(["no-such-program"], run_id=RunId("n"))) == missing
    late = await link.runs.collect(["sleep", "60"], run_id=RunId("t"), timeout_ms=100)
    assert (late.outcome, late.exit_code, late.not_stopped) == ("timeout", None, ())
    assert await code_of(link.runs.kill_tree(RunId("never"))) == (NotFound, "no_such_run", "no")


async def test_killing(box: Subject) -> None:
    link = box.link()
    await link.go(birth_id=box.birth_id)
    events = link.runs.start(["sleep", "60"], run_id=RunId("k"))
    assert isinstance(await anext(events), RunStarted)
    assert [run.run_id for run in await link.runs.list()] == ["k"]
    assert await link.runs.kill_tree(RunId("k")) == ()
    ended = await anext(events)
    assert isinstance(ended, RunEnded)
    assert (ended.outcome, ended.signal) == ("signaled", 9)
    await events.aclose()
    assert await link.runs.list() == ()


async def test_files(box: Subject) -> None:
    link = box.link()
    assert await code_of(link.files.exists("/tmp/x")) == (Unavailable, "not_started", "no")
    await link.go(birth_id=box.birth_id)
    assert await link.files.write("/tmp/x", data=b"abc") == "/tmp/x"
    assert await link.files.read("/tmp/x") == b"abc"
    await link.files.remove("/tmp/x")
    assert not await link.files.exists("/tmp/x")
    assert (await code_of(link.files.read("/tmp/x")))[0] is NotFound
