"""A container's process 1 gets SIGKILL from outside, in the middle of something."""

from __future__ import annotations

import asyncio

import pytest

from sandkeeper import Keeper
from sandkeeper.core.errors import Aborted, FailedPrecondition
from tests.support.yard import Yard, eventually, token

pytestmark = [pytest.mark.crash, pytest.mark.docker]


async def test_during_a_create(yard: Yard) -> None:
    """The create fails with the step's name, and nothing is left of it, its name included."""
    name = f"dies-{token()}"
    with yard.engine.hold("start", after=True) as held:
        creating = asyncio.create_task(yard.create(name=name))
        await held.reached()
        sandbox_id = (await yard.ask("find", name=name))["sandbox_id"]
        (birth_id,) = yard.containers()
        yard.kill_container(birth_id)
        await eventually(lambda: is_exited(yard, birth_id), "it was not killed")
        await held.release()
        with pytest.raises(Aborted) as died:
            await creating
    assert (died.value.code, died.value.admitted) == ("launch_died", "yes")
    assert died.value.message.startswith("launch_runtime: ")
    assert (died.value.sandbox_id, died.value.details["exit_code"]) == (sandbox_id, 137)
    assert (await yard.until(sandbox_id, "destroyed"))["evidence"]["exit_code"] == 137
    assert yard.containers() == []
    assert (await yard.create(name=name))["phase"] == "running"


async def is_exited(yard: Yard, birth_id: str) -> bool:
    return yard.state_of(birth_id) == "exited"


async def test_during_a_command(yard: Yard) -> None:
    """The command is interrupted, never a success; the workspace comes back from its snapshot as generation 2."""
    view = await yard.create()
    await yard.write(view["id"], "/kept", b"kept")
    snapshot = await yard.snapshot(view["id"])
    await yard.write(view["id"], "/lost", b"lost")
    async with Keeper.join(yard.config.state_dir) as keeper:
        sandbox = await keeper.get(view["id"])
        running = asyncio.create_task(
            sandbox.run("echo begun; touch /begun; sleep 600; echo no", user="root")
        )
        await eventually(lambda: sandbox.files.exists("/begun"), "the run did not start")
        yard.kill_container(view["birth_id"])
        result = await running
        assert (result.outcome, result.exit_code, result.generation) == ("interrupted", None, 1)
        assert result.stdout == "begun\n"
        now = await yard.until(view["id"], "running", generation=2)
        assert (now["evidence"]["reason"], now["evidence"]["exit_code"]) == ("killed", 137)
        assert now["boot_snapshot"] == snapshot["id"]
        after = await sandbox.run("cat /kept; ls /lost /begun", user="root")
    assert (after.generation, after.stdout) == (2, "kept")
    assert yard.containers() == [now["birth_id"]]
    lost = [event for event in await yard.events(view["id"]) if event["kind"] == "runtime_lost"]
    assert [event["details"]["reason"] for event in lost] == ["killed"]


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
async def test_during_a_snapshot(yard: Yard, is_after: bool) -> None:
    """It did not happen; the last valid snapshot is what comes back, and it still restores elsewhere."""
    view = await yard.create()
    await yard.write(view["id"], "/kept", b"kept")
    snapshot = await yard.snapshot(view["id"])
    request_id = token()
    with yard.engine.hold("commit", after=is_after) as held:
        taking = asyncio.create_task(yard.snapshot(view["id"], request_id=request_id))
        await held.reached()
        yard.kill_container(view["birth_id"])
        # A frozen process takes the signal when it is thawed: by the engine here, whoever else waits for it.
        yard.docker.unpause(view["birth_id"])
        with pytest.raises(Aborted) as lost:
            await taking
        assert (lost.value.code, lost.value.admitted) == ("runtime_lost", "yes")
        await held.release()
    now = await yard.until(view["id"], "running", generation=2)
    assert now["boot_snapshot"] == snapshot["id"]
    assert await yard.read(view["id"], "/kept") == b"kept"
    await yard.ask("sweep")
    assert yard.images() == [snapshot["id"]]
    assert await yard.restores(snapshot["id"], "/kept") == b"kept"
    with pytest.raises(Aborted) as again:
        await yard.snapshot(view["id"], request_id=request_id)
    assert again.value.code == "runtime_lost"


async def test_while_nobody_is_there(yard: Yard) -> None:
    """The owner is dead when it happens: the next one notices at its start."""
    view = await yard.create()
    kept = await yard.create(on_lost="stop")
    await yard.kill_owner()
    yard.kill_container(view["birth_id"])
    yard.kill_container(kept["birth_id"])
    await yard.start_owner()
    now = await yard.until(view["id"], "running", generation=2)
    assert now["evidence"]["reason"] == "killed"
    stopped = await yard.until(kept["id"], "stopped")
    assert (stopped["generation"], stopped["evidence"]["reason"]) == (1, "killed")
    assert sorted(yard.containers()) == sorted([now["birth_id"], kept["birth_id"]])


async def test_removed_by_somebody(yard: Yard) -> None:
    """`docker rm -f` of a running and of a paused one: both are lost, and told, and come back."""
    running, paused = await yard.create(), await yard.create()
    await yard.change("pause", paused["id"])
    for view in (running, paused):
        yard.docker.remove_container(view["birth_id"], force=True)
    for view in (running, paused):
        now = await yard.until(view["id"], "running", generation=2)
        assert now["evidence"]["reason"] == "vanished"
    assert len(yard.containers()) == 2


async def test_a_box_that_dies_at_every_start_is_given_up(yard: Yard) -> None:
    """A budget with back-off, then `failed` with the evidence; the last snapshot is still there."""
    view = await yard.create()
    snapshot = await yard.snapshot(view["id"])

    async def kill_again() -> bool:
        now = await yard.describe(view["id"])
        if now["phase"] == "running" and now["pending"] is None:
            yard.kill_container(now["birth_id"])
            await eventually(lambda: has_left(now["generation"]), "the loss was not noticed")
        return bool(now["phase"] == "failed")

    async def has_left(generation: int) -> bool:
        now = await yard.describe(view["id"])
        return bool(now["generation"] != generation or now["phase"] != "running")

    await eventually(kill_again, "it was rebuilt for ever")
    failed = await yard.until(view["id"], "failed")
    assert failed["evidence"]["reason"] == "killed"
    assert yard.containers() == []
    with pytest.raises(FailedPrecondition) as refused:
        await yard.own("lease", sandbox_id=view["id"])
    assert refused.value.code == "sandbox_failed"
    again = await yard.change("start", view["id"])
    assert (again["phase"], again["boot_snapshot"]) == ("running", snapshot["id"])
