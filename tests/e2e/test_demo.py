"""`sandkeeper demo` does what it says: real tests in real boxes, a killed container, a killed owner, one winner."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.up import containers_of, images_of, remove_traces, run_sk

pytestmark = [
    pytest.mark.docker,
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.crash,
    pytest.mark.timeout(600),
]


@pytest.fixture
def state_dir() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="sk-demo-"))
    yield folder
    identity = json.loads((folder / "demo" / "machine.json").read_text())
    remove_traces(identity["installation_id"])
    shutil.rmtree(folder)


def seen(document: dict[str, Any], event: str) -> list[dict[str, Any]]:
    return [entry for entry in document["events"] if entry.get("event") == event]


def test_the_demonstration(state_dir: Path) -> None:
    done = run_sk(state_dir, "demo", "--json", check=False, timeout_s=580)
    document = json.loads(done.stdout)
    assert done.returncode == 0, document["failure"]
    assert done.stderr == b""
    assert (document["ok"], document["winner"]) == (True, "right")

    attempts = {attempt["name"]: attempt for attempt in document["attempts"]}
    came = {name: (one["state"], one["outcome"], one["exit_code"]) for name, one in attempts.items()}
    assert came == {
        "right": ("succeeded", "exited", 0),
        "wrong": ("failed", "exited", 1),
        "hanging": ("timeout", "timeout", None),
        "hoarding": ("oom_killed", "signaled", None),
    }
    assert {name: one["generation"] for name, one in attempts.items()} == {
        "right": 2,
        "wrong": 1,
        "hanging": 1,
        "hoarding": 1,
    }
    assert attempts["right"]["tests"] == "663 passed"
    assert " failed" in attempts["wrong"]["tests"]
    assert all(one["duration_ms"] > 0 for one in attempts.values())

    [container], [lost] = (
        seen(document, "container_killed"),
        [entry for entry in seen(document, "runtime_lost") if "reason" in entry],
    )
    assert (container["attempt"], lost["attempt"], lost["reason"]) == ("right", "right", "killed")
    [rebuilt] = seen(document, "rebuilt")
    assert (rebuilt["attempt"], rebuilt["generation"]) == ("right", 2)
    [owner], [back] = seen(document, "owner_killed"), seen(document, "owner_back")
    assert back["epoch"] > owner["epoch"]
    assert back["pid"] != owner["pid"]
    times = [entry["elapsed_ms"] for entry in document["events"]]
    assert times == sorted(times)
    order = [container, lost, owner, back]
    assert order == sorted(order, key=lambda entry: entry["elapsed_ms"])
    ended = {entry["attempt"]: entry["elapsed_ms"] for entry in seen(document, "attempt_finished")}
    assert ended["hanging"] > owner["elapsed_ms"]

    patch = Path(document["patch"]).read_text()
    assert "+    for _ in islice(filler, step - 1, None, step):" in patch
    identity = json.loads((state_dir / "demo" / "machine.json").read_text())
    installation_id = identity["installation_id"]
    assert containers_of(installation_id) == []
    assert images_of(installation_id) == [f"sandkeeper-{installation_id}:{document['snapshot']}"]
    assert not (state_dir / "demo" / "up.json").exists()
