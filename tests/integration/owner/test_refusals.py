"""What is refused, with which error, and that a refusal makes nothing: asked of a real directory and owner."""

from __future__ import annotations

import asyncio
import io
import math
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandkeeper import Keeper
from sandkeeper.core.admission import Policy
from sandkeeper.core.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    SandkeeperError,
)
from tests.support.yard import Yard, token

pytestmark = pytest.mark.docker

VOLUME_TAG = "sandkeeper-test-volume:one"


async def refused(yard: Yard, kind: type[SandkeeperError], **fields: Any) -> SandkeeperError:
    """Ask for a sandbox that must be refused, and see that nothing was made and nothing is remembered of it."""
    yard.engine.seen.clear()
    name = f"no-{token()}"
    with pytest.raises(kind) as no:
        await yard.create(name=name, **fields)
    assert no.value.admitted == "no"
    assert "create" not in yard.engine.seen
    assert (yard.containers(), yard.folders(), await yard.ask("list")) == ([], [], [])
    with pytest.raises(NotFound):
        await yard.ask("find", name=name)
    return no.value


# ---------------------------------------------------------------- images


async def test_an_image_nobody_declared(yard: Yard) -> None:
    error = await refused(yard, PermissionDenied, image="no-such-image")
    assert (error.code, error.details["rule"]) == ("image_not_allowed", "images")


