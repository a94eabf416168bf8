"""Snapshot, restore and delete again and again: the engine has in the end what it had."""

from __future__ import annotations

import pytest

from tests.support.yard import Yard

pytestmark = pytest.mark.docker


async def cycle(yard: Yard, number: int) -> None:
    source = await yard.create()
    await yard.run(source["id"], f"head -c 1000000 /dev/urandom > /srv/{number}")
    snapshot = await yard.snapshot(source["id"])
    await yard.change("destroy", source["id"])
    fork = await yard.create(snapshot=snapshot["id"])
    assert len(await yard.read(fork["id"], f"/srv/{number}")) == 1_000_000
    await yard.change("destroy", fork["id"])
    await yard.ask("delete_snapshot", snapshot_id=snapshot["id"], request_id=f"delete {number}")


async def many(yard: Yard, count: int) -> None:
    loose = set(yard.docker.images(quiet=True, filters={"dangling": True}))
    volumes = {volume["Name"] for volume in yard.docker.volumes()["Volumes"] or ()}
    for number in range(count):
        await cycle(yard, number)
    assert yard.images() == []
    ours = f"sandkeeper {yard.installation_id}"
    left = set(yard.docker.images(quiet=True, filters={"dangling": True})) - loose
    assert not [image for image in left if yard.docker.inspect_image(image)["Comment"] == ours]
    assert not {volume["Name"] for volume in yard.docker.volumes()["Volumes"] or ()} - volumes


async def test_five_cycles_leave_nothing(yard: Yard) -> None:
    await many(yard, 5)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_five_hundred_cycles_leave_nothing(yard: Yard) -> None:
    await many(yard, 500)


async def restored_each_time(yard: Yard, cycles: int) -> None:
    """Files 1..k are there after each cycle of writing file k and a snapshot, a stop or a pause."""
    view = await yard.create()
    for number in range(cycles):
        await yard.write(view["id"], f"/srv/{number}", str(number).encode())
        match number % 3:
            case 0:
                snapshot = await yard.snapshot(view["id"])
                await yard.change("destroy", view["id"])
                view = await yard.create(snapshot=snapshot["id"])
            case 1:
                await yard.change("stop", view["id"], keep="snapshot")
                await yard.change("start", view["id"])
            case _:
                await yard.change("pause", view["id"])
                await yard.change("resume", view["id"])
        seen = await yard.run(view["id"], "cd /srv && cat $(ls | sort -n) | tr -d '\\n'")
        assert seen.stdout == "".join(str(one) for one in range(number + 1))


async def test_every_cycle_has_what_all_before_had(yard: Yard) -> None:
    await restored_each_time(yard, 6)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_more_cycles_than_the_engine_takes_layers(strict_yard: Yard) -> None:
    await restored_each_time(strict_yard, 200)
