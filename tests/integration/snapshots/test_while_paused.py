"""Snapshots beside pauses and destroys, on a real engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandkeeper.core.errors import SandkeeperError
from sandkeeper.core.ids import RunId
from tests.support.yard import Yard

pytestmark = pytest.mark.docker

TYPED = {
    "superseded",
    "sandbox_destroyed",
    "sandbox_paused",
    "sandbox_not_paused",
    "sandbox_not_running",
    "nothing_to_snapshot",
}


async def test_a_snapshot_of_a_paused_one_leaves_it_paused_with_its_memory(yard: Yard) -> None:
    view = await yard.create()
    await yard.write(view["id"], "/work.txt", b"before the pause")
    async with yard.link(view["id"]) as link:
        script = "n=0; while :; do n=$((n+1)); echo $n > /n; sleep 0.05; done"
        await link.runs.collect(["sh", "-c", f"({script}) & echo $! > /pid"], run_id=RunId("r1"), user="root")
    await yard.change("pause", view["id"])
    snapshot = await yard.snapshot(view["id"])
    assert (snapshot["freeze_ms"], snapshot["metadata_cut"]) == (0.0, "not_running")
    described = await yard.describe(view["id"])
    assert (described["phase"], described["generation"]) == ("paused", 1)
    assert yard.state_of(described["birth_id"]) == "paused"
    assert await yard.restores(snapshot["id"], "/work.txt") == b"before the pause"
    await yard.change("resume", view["id"])
    count = int(await yard.read(view["id"], "/n"))
    look = await yard.run(view["id"], "kill -0 $(cat /pid) && sleep 0.3 && cat /n")
    assert int(look.stdout) > count, "it counts on from where it was"


async def test_ten_at_once_have_one_order(yard: Yard) -> None:
    view = await yard.create()
    await yard.write(view["id"], "/work.txt", b"there")
    verbs = ["take_snapshot", "pause", "take_snapshot", "resume", "take_snapshot", "pause", "resume", "pause"]
    answers = await asyncio.gather(
        *(yard.change(verb, view["id"]) for verb in (*verbs, "destroy", "take_snapshot")),
        return_exceptions=True,
    )
    failed = [answer for answer in answers if isinstance(answer, BaseException)]
    assert all(isinstance(error, SandkeeperError) and error.code in TYPED for error in failed), failed
    assert (await yard.describe(view["id"]))["phase"] == "destroyed"
    snapshots: list[Any] = [one for one in answers if isinstance(one, dict) and "freeze_ms" in one]
    for snapshot in snapshots:
        assert await yard.restores(snapshot["id"], "/work.txt") == b"there"
    _check_order(await yard.events(view["id"]))
    assert {one["id"] for one in await yard.ask("snapshots")} == {one["id"] for one in snapshots}


async def test_ten_snapshots_and_pauses_at_once_end_where_the_last_success_says(yard: Yard) -> None:
    view = await yard.create()
    verbs = ["take_snapshot", "pause", "resume"] * 3 + ["take_snapshot"]
    answers = await asyncio.gather(*(yard.change(verb, view["id"]) for verb in verbs), return_exceptions=True)
    failed = [answer for answer in answers if isinstance(answer, BaseException)]
    assert all(isinstance(error, SandkeeperError) and error.code in TYPED for error in failed), failed
    assert not [
        one for one, verb in zip(answers, verbs, strict=True) if verb == "take_snapshot" and one in failed
    ]
    _check_order(await yard.events(view["id"]))
    moves = [event["kind"] for event in await yard.events(view["id"])]
    last = [kind for kind in moves if kind in ("runtime_frozen", "runtime_thawed", "runtime_started")][-1]
    described = await yard.describe(view["id"])
    assert described["phase"] == ("paused" if last == "runtime_frozen" else "running")
    assert yard.state_of(described["birth_id"]) == described["phase"]


def _check_order(events: list[Any]) -> None:
    """Between the begin and the end of a snapshot nothing else has moved the sandbox but a destroy."""
    is_taking = False
    for event in events:
        if event["kind"] == "snapshot_requested":
            assert not is_taking
            is_taking = True
        elif event["kind"] in ("snapshot_committed", "snapshot_failed", "destroy_requested"):
            is_taking = False
        else:
            assert not is_taking or event["kind"].endswith("_already"), event
