"""A broken box told from a failed command: disk limit, deleted programs, full process table, bombs, orphans."""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import closing
from typing import Any

import pytest

from tests.support.raw_box import Box, Live

pytestmark = pytest.mark.docker

MIB = 1 << 20


def report(box: Box) -> dict[str, Any]:
    status, answer = box.ask("GET", "/sandkeeper/v1/health")
    assert status == 200
    return answer


def go_with_limit(box: Box, limit: int) -> None:
    body = {"birthId": box.birth_id, "generation": 1, "epoch": 1, "diskLimitBytes": limit}
    assert box.ask("POST", "/sandkeeper/v1/go", body)[0] == 200


def wait_for_state(box: Box, state: str) -> None:
    deadline = time.monotonic() + 20
    while box.ask("GET", "/sandkeeper/v1/hello")[1]["state"] != state:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_healthy_box(box: Box) -> None:
    seen = report(box)
    assert (seen["shell"], seen["canFork"], seen["state"]) == (True, True, "running")
    assert 60 < seen["pids"]["current"] < seen["pids"]["max"] == 512
    assert 0 < seen["memory"]["usedBytes"] < seen["memory"]["limitBytes"] == 512 * MIB


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_box_over_its_disk_limit_stands_still(make_box: Any, is_deleted: bool) -> None:
    box = make_box(go=False)
    go_with_limit(box, 32 * MIB)
    run_id = uuid.uuid4().hex
    if is_deleted:  # a file without a name is counted too
        script = "exec 3>/var/lost; rm /var/lost; while :; do head -c 1M /dev/zero >&3; done"
    else:
        script = "mkdir -p /var/full; i=0; while :; do head -c 1M /dev/zero > /var/full/$i; i=$((i+1)); done"
    request = {"process": {"cmd": "sh", "args": ["-c", script]}, "sandkeeper": {"runId": run_id}}
    with closing(Live(box.control, "/process.Process/Start", request)) as live:
        wait_for_state(box, "disk_exceeded")
        status, refusal = box.try_run("true")
        assert (status, refusal["sandkeeper"]["code"]) == (429, "disk_exceeded")
        assert refusal["sandkeeper"]["diskUsedBytes"] > 32 * MIB
        assert box.ask("POST", "/files?path=/var/more", b"x")[1]["sandkeeper"]["code"] == "disk_exceeded"
        used = box.ask("POST", "/sandkeeper/v1/limits/recheck", {"epoch": 1})[1]["diskUsedBytes"]
        time.sleep(1.2)  # two more looks
        again = box.ask("POST", "/sandkeeper/v1/limits/recheck", {"epoch": 1})[1]
        assert again["state"] == report(box)["state"] == "disk_exceeded"
        assert again["diskUsedBytes"] - used < 100_000  # nobody writes
        if is_deleted:
            selected = {"process": {"sandkeeper": {"runId": run_id}}, "sandkeeper": {"tree": True}}
            assert box.ask("POST", "/process.Process/SendSignal", selected)[0] == 200
        else:
            raised = {"epoch": 1, "diskLimitBytes": used + 8 * MIB}
            assert box.ask("POST", "/sandkeeper/v1/limits/recheck", raised)[1]["state"] == "running"
            wait_for_state(box, "disk_exceeded")  # the run went on
            assert box.ask("POST", "/filesystem.Filesystem/Remove", {"path": "/var/full"})[0] == 200
        assert box.ask("POST", "/sandkeeper/v1/limits/recheck", {"epoch": 1})[1]["state"] == "running"
        if is_deleted:
            assert live.rest()["sandkeeper"]["signal"] == 9
    assert box.sh("true").end["exitCode"] == 0


def test_the_image_does_not_count_and_a_change_of_it_does(make_box: Any) -> None:
    box = make_box(go=False)
    go_with_limit(box, 64 * MIB)
    first = box.ask("POST", "/sandkeeper/v1/limits/recheck", {"epoch": 1})[1]["diskUsedBytes"]
    assert first < 2 * MIB
    box.sh("head -c 5M /dev/zero > /etc/new; chmod a+r /bin/bash")
    second = box.ask("POST", "/sandkeeper/v1/limits/recheck", {"epoch": 1})[1]["diskUsedBytes"]
    assert 5 * MIB < second - first < 8 * MIB


