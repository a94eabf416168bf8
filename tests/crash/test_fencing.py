"""Two owners where there may be one: the stopped predecessor is ended first, and a stale one changes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from sandkeeper.boxd import BoxdLink
from sandkeeper.core.errors import Aborted, SandkeeperError
from sandkeeper.ports import real_ports
from tests.support.yard import Yard, token

pytestmark = [pytest.mark.crash, pytest.mark.docker]


async def test_a_stopped_owner_is_ended_before_the_next_acts(yard: Yard) -> None:
    """SIGSTOP in the middle of a commit: the new one takes the lock from a process that is dead by then."""
    view = await yard.create()
    await yard.write(view["id"], "/kept", b"kept")
    snapshot = await yard.snapshot(view["id"])
    first = yard.owner
    assert first is not None
    epoch = (await yard.own("ping"))["epoch"]
    with yard.engine.hold("commit") as held:
        taking = asyncio.create_task(yard.snapshot(view["id"]))
        await held.reached()
        first.send_signal(signal.SIGSTOP)
        yard.engine.seen.clear()
        await yard.start_owner()
        assert await asyncio.to_thread(first.wait) == -signal.SIGKILL
        assert (await yard.own("ping"))["epoch"] == epoch + 1
        with pytest.raises(Aborted) as cut:
            await taking
        assert cut.value.code == "snapshot_interrupted"
        await held.release()
    for pipe in (first.stdin, first.stdout):
        assert pipe is not None
        pipe.close()
    await yard.until(view["id"], "running", generation=1)
    await yard.ask("sweep")
    assert yard.images() == [snapshot["id"]]
    assert await yard.read(view["id"], "/kept") == b"kept"


async def test_the_lock_is_taken_after_the_epoch_and_before_any_engine_call(yard: Yard) -> None:
    """While the predecessor cannot be ended, the next incarnation asks the engine nothing."""
    view = await yard.create()
    epoch = (await yard.own("ping"))["epoch"]
    # A second incarnation beside a living one: the living one loses, whole.
    first = yard.owner
    assert first is not None
    await yard.start_owner()
    assert await asyncio.to_thread(first.wait) == -signal.SIGKILL
    for pipe in (first.stdin, first.stdout):
        assert pipe is not None
        pipe.close()
    now = await yard.own("ping")
    assert (now["epoch"], now["pid"]) == (epoch + 1, yard.owner.pid if yard.owner else 0)
    lock = json.loads(yard.config.paths.owner(yard.owner_id).lock.read_text())  # type: ignore[arg-type]
    assert lock["pid"] == now["pid"]
    assert (await yard.run(view["id"], "echo on")).stdout == "on\n"


async def test_a_stale_client_changes_nothing(yard: Yard) -> None:
    """Every mutating call with an old epoch is refused by the box itself, as is one with another generation."""
    view = await yard.create()
    lease = await yard.own("lease", sandbox_id=view["id"])
    await yard.restart_owner()
    fresh = await yard.own("lease", sandbox_id=view["id"])
    assert fresh["epoch"] == lease["epoch"] + 1
    assert (await yard.run(view["id"], "true")).exit_code == 0, "the box has heard of the new epoch"

    async def refusals(generation: int, epoch: int) -> set[str]:
        link = BoxdLink(Path(lease["control_path"]), generation=generation, epoch=epoch, ports=real_ports())
        tries = {
            "run": lambda: link.runs.collect(["touch", "/stale"], run_id=token(), user="root"),
            "write": lambda: link.files.write("/stale", data=b"x", user="root"),
            "mkdir": lambda: link.files.mkdir("/stale"),
            "remove": lambda: link.files.remove("/etc/passwd"),
            "quiesce": lambda: link.quiesce(reason="stale", force=True),
            "go": lambda: link.go(birth_id=view["birth_id"]),
        }
        codes = set()
        try:
            for attempt in tries.values():
                with pytest.raises(SandkeeperError) as refused:
                    await attempt()
                codes.add(refused.value.code)
        finally:
            await link.aclose()
        return codes

    assert await refusals(lease["generation"], lease["epoch"]) == {"stale_epoch"}
    assert await refusals(lease["generation"] + 1, fresh["epoch"]) == {"wrong_generation"}
    assert (await yard.run(view["id"], "ls /stale; cat /etc/passwd | head -c 4")).stdout == "root"


async def test_a_stopped_directory_is_ended_too(yard: Yard) -> None:
    view = await yard.create()
    first = yard.directory
    assert first is not None
    os.kill(first.pid, signal.SIGSTOP)
    await yard.start_directory()
    assert await asyncio.to_thread(first.wait) == -signal.SIGKILL
    for pipe in (first.stdin, first.stdout):
        assert pipe is not None
        pipe.close()
    assert [found["id"] for found in await yard.ask("list")] == [view["id"]]
