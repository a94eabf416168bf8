"""Manifests and the metadata that a committed image loses, across a real commit."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.raw_box import Box

pytestmark = pytest.mark.docker


def manifest(box: Box, path: str, **query: str) -> dict[str, dict[str, Any]]:
    more = "".join(f"&{name}={value}" for name, value in query.items())
    status, text = box.call("GET", f"/sandkeeper/v1/manifest?path={path}{more}")
    assert status == 200, text
    return {each["path"]: each for each in map(json.loads, text.splitlines())}


def stable(tree: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {path: {k: v for k, v in each.items() if k != "inode"} for path, each in tree.items()}


def test_a_manifest_tells_all_and_stays_on_its_file_system(box: Box) -> None:
    box.sh(
        "mkdir -p /tmp/t/d; printf abc > /tmp/t/a; ln /tmp/t/a /tmp/t/d/h; ln -s /etc /tmp/t/l; chmod 4711 /tmp/t/a"
    )
    box.call("POST", "/files?path=/tmp/t/x", b"", **{"X-Metadata-K": "v"})
    seen = manifest(box, "/tmp/t", hash="1")
    assert sorted(seen) == [".", "a", "d", "d/h", "l", "x"]
    assert (seen["a"]["mode"], seen["a"]["links"], seen["a"]["size"]) == (0o4711, 2, 3)
    assert seen["a"]["sha256"].startswith("ba7816bf")
    assert seen["l"] | {"type": "symlink", "link": "/etc"} == seen["l"]
    assert list(seen["x"]["xattrs"]) == ["user.e2b.k"]
    whole = manifest(box, "/")
    assert "proc" in whole
    assert not any(path.startswith(("proc/", "sys/", ".sandkeeper/")) for path in whole)


def test_a_commit_keeps_attributes_and_nanoseconds(make_box: Any, boxd_binary: Path) -> None:
    box = make_box()
    box.sh(
        "mkdir -p /srv/d; cd /srv; echo 1 > a; echo 2 > d/b; ln -s a l; "
        "touch -d '2020-01-02 03:04:05.678901234' a d/b d"
    )
    box.call("POST", "/files?path=/srv/x", b"x", **{"X-Metadata-Colour": "red"})
    before = manifest(box, "/srv", hash="1")
    assert before["a"]["mtimeNs"] % 1_000_000_000 == 678901234
    status, saved = box.ask("POST", "/sandkeeper/v1/metadata/save")
    assert (status, saved["truncated"]) == (200, False)
    assert box.sh("stat -c '%U %a' /.sandkeeper-metadata").stdout == b"root 600\n"
    assert ".sandkeeper-metadata" not in manifest(box, "/")
    made = subprocess.run(
        ["docker", "commit", "-p=false", box.birth_id], check=True, capture_output=True, text=True
    )
    image = made.stdout.strip()
    try:
        assert box.ask("POST", "/sandkeeper/v1/resume", {"epoch": 1})[0] == 200
        assert box.sh("test -e /.sandkeeper-metadata").end["exitCode"] == 1
        twin = Box(boxd_binary, image)
        try:
            hello = twin.ask("GET", "/sandkeeper/v1/hello")[1]
            # What the engine makes anew for each container has changed, and is left alone.
            assert sum(hello["metadata"].values()) == saved["entries"]
            assert stable(manifest(twin, "/srv", hash="1")) == stable(before)
            assert twin.sh("test -e /.sandkeeper-metadata").end["exitCode"] == 1
        finally:
            twin.close()
    finally:
        subprocess.run(["docker", "rmi", "-f", image], check=True, stdout=subprocess.DEVNULL)


def test_a_restart_takes_nothing_back(make_box: Any) -> None:
    """What was saved for a commit is older than what the container has now."""
    box = make_box()
    box.call("POST", "/files?path=/srv/x", b"x", **{"X-Metadata-Colour": "red"})
    assert box.ask("POST", "/sandkeeper/v1/metadata/save")[0] == 200
    box.call("POST", "/files?path=/srv/x", b"x", **{"X-Metadata-Colour": "blue"})
    box.restart()
    assert box.go(generation=2)[0] == 200
    entry = box.ask("POST", "/filesystem.Filesystem/Stat", {"path": "/srv/x"})[1]["entry"]
    assert entry["metadata"] == {"colour": "blue"}
    assert box.sh("test -e /.sandkeeper-metadata").end["exitCode"] == 1
