"""Retention, clean-up, missing images and archives, on a real engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandkeeper.core.errors import DataLoss, FailedPrecondition, InvalidArgument
from tests.support.yard import Yard, token

pytestmark = pytest.mark.docker


async def gc(yard: Yard, *, dry_run: bool) -> set[tuple[str, str]]:
    report = await yard.ask("gc", dry_run=dry_run)
    assert report["dry_run"] == dry_run
    assert all(item["why"] for item in report["items"])
    return {(item["kind"], item["name"]) for item in report["items"]}


async def test_what_is_over_goes_and_what_is_pinned_or_used_stays(yard: Yard) -> None:
    source = await yard.create()
    over = await yard.snapshot(source["id"], keep_s=0.05)
    pinned = await yard.snapshot(source["id"], keep_s=0.05)
    used = await yard.snapshot(source["id"], keep_s=0.05)
    fork = await yard.create(snapshot=used["id"])
    await yard.change("destroy", source["id"])
    kept = await yard.ask("pin_snapshot", snapshot_id=pinned["id"], request_id=token())
    assert kept["expires_at"] is None
    await asyncio.sleep(0.1)
    assert (await yard.ask("snapshot", snapshot_id=over["id"]))["state"] == "expired"
    assert await gc(yard, dry_run=True) == {("snapshot", over["id"])}
    assert over["id"] in yard.images()
    assert await gc(yard, dry_run=False) == {("snapshot", over["id"])}
    assert set(yard.images()) == {pinned["id"], used["id"]}
    with pytest.raises(FailedPrecondition) as refusal:
        await yard.ask("delete_snapshot", snapshot_id=used["id"], request_id=token())
    assert refusal.value.details["sandboxes"] == [fork["id"]]
    unpinned = await yard.ask("unpin_snapshot", snapshot_id=pinned["id"], request_id=token())
    assert unpinned["expires_at"] is not None


async def test_one_whose_image_was_removed_is_missing_and_nothing_older_is_taken(yard: Yard) -> None:
    source = await yard.create()
    await yard.snapshot(source["id"])
    snapshot = await yard.snapshot(source["id"])
    yard.docker.remove_image(f"sandkeeper-{yard.installation_id}:{snapshot['id']}")
    assert (await yard.ask("snapshot", snapshot_id=snapshot["id"]))["state"] == "missing"
    with pytest.raises(DataLoss) as refusal:
        await yard.create(snapshot=snapshot["id"])
    assert refusal.value.code == "snapshot_missing"
    yard.kill_container(source["birth_id"])
    failed = await yard.until(source["id"], "failed")
    assert failed["evidence"]["reason"] == "snapshot_missing"


async def test_an_archive_brings_a_snapshot_back(yard: Yard, tmp_path: Path) -> None:
    path = tmp_path / "one.snapshot"
    source = await yard.create()
    await yard.write(source["id"], "/work.txt", b"kept")
    snapshot = await yard.snapshot(source["id"], name="best")
    await yard.change("destroy", source["id"])
    exported = await yard.ask(
        "export_snapshot", snapshot_id=snapshot["id"], path=str(path), request_id=token()
    )
    assert exported["size_bytes"] == path.stat().st_size
    await yard.ask("delete_snapshot", snapshot_id=snapshot["id"], request_id=token())
    assert yard.images() == []
    request_id = token()
    back = await yard.ask("import_snapshot", path=str(path), request_id=request_id)
    assert (back["name"], back["state"], back["base_digest"]) == ("best", "valid", snapshot["base_digest"])
    assert back["id"] != snapshot["id"]
    assert await yard.restores(back["id"], "/work.txt") == b"kept"
    again = await yard.ask("import_snapshot", path=str(path), request_id=request_id)
    assert again["id"] == back["id"]
    await yard.kill_directory()
    await yard.start_directory()
    assert await yard.restores(back["id"], "/work.txt") == b"kept"


async def test_a_changed_archive_loads_nothing(yard: Yard, tmp_path: Path) -> None:
    path = tmp_path / "one.snapshot"
    source = await yard.create()
    snapshot = await yard.snapshot(source["id"])
    await yard.ask("export_snapshot", snapshot_id=snapshot["id"], path=str(path), request_id=token())
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"changed")
    before = yard.docker.images(quiet=True, all=True)
    with pytest.raises((DataLoss, InvalidArgument)) as refusal:
        await yard.ask("import_snapshot", path=str(path), request_id=token())
    assert refusal.value.code in ("archive_damaged", "archive_refused")
    assert set(yard.docker.images(quiet=True, all=True)) <= set(before)