@pytest.fixture
async def odd_yard(yard: Yard) -> AsyncIterator[Yard]:
    """The yard with a policy that allows an image nobody has, and one that declares a VOLUME."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("empty"))
    yard.docker.import_image_from_data(
        archive.getvalue(),
        repository=VOLUME_TAG.partition(":")[0],
        tag="one",
        changes=["VOLUME /precious"],
    )
    plain = yard.config
    yard.config = plain.model_copy(
        update={
            "policy": Policy(images=("slim", "absent", "volume")),
            "images": {"absent": "sandkeeper-test-absent:none", "volume": VOLUME_TAG},
        }
    )
    await yard.kill_directory()
    await yard.start_directory()
    yield yard
    yard.config = plain
    await yard.kill_directory()
    await yard.start_directory()
    yard.docker.remove_image(VOLUME_TAG)


async def test_an_image_that_is_not_there_and_one_with_a_volume(odd_yard: Yard) -> None:
    absent = await refused(odd_yard, NotFound, image="absent")
    assert absent.code == "image_not_present"
    assert "absent" in absent.advice
    volume = await refused(odd_yard, FailedPrecondition, image="volume")
    assert (volume.code, volume.details["volumes"]) == ("image_declares_volume", ["/precious"])


# ---------------------------------------------------------------- sizes


@pytest.mark.parametrize("number", [-1, 0, 2**54, math.nan, math.inf, "4g", None, True, [1]])
@pytest.mark.parametrize("field", ["vcpu", "memory_mib"])
async def test_a_size_that_is_none(yard: Yard, field: str, number: Any) -> None:
    """Refused by the SDK before anything is sent, and by the directory whoever sends it."""
    fields = {"vcpu": 1, "memory_mib": 256, field: number}
    error = await refused(yard, InvalidArgument, size={"name": "custom", **fields})
    assert error.code == "invalid_parameters"
    assert f"size.{field}" in error.message
    async with Keeper.join(yard.config.state_dir) as keeper:
        with pytest.raises(InvalidArgument) as early:
            await keeper.create(image="slim", size=fields)
    assert (early.value.code, early.value.details["field"]) == ("size_invalid", f"size.{field}")


@pytest.mark.parametrize("size", ["4g", "huge", "", "-1"])
async def test_a_size_by_a_name_that_is_none(yard: Yard, size: str) -> None:
    async with Keeper.join(yard.config.state_dir) as keeper:
        with pytest.raises(InvalidArgument) as unknown:
            await keeper.create(image="slim", size=size)
    assert unknown.value.code == "size_unknown"


async def test_a_size_beyond_policy_or_machine(yard: Yard) -> None:
    error = await refused(yard, PermissionDenied, size={"name": "custom", "vcpu": 1, "memory_mib": 8193})
    assert (error.code, error.details["rule"]) == ("size_not_allowed", "max_custom_memory_mib")
    error = await refused(yard, PermissionDenied, size={"name": "gold", "vcpu": 1, "memory_mib": 256})
    assert (error.code, error.details["rule"]) == ("size_not_allowed", "sizes")


async def test_a_resize_is_bounded_like_a_create(yard: Yard) -> None:
    view = await yard.create()
    for number in (-1, 0, 2**54, math.nan, "4g"):
        with pytest.raises(InvalidArgument):
            await yard.change("resize", view["id"], size={"name": "custom", "vcpu": 1, "memory_mib": number})
    with pytest.raises(PermissionDenied):
        await yard.change("resize", view["id"], size={"name": "custom", "vcpu": 1, "memory_mib": 9000})
    assert "update" not in yard.engine.seen
    assert (await yard.describe(view["id"]))["size"] == view["size"]


# ---------------------------------------------------------------- snapshots


async def test_a_snapshot_that_is_not_there(yard: Yard) -> None:
    for snapshot_id in ("sn0000000000000000", "", "../../x", "sn" + "f" * 500):
        error = await refused(yard, NotFound, snapshot=snapshot_id)
        assert error.code == "snapshot_not_found"


async def test_a_snapshot_of_another_image(yard: Yard) -> None:
    """It restores on its own image only; and it does so after the refusal."""
    source = await yard.create()
    await yard.write(source["id"], "/kept", b"kept")
    snapshot = await yard.snapshot(source["id"])
    await yard.change("destroy", source["id"])
    error = await refused(yard, InvalidArgument, snapshot=snapshot["id"], image="base")
    assert error.code == "snapshot_image_mismatch"
    assert error.details["base_digest"] == snapshot["base_digest"]
    assert await yard.restores(snapshot["id"], "/kept") == b"kept"


async def test_a_deleted_snapshot_is_gone_for_good(yard: Yard) -> None:
    source = await yard.create()
    snapshot = await yard.snapshot(source["id"])
    with pytest.raises(FailedPrecondition) as used:
        await yard.ask("delete_snapshot", snapshot_id=snapshot["id"], request_id=token())
    assert used.value.code == "snapshot_in_use"
    await yard.change("destroy", source["id"])
    await yard.ask("delete_snapshot", snapshot_id=snapshot["id"], request_id=token())
    assert yard.images() == []
    error = await refused(yard, NotFound, snapshot=snapshot["id"])
    assert error.code == "snapshot_not_found"


# ---------------------------------------------------------------- exec where nothing can run


async def test_exec_where_nothing_runs(yard: Yard) -> None:
    view = await yard.create()
    async with Keeper.join(yard.config.state_dir) as keeper:
        sandbox = await keeper.get(view["id"])
        assert (await sandbox.run(["true"])).exit_code == 0

        await sandbox.pause()
        with pytest.raises(FailedPrecondition) as paused:
            await sandbox.run(["true"])
        assert (paused.value.code, paused.value.admitted) == ("sandbox_paused", "no")
        await sandbox.resume()

        await sandbox.stop(keep="files")
        with pytest.raises(FailedPrecondition) as stopped:
            await sandbox.run(["true"])
        assert (stopped.value.code, stopped.value.admitted) == ("sandbox_not_running", "no")

        await sandbox.destroy()
        with pytest.raises(NotFound) as destroyed:
            await sandbox.run(["true"])
        assert (destroyed.value.code, destroyed.value.admitted) == ("sandbox_destroyed", "no")

        for unknown in ("sb0000000000000000", "nobody"):
            with pytest.raises(NotFound) as nobody:
                await keeper.get(unknown)
            assert nobody.value.code == "sandbox_not_found"


# ---------------------------------------------------------------- one request id twice


async def test_one_request_twice_is_one_sandbox(yard: Yard) -> None:
    request_id = token()
    views = await asyncio.gather(*(yard.create(request_id=request_id) for _ in range(5)))
    assert all(view == views[0] for view in views)
    assert yard.containers() == [views[0]["birth_id"]]
    assert yard.engine.seen.count("create") == 1
    assert await yard.create(request_id=request_id) == views[0]
    with pytest.raises(AlreadyExists) as conflict:
        await yard.create(request_id=request_id, env={"OTHER": "1"})
    assert conflict.value.code == "request_id_conflict"
    assert yard.containers() == [views[0]["birth_id"]]


async def test_one_request_twice_for_every_verb(yard: Yard) -> None:
    """Also after the owner was killed: the answers are in its journal."""
    view = await yard.create()
    asked: list[tuple[str, dict[str, Any], Any]] = []
    for verb, fields in (
        ("take_snapshot", {"name": "one"}),
        ("pause", {}),
        ("resume", {}),
        ("resize", {"size": {"name": "custom", "vcpu": 1, "memory_mib": 300}}),
        ("stop", {"keep": "files"}),
        ("start", {}),
    ):
        request = {"request_id": token(), **fields}
        asked.append((verb, request, await yard.change(verb, view["id"], **request)))
    await yard.restart_owner()
    yard.engine.seen.clear()
    for verb, request, answer in asked:
        assert await yard.change(verb, view["id"], **request) == answer
    acting = {"commit", "pause", "unpause", "update", "stop", "start", "create", "remove"}
    assert not acting & set(yard.engine.seen)
    snapshot = asked[0][1] | {"name": "other"}
    with pytest.raises(AlreadyExists) as conflict:
        await yard.change("take_snapshot", view["id"], **snapshot)
    assert conflict.value.code == "request_id_conflict"
    with pytest.raises(AlreadyExists) as conflict:
        await yard.change("destroy", view["id"], request_id=asked[1][1]["request_id"])
    assert conflict.value.code == "request_id_conflict"
    assert (await yard.describe(view["id"]))["phase"] == "running"
    assert len(yard.images()) == 1


async def test_one_name_twice(yard: Yard) -> None:
    name = f"mine-{token()}"
    view = await yard.create(name=name)
    with pytest.raises(AlreadyExists) as taken:
        await yard.create(name=name)
    assert taken.value.code == "name_taken"
    assert yard.containers() == [view["birth_id"]]
    await yard.change("destroy", view["id"])
    assert (await yard.create(name=name))["id"] != view["id"], "a name is free again after the destroy"


def test_no_state_folder_is_told(tmp_path: Path) -> None:
    """A path that is no installation has nobody who could answer."""

    async def ask() -> None:
        async with Keeper.join(tmp_path / "none") as keeper:
            await keeper.list()

    with pytest.raises(SandkeeperError) as nobody:
        asyncio.run(ask())
    assert nobody.value.code == "not_up"
