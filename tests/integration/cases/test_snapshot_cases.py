"""Snapshots: a reset is whole, a restore interrupted is not half done, and what is used is not deleted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandkeeper.core.errors import FailedPrecondition, NotFound, SandkeeperError
from tests.support.box_tree import differences, tree_of
from tests.support.yard import Yard, eventually, token

pytestmark = pytest.mark.docker

RESETS = 4
MAKE = r"""
set -e
mkdir -p /srv/tree/sub && cd /srv/tree
echo one > kept; echo two > removed; echo three > edited; echo four > moded; echo five > owned
ln -s kept link
python3 -c 'import os; os.setxattr("kept", "user.note", b"before")'
"""
SPOIL = r"""
set -e
cd /srv/tree
echo new > created; rm removed; echo changed >> edited; chmod 4700 moded; chown 1000:1000 owned
ln -sfn edited link; rmdir sub
python3 -c 'import os; os.setxattr("kept", "user.note", b"after"); os.setxattr("kept", "user.more", b"x")'
(sleep 1000 &) ; python3 -m http.server 8123 >/dev/null 2>&1 &
"""
LEFT = "pgrep -c sleep; python3 -c 'import socket; print(socket.socket().connect_ex((\"127.0.0.1\", 8123)))'"


async def test_s3_each_episode_begins_as_the_first(yard: Yard) -> None:
    """Scaled down: four resets, each a fork of the same snapshot. No process, port or attribute stays."""
    source = await yard.create(image="base")
    assert (await yard.run(source["id"], MAKE)).exit_code == 0
    first = await tree_of(yard, source["id"], "/srv/tree")
    snapshot = await yard.snapshot(source["id"])
    await yard.change("destroy", source["id"])
    for _ in range(RESETS):
        episode = await yard.create(snapshot=snapshot["id"])
        assert differences(first, await tree_of(yard, episode["id"], "/srv/tree")) == {}
        left = await yard.run(episode["id"], LEFT)
        assert left.stdout == "0\n111\n", "no process and nobody listens"
        spoilt = await yard.run(episode["id"], SPOIL)
        assert spoilt.exit_code == 0, spoilt.stderr
        assert len(differences(first, await tree_of(yard, episode["id"], "/srv/tree"))) >= 8
        await yard.change("destroy", episode["id"])
    with pytest.raises(NotFound) as unknown:
        await yard.create(snapshot="sn0000000000000000")
    assert unknown.value.code == "snapshot_not_found"


async def test_s7_what_a_snapshot_holds_and_what_it_does_not(yard: Yard) -> None:
    """The default folder and `/tmp` are in it. `/dev/shm` is memory, which no snapshot holds; a VOLUME is refused."""
    source = await yard.create()
    made = await yard.run(
        source["id"], "cd /home/user; echo home > kept; echo tmp > /tmp/kept; echo shm > /dev/shm/gone"
    )
    assert made.exit_code == 0
    snapshot = await yard.snapshot(source["id"])
    fork = await yard.create(snapshot=snapshot["id"])
    seen = await yard.run(fork["id"], "cat /home/user/kept /tmp/kept; ls /dev/shm")
    assert seen.stdout == "home\ntmp\n"


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("verb", ["create", "start"])
async def test_s11_a_restore_cut_by_the_end_of_its_owner_is_whole(
    yard: Yard, verb: str, is_after: bool
) -> None:
    """Scaled down: four points, at which the engine is at work."""
    source = await yard.create()
    await yard.run(source["id"], "for i in $(seq 50); do echo $i > /srv/$i; done")
    snapshot = await yard.snapshot(source["id"])
    await yard.change("destroy", source["id"])
    with yard.engine.hold(verb, after=is_after) as held:
        restoring = asyncio.create_task(yard.create(snapshot=snapshot["id"]))
        await held.reached()
        await yard.kill_owner()
        await yard.start_owner()
        view = await restoring
        await held.release()
    assert (view["phase"], view["boot_snapshot"]) == ("running", snapshot["id"])
    assert yard.containers() == [view["birth_id"]]
    assert (
        await yard.run(view["id"], "cat /srv/* | sort -n | tail -1; ls /srv | wc -l")
    ).stdout == "50\n50\n"


async def test_s14_a_snapshot_before_it_runs_waits_or_is_refused(yard: Yard) -> None:
    name = f"early-{token()}"
    creating = asyncio.create_task(yard.create(name=name, start=["sh", "-c", "echo up; exec sleep 1000"]))

    async def asked() -> Any:
        try:
            sandbox_id = (await yard.ask("find", name=name))["sandbox_id"]
            return await yard.snapshot(sandbox_id)
        except NotFound:
            return None  # nobody has heard of it yet
        except SandkeeperError as error:
            return error

    answer = await eventually(asked, "no answer")
    view = await creating
    if isinstance(answer, SandkeeperError):
        assert (answer.code, answer.admitted) == ("sandbox_not_running", "no"), answer
        answer = await yard.snapshot(view["id"])
    assert answer["state"] == "valid"
    assert await yard.restores(answer["id"], "/etc/hostname")


async def test_s15_a_snapshot_that_is_used_is_not_deleted(yard: Yard) -> None:
    """The refusal names who uses it; they start again and are forked; afterwards it can go."""
    source = await yard.create()
    await yard.write(source["id"], "/kept", b"kept")
    snapshot = await yard.snapshot(source["id"])
    await yard.change("destroy", source["id"])
    children = [await yard.create(snapshot=snapshot["id"]) for _ in range(2)]
    with pytest.raises(FailedPrecondition) as used:
        await yard.ask("delete_snapshot", snapshot_id=snapshot["id"], request_id=token())
    assert used.value.code == "snapshot_in_use"
    assert all(child["id"] in f"{used.value.message} {used.value.details}" for child in children)

    await yard.restart_owner()
    for child in children:
        await yard.change("stop", child["id"], keep="files")
        await yard.change("start", child["id"])
        assert await yard.read(child["id"], "/kept") == b"kept"
    grandchild = await yard.snapshot(children[0]["id"])
    for child in children:
        await yard.change("destroy", child["id"])
    await yard.ask("delete_snapshot", snapshot_id=snapshot["id"], request_id=token())
    assert await yard.restores(grandchild["id"], "/kept") == b"kept", (
        "a parent's end costs its children nothing"
    )
