"""`snapshot pin|unpin|gc|export|import` against a fake installation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.control import FakeControl
from tests.unit.cli.conftest import Sk


@pytest.fixture
def snapshot(control: FakeControl, sk: Sk) -> str:
    return sk("snapshot", "take", sk("create").out.strip()).out.strip()


def test_a_pin_says_how_long(control: FakeControl, sk: Sk, snapshot: str) -> None:
    assert sk("snapshot", "pin", snapshot).out == "kept for ever\n"
    assert sk("snapshot", "pin", snapshot, "--keep-s", "60").status == 0
    assert [call.keep_s for call in control.called("pin_snapshot")] == [None, 60.0]
    assert sk("snapshot", "unpin", snapshot, "--json").json["id"] == snapshot
    assert sk("snapshot", "pin", snapshot, "--keep-s", "-1").status == 1


def test_a_dry_run_shows_and_keeps(control: FakeControl, sk: Sk, snapshot: str) -> None:
    shown = sk("snapshot", "gc", "--dry-run").out.splitlines()
    assert shown[0].split() == ["KIND", "NAME", "SIZE", "WHY"]
    assert shown[1].split() == ["snapshot", snapshot, "2.0", "KiB", "expired"]
    assert snapshot in control.snapshots
    assert sk("snapshot", "gc", "--json").json["dry_run"] is False
    assert control.snapshots == {}


def test_out_and_in_again(control: FakeControl, sk: Sk, snapshot: str, tmp_path: Path) -> None:
    path = tmp_path / "one.snapshot"
    assert sk("snapshot", "export", snapshot, str(path)).out == f"{'a' * 64}  {path}\n"
    again = sk("snapshot", "export", snapshot, str(path))
    assert (again.status, again.err.splitlines()[0].endswith("[path_exists]")) == (1, True)
    assert sk("snapshot", "export", snapshot, str(path), "--overwrite").status == 0
    assert sk("snapshot", "import", str(path), "--name", "back").out == "snback\n"
    assert control.snapshots["snback"].name == "back"


def test_the_list_shows_state_and_end(sk: Sk, snapshot: str) -> None:
    titles, row = sk("snapshot", "list").out.splitlines()
    assert titles.split()[-3:] == ["STATE", "EXPIRES", "(UTC)"]
    assert snapshot in row
    assert " valid " in row
