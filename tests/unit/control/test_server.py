"""The served side: what a caller gets for what he sends, and who may send."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from sandkeeper.control.server import MAX_BODY_BYTES, ControlServer, VerbTable, to_json
from sandkeeper.core.errors import FailedPrecondition, InvalidArgument, NotFound


class Doubling(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int


class Nested(BaseModel):
    inner: tuple[Doubling, ...]


async def double(params: Doubling) -> Doubling:
    return Doubling(number=params.number * 2)


async def break_down(params: Doubling) -> None:
    raise ZeroDivisionError("secret-looking text in /some/path")


async def refuse(params: Doubling) -> None:
    raise FailedPrecondition("not now", code="sandbox_paused", sandbox_id="sb1", details={"n": 1})


async def answer_nonsense(params: Doubling) -> Any:
    return {"fine": object()}


TABLE = VerbTable(
    {
        "double": (Doubling, double),
        "break_down": (Doubling, break_down),
        "refuse": (Doubling, refuse),
        "nonsense": (Doubling, answer_nonsense),
    }
)


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Path]:
    path = folder / "control.sock"
    server = ControlServer(path, table=TABLE)
    await server.start()
    try:
        yield path
    finally:
        await server.close()


async def post(path: Path, verb: str, body: bytes) -> Any:
    reader, writer = await asyncio.open_unix_connection(str(path))
    head = f"POST /v1/{verb} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert b"Traceback" not in answer
    return json.loads(answer.partition(b"\r\n\r\n")[2])


async def test_a_verb_is_answered_with_its_model(tmp_path: Path) -> None:
    async with serving(tmp_path) as path:
        assert await post(path, "double", b'{"number": 21}') == {"ok": {"number": 42}}


async def test_a_refusal_crosses_whole(tmp_path: Path) -> None:
    async with serving(tmp_path) as path:
        error = (await post(path, "refuse", b'{"number": 1}'))["error"]
    assert (error["category"], error["code"], error["sandbox_id"]) == (
        "FailedPrecondition",
        "sandbox_paused",
        "sb1",
    )
    assert error["details"] == {"n": 1}


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff\xfe", b"nope", b"[" * 100_000], ids=["empty", "cut", "bytes", "word", "deep"]
)
async def test_what_is_no_json_is_the_caller_s_mistake(tmp_path: Path, body: bytes) -> None:
    async with serving(tmp_path) as path:
        error = (await post(path, "double", body))["error"]
    assert (error["category"], error["code"]) == ("InvalidArgument", "invalid_parameters")


async def test_a_body_that_is_too_large_is_the_caller_s_mistake(tmp_path: Path) -> None:
    async with serving(tmp_path) as path:
        error = (await post(path, "double", b" " * (MAX_BODY_BYTES + 1)))["error"]
    assert (error["category"], error["code"]) == ("InvalidArgument", "parameters_too_large")


async def test_an_unknown_verb(tmp_path: Path) -> None:
    async with serving(tmp_path) as path:
        error = (await post(path, "treble", b"{}"))["error"]
    assert (error["category"], error["code"]) == ("NotFound", "unknown_verb")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{}", "number"),
        (b'{"number": "x-secret"}', "number"),
        (b'{"number": 1, "colour": 2}', "colour"),
        (b"[]", "parameters"),
        (b"null", "parameters"),
    ],
)
async def test_wrong_parameters_are_named_and_never_echoed(tmp_path: Path, body: bytes, field: str) -> None:
    async with serving(tmp_path) as path:
        error = (await post(path, "double", body))["error"]
    assert (error["code"], error["details"]) == ("invalid_parameters", {"field": field})
    assert "x-secret" not in json.dumps(error)


@pytest.mark.parametrize(("verb", "kind"), [("break_down", "ZeroDivisionError"), ("nonsense", "TypeError")])
async def test_a_defect_is_internal_and_leaks_nothing(tmp_path: Path, verb: str, kind: str) -> None:
    async with serving(tmp_path) as path:
        error = (await post(path, verb, b'{"number": 1}'))["error"]
    assert (error["category"], error["admitted"]) == ("Internal", "unknown")
    assert kind in error["message"]
    assert "secret-looking" not in json.dumps(error)


async def test_only_the_controller_s_user_may_open_the_socket(tmp_path: Path) -> None:
    async with serving(tmp_path / "made") as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_a_socket_left_by_a_dead_one_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "control.sock").write_text("left over")
    async with serving(tmp_path) as path:
        assert (await post(path, "double", b'{"number": 1}'))["ok"] == {"number": 2}


async def test_the_next_incarnation_is_not_cut_off_by_the_end_of_the_last(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    old, new = ControlServer(path, table=TABLE), ControlServer(path, table=TABLE)
    await old.start()
    await new.start()
    await old.close()
    assert (await post(path, "double", b'{"number": 1}'))["ok"] == {"number": 2}
    await new.close()
    await new.close()


async def test_a_table_can_be_called_in_the_same_process() -> None:
    assert await TABLE.call("double", {"number": 2}) == {"number": 4}
    with pytest.raises(NotFound):
        await TABLE.call("treble", {})
    with pytest.raises(InvalidArgument):
        await TABLE.call("double", None)


def test_models_become_json_wherever_they_are() -> None:
    one = Doubling(number=1)
    assert to_json({"a": [one, (one,)], "b": Nested(inner=(one,)), "c": None}) == {
        "a": [{"number": 1}, [{"number": 1}]],
        "b": {"inner": [{"number": 1}]},
        "c": None,
    }
