"""An owner killed while layers are made one, a directory killed while an archive is loaded: it did not happen."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandkeeper.core.errors import SandkeeperError
from tests.integration.snapshots.conftest import FLATTEN_AT_DEPTH
from tests.support.yard import Yard, eventually, token

pytestmark = [pytest.mark.docker, pytest.mark.crash]


async def at_the_limit(yard: Yard) -> str:
    """Return a sandbox whose next snapshot is flattened."""
    view = await yard.create()
    for turn in range(FLATTEN_AT_DEPTH - 1):
        await yard.write(view["id"], f"/srv/{turn}", b"kept")
        snapshot = await yard.snapshot(view["id"])
        await yard.change("destroy", view["id"])
        view = await yard.create(snapshot=snapshot["id"])
    return str(view["id"])


async def test_a_flattening_cut_by_the_end_of_its_owner(strict_yard: Yard) -> None:
    yard = strict_yard
    sandbox_id = await at_the_limit(yard)
    known = {one["id"] for one in await yard.ask("snapshots")}
    with yard.engine.hold("import") as held:
        taking = asyncio.create_task(yard.snapshot(sandbox_id))
        await held.reached()
        assert [name for name in yard.containers() if name.startswith("flat-")]
        await yard.kill_owner()
        await yard.start_owner()
        with pytest.raises(SandkeeperError) as cut:
            await taking
        await held.release()
    assert cut.value.code == "snapshot_interrupted"
    assert {one["id"] for one in await yard.ask("snapshots")} == known

    async def is_clean() -> bool:
        await yard.ask("sweep")
        names = [*yard.containers(), *yard.images()]
        return not [name for name in names if name.startswith(("flat-", "pending-"))]

    await eventually(is_clean, "names of the cut flattening stay")
    assert (await yard.describe(sandbox_id))["phase"] == "running"
    again = await yard.snapshot(sandbox_id)
    assert again["is_flattened"]
    assert await yard.restores(again["id"], "/srv/0") == b"kept"


async def test_an_import_cut_by_the_end_of_its_directory(strict_yard: Yard, tmp_path: Path) -> None:
    yard = strict_yard
    view = await yard.create()
    await yard.write(view["id"], "/srv/work", b"kept")
    snapshot = await yard.snapshot(view["id"])
    await yard.change("destroy", view["id"])
    path = str(tmp_path / "one.snapshot")
    await yard.ask("export_snapshot", snapshot_id=snapshot["id"], path=path, request_id=token())
    await yard.ask("delete_snapshot", snapshot_id=snapshot["id"], request_id=token())
    request_id = token()
    with yard.engine.hold("load") as held:
        importing = asyncio.create_task(yard.ask("import_snapshot", path=path, request_id=request_id))
        await held.reached()
        await yard.kill_directory()
        importing.cancel()
        await asyncio.gather(importing, return_exceptions=True)
        held.drop()
        await yard.start_directory()
    assert await yard.ask("snapshots") == []
    assert yard.images() == []
    back = await yard.ask("import_snapshot", path=path, request_id=request_id)
    assert await yard.restores(back["id"], "/srv/work") == b"kept"
