"""Run events: what the contract says becomes a typed event, everything else is refused."""

from __future__ import annotations

from typing import Any

import pytest

from sandkeeper.boxd.event_reader import RunEventReader, not_stopped_in, runs_in
from sandkeeper.boxd.events import (
    RunEnded,
    RunListing,
    RunLost,
    RunOutput,
    RunStarted,
)
from sandkeeper.boxd.wire import BadFrame

START = {"event": {"start": {"pid": 9, "sandkeeper": {"runId": "r", "generation": 2, "attached": True}}}}


def data(**fields: Any) -> dict[str, Any]:
    return {"event": {"data": fields}}


def end(code: object = 0, exited: object = True, **ours: Any) -> dict[str, Any]:
    return {
        "event": {"end": {"exitCode": code, "exited": exited, "sandkeeper": {"outcome": "exited"} | ours}}
    }


def reader(*, stdout: int = 0, has_started: bool = True) -> RunEventReader:
    made = RunEventReader(offsets={"stdout": stdout, "stderr": 0})
    if has_started:
        made.read(START)
    return made


def test_a_conversation() -> None:
    box = reader(has_started=False)
    assert box.read(START) == RunStarted(pid=9, run_id="r", generation=2, attached=True)  # type: ignore[arg-type]
    assert box.read({"event": {"keepalive": {}}}) is None
    assert box.read(data(stdout="aGk=", sandkeeper={"offset": 0})) == RunOutput("stdout", 0, b"hi")
    assert box.read(data(sandkeeper={"stream": "stdout", "lostBytes": 5, "offset": 7})) == RunLost(
        "stdout", 2, 5
    )
    assert box.read(data(stdout="IQ==", sandkeeper={"offset": 7})) == RunOutput("stdout", 7, b"!")
    assert box.read(data(stderr="IQ==")) == RunOutput("stderr", 0, b"!")
    assert box.read(end(3, stdoutBytes=8, durationMs=12, notStopped=[4])) == RunEnded(
        outcome="exited",
        exit_code=3,
        signal=0,
        oom_killed=False,
        stdout_size_bytes=8,
        stderr_size_bytes=0,
        duration_ms=12,
        not_stopped=(4,),
    )


def test_an_exit_code_belongs_to_an_exit_only() -> None:
    killed = reader().read(end(137, exited=False, outcome="signaled", signal=9, oomKilled=True))
    assert isinstance(killed, RunEnded)
    assert (killed.exit_code, killed.signal, killed.oom_killed) == (None, 9, True)


def test_an_attached_reader_starts_at_its_offset() -> None:
    assert reader(stdout=100).read(data(stdout="aGk=", sandkeeper={"offset": 100})) == RunOutput(
        "stdout", 100, b"hi"
    )


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"event": []},
        {"event": "start"},
        START,
        data(),
        data(stdout=1),
        data(stdout="no base64!"),
        data(stdout="aGk"),
        data(stdout="aGk=", sandkeeper={"offset": 1}),
        data(stdout="aGk=", sandkeeper={"offset": -1}),
        data(stdout="aGk=", sandkeeper={"offset": True}),
        data(sandkeeper={"stream": "nothing", "lostBytes": 1, "offset": 0}),
        data(sandkeeper={"stream": "stdout", "lostBytes": 2**60, "offset": 0}),
        data(sandkeeper={"stream": "stdout", "lostBytes": 5, "offset": 0}),
        end(outcome="fine"),
        end(outcome=None),
        end(-1),
        end(256),
        end("0"),
        end(exited=False),
        end(exited=1),
        end(stdoutBytes=-1),
        end(stdoutBytes=1.5),
        end(oomKilled="yes"),
        end(notStopped=[0]),
        end(notStopped=["4"]),
        end(notStopped=list(range(1, 5000))),
        end(sandkeeper=[]),
    ],
)
def test_what_breaks_the_contract_is_refused(document: dict[str, Any]) -> None:
    if document in ({}, end(sandkeeper=[])):
        # No event at all is a kind we do not know; a key inside ours is one as well.
        reader().read(document)
        return
    with pytest.raises(BadFrame):
        reader().read(document)


@pytest.mark.parametrize("document", [data(stdout="aGk="), end()])
def test_nothing_comes_before_the_start(document: dict[str, Any]) -> None:
    with pytest.raises(BadFrame, match="before the start"):
        reader(has_started=False).read(document)


def test_listings() -> None:
    answer = {
        "processes": [
            {
                "config": {"cmd": "sh", "args": ["-c", "x"], "cwd": "/"},
                "pid": 4,
                "sandkeeper": {"runId": "r"},
            },
            {"config": {"cmd": "top"}, "pid": 5, "tag": "t"},
        ]
    }
    assert runs_in(answer) == (
        RunListing(4, "r", ("sh", "-c", "x"), "/", None),  # type: ignore[arg-type]
        RunListing(5, None, ("top",), None, "t"),
    )
    assert runs_in({}) == ()
    assert not_stopped_in({"sandkeeper": {"notStopped": [3]}}) == (3,)
    assert not_stopped_in({}) == ()


@pytest.mark.parametrize(
    "answer",
    [
        {"processes": {"a": 1}},
        {"processes": [1]},
        {"processes": [{"config": {"args": [1]}}]},
        {"processes": [{"pid": "1"}]},
    ],
)
def test_broken_listings_are_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(BadFrame):
        runs_in(answer)
