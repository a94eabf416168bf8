"""The owner's process is killed while the engine does something slow for it.

The call goes on without its caller, and is let through only after the new incarnation has done its work: the worst
order there is. Each test ends with the yard's look for anything left behind.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandkeeper.core.errors import Aborted, NotFound, SandkeeperError
from tests.support.yard import Yard, eventually, token

pytestmark = [pytest.mark.crash, pytest.mark.docker]

BEFORE_AND_AFTER = pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])


@pytest.mark.parametrize("verb", ["create", "start"])
@BEFORE_AND_AFTER
async def test_during_a_create(yard: Yard, verb: str, is_after: bool) -> None:
    request_id = token()
    with yard.engine.hold(verb, after=is_after) as held:
        creating = asyncio.create_task(yard.create(request_id=request_id))
        await held.reached()
        await yard.kill_owner()
        await yard.start_owner()
        view = await creating
        await held.release()
    assert (view["phase"], view["generation"]) == ("running", 1)
    assert yard.containers() == [view["birth_id"]]
    assert (await yard.run(view["id"], "echo lives")).stdout == "lives\n"
    assert await yard.create(request_id=request_id) == view, "a repeat has the same answer"


@pytest.mark.parametrize("verb", ["create", "start"])
async def test_just_before_the_engine_is_asked(yard: Yard, verb: str) -> None:
    """The claim is durable, the call was never sent: it is performed by the next incarnation."""
    with yard.engine.hold(verb) as held:
        creating = asyncio.create_task(yard.create())
        await held.reached()
        await yard.kill_owner()
        held.drop()
        await yard.start_owner()
        view = await creating
    assert (view["phase"], view["generation"]) == ("running", 1)
    assert yard.containers() == [view["birth_id"]]


async def test_a_create_that_reaches_the_engine_after_the_destroy(yard: Yard) -> None:
    """Nobody waits for it any more: its folders are gone, so it makes nothing, and its name was given up."""
    name = f"late-{token()}"
    with yard.engine.hold("create") as late:
        creating = asyncio.create_task(yard.create(name=name))
        await late.reached()
        await yard.kill_owner()
        with yard.engine.hold("create") as second:
            await yard.start_owner()
            await second.reached()
            sandbox_id = (await yard.ask("find", name=name))["sandbox_id"]
            destroying = asyncio.create_task(yard.change("destroy", sandbox_id))
            await second.release()
            view = await destroying
            with pytest.raises(Aborted) as given_up:
                await creating
        assert given_up.value.code == "superseded"
        assert view["phase"] == "destroyed"
        assert yard.containers() == []
        await late.release()
    await yard.ask("sweep")
    assert yard.containers() == []


async def prepared(yard: Yard) -> tuple[dict[str, Any], dict[str, Any]]:
    """A running sandbox with a snapshot that holds /kept, and a file the snapshot does not hold."""
    view = await yard.create()
    await yard.write(view["id"], "/kept", b"kept")
    snapshot = await yard.snapshot(view["id"])
    await yard.write(view["id"], "/new", b"new")
    return view, snapshot


@pytest.mark.parametrize(
    ("verb", "is_after"),
    [
        ("pause", False),
        ("pause", True),
        ("commit", False),
        ("commit", True),
        ("unpause", False),
        ("tag", False),
        ("tag", True),
    ],
)
async def test_during_a_snapshot(yard: Yard, verb: str, is_after: bool) -> None:
    """It did not happen, the box goes on as it was, and the last valid snapshot still restores."""
    view, snapshot = await prepared(yard)
    request_id = token()
    with yard.engine.hold(verb, after=is_after) as held:
        taking = asyncio.create_task(yard.snapshot(view["id"], request_id=request_id))
        await held.reached()
        await yard.kill_owner()
        await yard.start_owner()
        with pytest.raises(Aborted) as cut:
            await taking
        assert (cut.value.code, cut.value.admitted) == ("snapshot_interrupted", "yes")
        await yard.until(view["id"], "running", generation=1)
        await held.release()
    await eventually(lambda: is_running(yard, view["birth_id"]), "the box stayed frozen")
    assert (await yard.run(view["id"], "cat /kept /new")).stdout == "keptnew"
    await yard.ask("sweep")
    assert yard.images() == [snapshot["id"]]
    assert [found["id"] for found in await yard.ask("snapshots")] == [snapshot["id"]]
    with pytest.raises(Aborted) as again:
        await yard.snapshot(view["id"], request_id=request_id)
    assert again.value.code == "snapshot_interrupted", "a repeat has the same answer"
    assert await yard.restores(snapshot["id"], "/kept") == b"kept"


async def is_running(yard: Yard, birth_id: str) -> bool:
    return yard.state_of(birth_id) == "running"


@BEFORE_AND_AFTER
async def test_during_the_snapshot_of_a_stop(yard: Yard, is_after: bool) -> None:
    """Nothing is stopped without its snapshot."""
    view, snapshot = await prepared(yard)
    with yard.engine.hold("commit", after=is_after) as held:
        stopping = asyncio.create_task(yard.change("stop", view["id"], keep="snapshot"))
        await held.reached()
        await yard.kill_owner()
        await yard.start_owner()
        with pytest.raises(Aborted) as cut:
            await stopping
        assert cut.value.code == "snapshot_interrupted"
        await held.release()
    await yard.until(view["id"], "running", generation=1)
    assert await yard.read(view["id"], "/new") == b"new"
    stopped = await yard.change("stop", view["id"], keep="snapshot")
    assert (stopped["phase"], yard.containers()) == ("stopped", [])
    woken = await yard.change("start", view["id"])
    assert woken["generation"] == 2
    assert await yard.read(view["id"], "/new") == b"new"
    await yard.ask("sweep")
    assert sorted(yard.images()) == sorted([snapshot["id"], woken["boot_snapshot"]])


@pytest.mark.parametrize(
    ("verb", "fields", "call", "is_after", "phase"),
    [
        ("pause", {}, "pause", True, "paused"),
        ("resume", {}, "unpause", False, "running"),
        ("stop", {"keep": "files"}, "stop", False, "stopped"),
        ("stop", {"keep": "nothing"}, "remove", False, "stopped"),
        ("resize", {"size": {"name": "lite", "vcpu": 0.25, "memory_mib": 300}}, "update", False, "running"),
        ("destroy", {}, "remove", False, "destroyed"),
        ("destroy", {}, "remove", True, "destroyed"),
    ],
)
async def test_during_another_verb(
    yard: Yard, verb: str, fields: dict[str, Any], call: str, is_after: bool, phase: str
) -> None:
    """It is performed again, idempotent by name, and the caller who waited gets the one answer."""
    view = await yard.create()
    await yard.write(view["id"], "/kept", b"kept")
    if verb == "resume":
        await yard.change("pause", view["id"])
    request_id = token()
    with yard.engine.hold(call, after=is_after) as held:
        asked = asyncio.create_task(yard.change(verb, view["id"], request_id=request_id, **fields))
        await held.reached()
        await yard.kill_owner()
        await yard.start_owner()
        answer = await asked
        await held.release()
    assert (answer["phase"], answer["generation"]) == (phase, 1)
    assert await yard.change(verb, view["id"], request_id=request_id, **fields) == answer
    engine_says = {"paused": "paused", "running": "running"}.get(phase)
    if engine_says:
        assert yard.state_of(view["birth_id"]) == engine_says
    if fields.get("keep") == "files":
        assert yard.state_of(view["birth_id"]) == "exited"
        await yard.change("start", view["id"])
        assert await yard.read(view["id"], "/kept") == b"kept"
    if phase == "destroyed" or fields.get("keep") == "nothing":
        assert yard.containers() == []
    if verb == "resize":
        limits = yard.docker.inspect_container(view["birth_id"])["HostConfig"]
        assert (limits["Memory"], limits["MemorySwap"]) == (300 << 20, 300 << 20)


async def test_before_the_hand_over(yard: Yard) -> None:
    """The container runs and boxd waits at the boot socket: it comes again, to the next owner."""
    with yard.engine.hold("start", after=True) as held:
        creating = asyncio.create_task(yard.create())
        await held.reached()
        (birth_id,) = yard.containers()
        assert yard.state_of(birth_id) == "running"
        await yard.kill_owner()
        held.drop()
        await yard.start_owner()
        view = await creating
    assert (view["birth_id"], view["generation"]) == (birth_id, 1)
    async with yard.link(view["id"]) as link:
        hello = await link.hello()
    assert (hello.state, hello.generation, hello.birth_id) == ("running", 1, birth_id)


async def test_while_commands_run(yard: Yard) -> None:
    """They do not notice; the new incarnation adopts the box, and the old epoch is refused from then on."""
    view = await yard.create()
    async with yard.link(view["id"]) as old:
        before = await old.hello()
        reading = asyncio.create_task(
            old.runs.collect(
                ["sh", "-c", "echo begun; until [ -e /go ]; do sleep 0.02; done; echo done; exit 3"],
                run_id="long",
                user="root",
            )
        )
        await eventually(lambda: listed(old, "long"), "the run did not start")
        await yard.restart_owner()
        await yard.write(view["id"], "/go", b"")
        outcome = await reading
        assert (outcome.exit_code, outcome.stdout, outcome.generation) == (3, "begun\ndone\n", 1)
        async with yard.link(view["id"]) as new:
            hello = await new.hello()
            assert hello.epoch > before.epoch
            again = await new.runs.collect(
                ["sh", "-c", "echo begun; until [ -e /go ]; do sleep 0.02; done; echo done; exit 3"],
                run_id="long",
                user="root",
            )
            assert (again.attached, again.exit_code) == (True, 3), "a repeat attaches to the run that was"
            with pytest.raises(SandkeeperError) as fenced:
                await old.runs.collect(["touch", "/stale"], run_id=token())
            assert fenced.value.code == "stale_epoch"
            with pytest.raises(SandkeeperError) as fenced:
                await old.files.write("/stale", data=b"x", user="root")
            assert fenced.value.code == "stale_epoch"
            assert not await new.files.exists("/stale")
    kinds = [event["kind"] for event in await yard.events(view["id"])]
    assert "runtime_lost" not in kinds
    assert "owner_restarted" in kinds


async def listed(link: Any, run_id: str) -> bool:
    return any(run.run_id == run_id for run in await link.runs.list())


async def test_directory_and_owner_together(yard: Yard) -> None:
    """What was answered is there again; a create in progress becomes the one sandbox it was to be."""
    view, snapshot = await prepared(yard)
    name = f"both-{token()}"
    with yard.engine.hold("create") as held:
        creating = asyncio.create_task(yard.create(name=name, request_id=name))
        await held.reached()
        await yard.kill_directory()
        await yard.kill_owner()
        await yard.start_directory()
        await yard.start_owner()
        made = await creating
        await held.release()
    assert made["phase"] == "running"
    assert sorted(yard.containers()) == sorted([view["birth_id"], made["birth_id"]])
    assert [found["id"] for found in await yard.ask("snapshots")] == [snapshot["id"]]
    assert await yard.read(view["id"], "/new") == b"new"
    await yard.change("destroy", made["id"])
    with pytest.raises(NotFound) as gone:
        await yard.own("lease", sandbox_id=made["id"])
    assert gone.value.code == "sandbox_destroyed"