def test_deleted_programs_are_told(make_box: Any) -> None:
    box = make_box()
    for path in ("/usr/bin", "/bin"):
        box.ask("POST", "/filesystem.Filesystem/Remove", {"path": path})
    seen = report(box)
    assert (seen["shell"], seen["canFork"]) == (False, True)
    status, refusal = box.try_run("echo", "x")
    assert (status, refusal["sandkeeper"]["code"]) == (400, "exec_not_found")


def test_a_full_process_table_is_told(make_box: Any) -> None:
    box = make_box(pids=128)
    fill = "while :; do sleep 300 & done"
    run_id = uuid.uuid4().hex
    filler = threading.Thread(target=lambda: box.run("bash", "-c", fill, runId=run_id))
    filler.start()
    deadline = time.monotonic() + 20
    while (full := report(box))["canFork"]:
        assert time.monotonic() < deadline
    assert full["pids"]["current"] == 128
    selected = {"process": {"sandkeeper": {"runId": run_id}}, "sandkeeper": {"tree": True}}
    assert box.ask("POST", "/process.Process/SendSignal", selected)[1] == {"sandkeeper": {"notStopped": []}}
    filler.join()
    assert report(box)["canFork"]


MEMORY_BOMB = "while :; do bash -c 'x=$(head -c 900M /dev/zero | tr \"\\000\" a)'; done"
DESCRIPTOR_BOMB = (
    'b() { i=10; while [ $i -lt 900 ]; do eval "exec $i</dev/null"; i=$((i+1)); done; sleep 300; }; '
    "while [ $(ls /proc | grep -c '^[0-9]') -lt 60 ]; do b & done; wait"
)


@pytest.mark.parametrize("bomb", [MEMORY_BOMB, DESCRIPTOR_BOMB], ids=["memory", "descriptors"])
def test_bombs_beside_file_operations(make_box: Any, bomb: str) -> None:
    box = make_box(pids=256)
    run_id = uuid.uuid4().hex
    results: list[Any] = []
    bomber = threading.Thread(
        target=lambda: results.append(box.run("bash", "-c", bomb, runId=run_id, user="nobody"))
    )
    bomber.start()
    stop = threading.Event()
    wrong: list[Any] = []

    def write_and_read(number: int) -> None:
        content = bytes([number]) * 500_000
        while not stop.is_set():
            for call in (
                ("POST", f"/files?path=/tmp/{number}", content),
                ("GET", f"/files?path=/tmp/{number}"),
            ):
                status, text = box.call(*call)
                if status != 200 or (call[0] == "GET" and text != content):
                    wrong.append((status, text[:200]))

    workers = [threading.Thread(target=write_and_read, args=(number,)) for number in range(24)]
    for worker in workers:
        worker.start()
    slowest = 0.0
    has_burst, looks, deadline = False, 0, time.monotonic() + 40
    while looks < 40 or not has_burst:
        assert time.monotonic() < deadline
        began = time.monotonic()
        assert box.call("GET", "/health")[0] == 204
        seen = report(box)
        slowest = max(slowest, time.monotonic() - began)
        has_burst = seen["oomKills"] > 0 if bomb is MEMORY_BOMB else seen["pids"]["current"] > 100
        looks += 1
        time.sleep(0.05)
    stop.set()
    for worker in workers:
        worker.join()
    assert wrong == []
    assert slowest < 10
    selected = {"process": {"sandkeeper": {"runId": run_id}}, "sandkeeper": {"tree": True}}
    assert box.ask("POST", "/process.Process/SendSignal", selected)[1] == {"sandkeeper": {"notStopped": []}}
    bomber.join()
    assert box.sh("true").end["exitCode"] == 0
    if bomb is MEMORY_BOMB:
        assert results[0].ours["oomKilled"] is True


def test_five_thousand_orphans_leave_nothing(box: Box) -> None:
    script = "i=0; while [ $i -lt 1000 ]; do (sh -c ':' &) ; (sleep 0.01 &); i=$((i+1)); done"
    for _ in range(5):
        assert box.sh(f"({script}) 2>&1; sleep 0.1").end["exitCode"] == 0
    while box.living("sleep 0.01"):
        time.sleep(0.02)
    assert box.living("defunct") == []
