"""`keeper.snapshots` and `sandbox.fork` against a fake installation."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandkeeper.client.keeper import Keeper
from sandkeeper.core.errors import Aborted, AlreadyExists, NotFound
from tests.fakes.control import FakeControl


async def test_a_running_fork_is_a_snapshot_and_its_forks(control: FakeControl, keeper: Keeper) -> None:
    source = await keeper.create()
    made = await source.fork(3, labels={"of": "one"})
    assert len({sandbox.id for sandbox in (source, *made)}) == 4
    (taken,) = control.called("take_snapshot")
    assert taken.keep_s == 3600.0
    (snapshot,) = await keeper.snapshots.list()
    assert {call.snapshot for call in control.called("create")[1:]} == {snapshot.id}
    assert {call.labels["of"] for call in control.called("create")[1:]} == {"one"}
    found = await keeper.get(source.id)
    assert len(await found.fork()) == 1


async def test_what_takes_long_is_waited_for_under_one_request_id(
    control: FakeControl, keeper: Keeper, tmp_path: Path
) -> None:
    snapshot = await (await keeper.create()).snapshot()
    going = Aborted("it goes on", code="in_progress", admitted="yes", retry_after_s=0.01)
    control.failures["export_snapshot"] = [going, going]
    control.failures["import_snapshot"] = [going]
    exported = await keeper.snapshots.export(snapshot.id, tmp_path / "one")
    assert exported.path == str(tmp_path / "one")
    assert len({call.request_id for call in control.called("export_snapshot")}) == 1
    back = await keeper.snapshots.import_(tmp_path / "one", name="back")
    assert back.name == "back"
    assert len({call.request_id for call in control.called("import_snapshot")}) == 1


async def test_a_file_that_is_there_is_not_overwritten_unasked(
    control: FakeControl, keeper: Keeper, tmp_path: Path
) -> None:
    snapshot = await (await keeper.create()).snapshot()
    (tmp_path / "one").write_text("mine")
    with pytest.raises(AlreadyExists):
        await keeper.snapshots.export(snapshot.id, tmp_path / "one")
    assert control.called("export_snapshot") == []
    await keeper.snapshots.export(snapshot.id, tmp_path / "one", overwrite=True)


async def test_pins_and_clean_up(control: FakeControl, keeper: Keeper) -> None:
    snapshot = await (await keeper.create()).snapshot()
    assert (await keeper.snapshots.pin(snapshot.id)).expires_at is None
    assert (await keeper.snapshots.unpin(snapshot.id)).id == snapshot.id
    report = await keeper.snapshots.collect(dry_run=True)
    assert [(item.name, item.why) for item in report.items] == [(snapshot.id, "expired")]
    with pytest.raises(NotFound):
        await keeper.snapshots.pin("sn404")
