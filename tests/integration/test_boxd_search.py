"""Files beyond envd in a real container: edits, metadata, glob, grep, watching; on an overlay file system as root."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from typing import Any

import pytest

from tests.support.raw_box import Box, Live

pytestmark = pytest.mark.docker

FILES = "/sandkeeper/v1/files/"


def stat(box: Box, path: str, **ours: Any) -> dict[str, Any]:
    status, answer = box.ask("POST", "/filesystem.Filesystem/Stat", {"path": path, "sandkeeper": ours})
    assert status == 200, answer
    return answer["entry"]


def test_edits_act_for_the_user_and_keep_what_they_should(box: Box) -> None:
    assert box.ask("POST", f"{FILES}append?path=/tmp/e/log&username=nobody", b"one\n")[0] == 200
    grown = box.ask("POST", f"{FILES}append?path=/tmp/e/log", b"two\n")
    assert grown == (200, {"path": "/tmp/e/log", "writtenBytes": 4, "sizeBytes": 8})
    assert stat(box, "/tmp/e/log")["owner"] == "nobody"
    box.sh("chmod 600 /tmp/e/log; ln -s log /tmp/e/l")
    both = {"source": "/tmp/e", "destination": "/tmp/e2", "recursive": True}
    assert box.ask("POST", f"{FILES}copy", both)[0] == 200
    assert box.sh("stat -c '%U %a %F' /tmp/e2/log /tmp/e2/l").stdout.split(b"\n")[:2] == [
        b"root 600 regular file",
        b"root 777 symbolic link",
    ]
    assert (
        box.ask("POST", f"{FILES}copy", {**both, "destination": "/tmp/e3", "preserveOwner": True})[0] == 200
    )
    assert stat(box, "/tmp/e3/log")["owner"] == "nobody"
    assert (
        box.ask("POST", f"{FILES}chown", {"path": "/tmp/e2", "user": "nobody", "recursive": True})[0] == 200
    )
    assert box.sh("stat -c %U /tmp/e2 /tmp/e2/log /tmp/e2/l").stdout == b"nobody\n" * 3
    assert box.ask("POST", f"{FILES}chmod", {"path": "/tmp/e2/log", "mode": 0o4755})[0] == 200
    assert box.sh("stat -c %a /tmp/e2/log").stdout == b"4755\n"
    made = box.ask("POST", f"{FILES}symlink?username=nobody", {"path": "/tmp/e/abs", "target": "/nowhere"})
    assert made[1]["entry"]["type"] == "FILE_TYPE_SYMLINK"
    assert stat(box, "/tmp/e/abs", noFollow=True)["owner"] == "nobody"


def test_a_recursive_change_stays_in_its_tree(box: Box) -> None:
    box.sh("mkdir -p /tmp/c/d; touch /tmp/kept; chmod 640 /tmp/kept; ln -s /tmp/kept /tmp/c/d/l")
    for name, change in (("chmod", {"mode": 0o777}), ("chown", {"user": "nobody"})):
        assert box.ask("POST", f"{FILES}{name}", {"path": "/tmp/c", "recursive": True, **change})[0] == 200
    assert box.sh("stat -c '%U %a' /tmp/kept").stdout == b"root 640\n"


def test_metadata_is_kept_with_the_file(box: Box) -> None:
    status, written = box.ask("POST", "/files?path=/tmp/m", b"x", **{"X-Metadata-Colour": "red"})
    assert (status, written[0]["metadata"]) == (200, {"colour": "red"})
    assert stat(box, "/tmp/m")["metadata"] == {"colour": "red"}
    assert box.ask("POST", f"{FILES}copy", {"source": "/tmp/m", "destination": "/tmp/m2"})[0] == 200
    assert stat(box, "/tmp/m2")["metadata"] == {"colour": "red"}
    assert box.ask("POST", "/files?path=/tmp/m", b"y")[0] == 200
    assert "metadata" not in stat(box, "/tmp/m")


def test_search_stays_on_the_file_system(box: Box) -> None:
    found = box.ask("POST", f"{FILES}glob", {"pattern": "/**/status", "limit": 100_000})[1]["paths"]
    assert not any(path.startswith("/proc/") for path in found)
    box.call("POST", "/files?path=/tmp/g/a.txt", "héllo needle\n".encode())
    box.sh("ln -s /etc /tmp/g/etc; mkfifo /tmp/g/pipe")
    status, text = box.call("POST", f"{FILES}grep", {"pattern": "needle|root", "root": "/tmp/g"})
    match, end = (json.loads(line) for line in text.splitlines())
    assert (status, match["text"], end["files"]) == (200, "héllo needle", 1)


def test_watching_tells_all_that_happens(box: Box) -> None:
    box.sh("mkdir -p /tmp/w")
    live = Live(box.control, "/filesystem.Filesystem/WatchDir", {"path": "/tmp/w", "recursive": True})
    with closing(live):
        assert live.first == {"start": {}}
        box.sh(
            "mkdir -p /tmp/w/a/b/c; echo x > /tmp/w/a/b/c/f; mv /tmp/w/a /tmp/w/z; rm -r /tmp/w/z; touch /tmp/w/end"
        )
        seen: list[tuple[str, str]] = []
        while ("end", "EVENT_TYPE_CREATE") not in seen:
            each = live.next()["filesystem"]
            seen.append((each["name"], each["type"]))
    assert seen[0] == ("a", "EVENT_TYPE_CREATE")
    assert ("a", "EVENT_TYPE_RENAME") in seen
    assert ("z", "EVENT_TYPE_REMOVE") in seen


def test_an_overflow_is_told_and_watchers_are_bounded(box: Box) -> None:
    box.sh("mkdir -p /tmp/o")
    made = [box.ask("POST", "/filesystem.Filesystem/CreateWatcher", {"path": "/tmp/o"}) for _ in range(130)]
    assert [status for status, _ in made] == [200] * 128 + [429] * 2
    threads = box.sh("grep Threads /proc/1/status").stdout
    box.sh("cd /tmp/o; i=0; while [ $i -lt 5000 ]; do : > $i; i=$((i+1)); done")
    first = {"watcherId": made[0][1]["watcherId"]}
    events: list[dict[str, Any]] = []
    while not any(each.get("sandkeeper", {}).get("overflow") for each in events):
        events += box.ask("POST", "/filesystem.Filesystem/GetWatcherEvents", first)[1]["events"]
    assert len(events) >= 4096
    for _, answer in made[:128]:
        assert box.ask("POST", "/filesystem.Filesystem/RemoveWatcher", answer)[0] == 200
    assert box.sh("grep Threads /proc/1/status").stdout == threads


def test_watched_trees_are_bounded(box: Box) -> None:
    box.sh("mkdir -p /tmp/many; cd /tmp/many; seq 9000 | xargs mkdir")
    request = {"path": "/tmp/many", "recursive": True}
    status, refusal = box.ask("POST", "/filesystem.Filesystem/CreateWatcher", request)
    assert (status, refusal["sandkeeper"]["code"]) == (429, "watch_limit")
    assert box.ask("POST", "/filesystem.Filesystem/CreateWatcher", {"path": "/tmp/many"})[0] == 200


def test_appends_at_once_lose_nothing(box: Box) -> None:
    threads = [
        threading.Thread(target=box.call, args=("POST", f"{FILES}append?path=/tmp/many.log", b"x" * 1000))
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stat(box, "/tmp/many.log")["size"] == 20_000
