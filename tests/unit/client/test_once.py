"""One command in a sandbox of its own: it leaves nothing, and its result is the command's own or an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sandkeeper.client.keeper import Keeper
from sandkeeper.client.once import certain, run_once
from sandkeeper.client.run_result import RunResult
from sandkeeper.client.sandbox import Sandbox
from sandkeeper.core.errors import Aborted, Internal, InvalidArgument, NotFound
from sandkeeper.core.ids import RunId
from sandkeeper.ports import real_ports
from tests.fakes.control import FakeControl


def result_of(outcome: Any = "exited", *, reason: str = "") -> RunResult:
    return RunResult(
        exit_code=3 if outcome == "exited" else None,
        outcome=outcome,
        signal=0,
        oom_killed=False,
        stdout_bytes=b"",
        stderr_bytes=b"",
        truncated=False,
        stdout_size_bytes=0,
        stderr_size_bytes=0,
        duration_ms=1.0,
        generation=1,
        run_id=RunId("r1"),
        reason=reason,
    )


async def once(
    keeper: Keeper, working: Callable[[Sandbox], Awaitable[RunResult]], **fields: Any
) -> RunResult:
    """What `keeper.once` does, with the work in the box played."""
    return await run_once(
        keeper.create(),
        files=fields.get("files", {}),
        working=working,
        destroying=keeper._creation.destroy,
        ports=real_ports(),
    )


def phases(control: FakeControl) -> list[str]:
    return [seen.phase.value for seen in control.sandboxes.values()]


async def test_a_result_comes_when_the_sandbox_is_gone(control: FakeControl, keeper: Keeper) -> None:
    async def work(_sandbox: Sandbox) -> RunResult:
        return result_of()

    async with keeper:
        assert (await once(keeper, work)).exit_code == 3
        assert phases(control) == ["destroyed"]
    assert len(control.called("destroy")) == 1, "leaving does not destroy it again"


@pytest.mark.parametrize(
    ("outcome", "reason"), [("interrupted", ""), ("unknown", ""), ("timeout", "host_deadline")]
)
async def test_what_nobody_knows_is_no_result(
    control: FakeControl, keeper: Keeper, outcome: str, reason: str
) -> None:
    async def work(_sandbox: Sandbox) -> RunResult:
        return result_of(outcome, reason=reason)

    async with keeper:
        with pytest.raises(Aborted) as lost:
            await once(keeper, work)
        assert (lost.value.code, lost.value.admitted) == ("run_interrupted", "yes")
        assert lost.value.details["result"]["outcome"] == outcome
        assert phases(control) == ["destroyed"]


@pytest.mark.parametrize("reason", ["deadline", "quiet", "cpu"])
async def test_a_timeout_of_the_commands_own_is_a_result(reason: str) -> None:
    result = result_of("timeout", reason=reason)
    sandbox: Any = None
    assert certain(result, sandbox=sandbox) is result


async def test_a_failure_inside_destroys_it(control: FakeControl, keeper: Keeper) -> None:
    control.failures["lease"] = [NotFound("gone", code="sandbox_destroyed")]
    async with keeper:
        with pytest.raises(NotFound):
            await keeper.once(["true"], files={"a": "b"})
        assert phases(control) == ["destroyed"]


async def test_a_cancel_destroys_it_first(control: FakeControl, keeper: Keeper) -> None:
    begun = asyncio.Event()

    async def work(_sandbox: Sandbox) -> RunResult:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with keeper:
        running = asyncio.ensure_future(once(keeper, work))
        await begun.wait()
        running.cancel()
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert phases(control) == ["destroyed"]


async def test_what_could_not_be_destroyed_is_told_and_tried_again(
    control: FakeControl, keeper: Keeper
) -> None:
    async def work(_sandbox: Sandbox) -> RunResult:
        return result_of()

    async with keeper:
        control.failures["destroy"] = [Internal("broken")]
        with pytest.raises(Internal):
            await once(keeper, work)
    assert phases(control) == ["destroyed"]


@pytest.mark.parametrize("wrong", [{"command": []}, {"command": "true", "timeout_s": 0}, {"size": "huge"}])
async def test_a_wrong_argument_makes_nothing(
    control: FakeControl, keeper: Keeper, wrong: dict[str, Any]
) -> None:
    async with keeper:
        with pytest.raises(InvalidArgument):
            await keeper.once(**{"command": "true", **wrong})
    assert not control.called("create")
