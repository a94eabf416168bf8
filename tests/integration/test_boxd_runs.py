"""Runs in a real container: results, trees, attaching, output beyond all limits, bombs, orphans."""

from __future__ import annotations

import base64
import json
import struct
import subprocess
import threading
import time
import uuid
from typing import Any

import pytest

from tests.support.raw_box import Box, Outcome, UnixConnection

pytestmark = pytest.mark.docker


def test_exit_codes_signals_and_output(box: Box) -> None:
    failed = box.sh("printf out; printf err >&2; exit 3")
    assert (failed.stdout, failed.stderr) == (b"out", b"err")
    assert (failed.end["exitCode"], failed.end["exited"], failed.end["error"]) == (3, True, "exit status 3")
    killed = box.sh("kill -TERM $$")
    assert (killed.ours["outcome"], killed.ours["signal"], killed.end["exited"]) == ("signaled", 15, False)
    assert box.run("cat").ours["outcome"] == "exited"  # no standard input ends it
    given = b"x" * 300_000
    assert box.run("cat", stdin="data", stdinData=base64.b64encode(given).decode()).stdout == given


@pytest.mark.parametrize(
    ("argv", "extra", "code"),
    [
        (["no-such-program"], {}, "exec_not_found"),
        (["/etc/passwd"], {}, "exec_denied"),
        (["true"], {"cwd": "/no/such/folder"}, "bad_cwd"),
        (["true"], {"user": "nobody-knows"}, "unknown_user"),
        (["true"], {"runId": "a/b"}, "bad_run_id"),
    ],
)
def test_refused_starts_say_why(box: Box, argv: list[str], extra: dict[str, Any], code: str) -> None:
    status, refusal = box.try_run(*argv, **extra)
    assert status in (400, 401)
    assert refusal["sandkeeper"]["code"] == code


def test_a_user_has_its_own_environment(box: Box) -> None:
    seen = box.sh("id -un; echo $HOME $USER; test -e $PWD && echo $PWD", user="nobody", cwd="/tmp")
    assert seen.stdout.decode().split() == ["nobody", "/nonexistent", "nobody", "/tmp"]


@pytest.mark.parametrize("user", ["root", "nobody"])
def test_timeout_ends_the_whole_tree(box: Box, user: str) -> None:
    own_session = "setsid sh -c 'trap \"\" TERM; sleep 4444 & sleep 4444'"
    script = f"trap '' TERM; {own_session} & (setsid sleep 4444 &) ; echo up; sleep 4444"
    ended = box.sh(script, timeoutMs=400, user=user)
    assert (ended.ours["outcome"], ended.stdout, ended.ours["notStopped"]) == ("timeout", b"up\n", [])
    assert box.living("4444") == []


def test_what_hides_from_a_tree_kill_is_named(box: Box) -> None:
    hidden = box.sh("(setsid env -i sleep 6666 &); sleep 60", timeoutMs=300)
    assert len(hidden.ours["notStopped"]) == 1
    assert box.sh(f"kill {hidden.ours['notStopped'][0]}").end["exitCode"] == 0


def test_children_inherit_no_signal_or_limit_of_boxd(box: Box, image: str) -> None:
    script = (
        "sleep 0.1; ulimit -n; grep -E '^Sig(Ign|Blk)' /proc/self/status; umask; cat /proc/self/oom_score_adj"
    )
    command = [
        "docker",
        "run",
        "--rm",
        "--network",
        "none",
        "--oom-score-adj",
        "800",
        image,
        "sh",
        "-c",
        script,
    ]
    assert box.sh(script).stdout == subprocess.run(command, check=True, capture_output=True).stdout


def test_tree_kill_of_a_known_run(box: Box) -> None:
    run_id = uuid.uuid4().hex
    results: list[Outcome] = []
    reader = threading.Thread(target=lambda: results.append(box.sh("sleep 5555 & sleep 5555", runId=run_id)))
    reader.start()
    while not box.living("5555"):
        time.sleep(0.01)
    selected = {"process": {"sandkeeper": {"runId": run_id}}, "sandkeeper": {"tree": True}}
    assert box.ask("POST", "/process.Process/SendSignal", selected)[1] == {"sandkeeper": {"notStopped": []}}
    reader.join()
    assert results[0].ours["signal"] == 9
    assert box.living("5555") == []


def test_background_children_go_on_after_the_call(box: Box) -> None:
    started = box.sh("(while :; do echo more; sleep 0.01; done; ) & echo $! >&2; exit 5")
    assert started.end["exitCode"] == 5
    child = started.stderr.split()[0].decode()
    time.sleep(0.2)  # long enough for a closed pipe to be written to
    assert box.sh(f"kill -0 {child} && kill {child}").end["exitCode"] == 0


def test_a_repeat_attaches_and_gets_the_same_bytes(box: Box) -> None:
    run_id = uuid.uuid4().hex
    script = "seq 1 20000; date +%N; sleep 0.2; echo done"
    results: list[Outcome] = []
    readers = [
        threading.Thread(target=lambda: results.append(box.sh(script, runId=run_id))) for _ in range(3)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    late = box.sh(script, runId=run_id)
    assert sorted(each.attached for each in results) == [False, True, True]
    assert {each.stdout for each in results} == {late.stdout}
    assert {each.pid for each in [*results, late]} == {late.pid}
    assert box.sh(script, runId=run_id, stdoutOffset=len(late.stdout) - 5).stdout == b"done\n"
    status, refusal = box.try_run("true", runId=run_id)
    assert (status, refusal["sandkeeper"]["code"]) == (409, "run_id_conflict")


def test_true_sizes_beyond_the_cap_and_beyond_the_ring(box: Box) -> None:
    run_id = uuid.uuid4().hex
    capped = box.run("head", "-c", "50000000", "/dev/zero", runId=run_id, maxOutputBytes=1000)
    assert (len(capped.stdout), capped.ours["stdoutBytes"], capped.end["exitCode"]) == (1000, 50_000_000, 0)
    again = box.run("head", "-c", "50000000", "/dev/zero", runId=run_id)
    assert len(again.stdout) == 50_000_000  # all of it was kept: ring and spill
    assert b"/.sk-" not in box.sh("ls -a /").stdout


def test_memory_kill_is_told(box: Box) -> None:
    hungry = box.sh("x=$(head -c 900M /dev/zero | tr '\\000' a); echo ${#x}", timeoutMs=60_000)
    assert hungry.ours["oomKilled"] is True
    assert box.call("GET", "/health")[0] == 204


def test_fork_bomb_beside_file_reads(make_box: Any) -> None:
    box = make_box(pids=256)
    assert box.call("POST", "/files?path=/tmp/big", b"b" * 8_000_000)[0] == 200
    threads_before = box.sh("grep Threads /proc/1/status").stdout
    stop = threading.Event()
    wrong: list[Any] = []

    def read() -> None:
        while not stop.is_set():
            status, content = box.call("GET", "/files?path=/tmp/big")
            if status != 200 or len(content) != 8_000_000:
                wrong.append((status, len(content)))

    run_id = uuid.uuid4().hex
    bash_bomb = "b() { b | b & }; b; sleep 60"  # bash tries again when it cannot fork
    bomb = threading.Thread(target=lambda: box.run("bash", "-c", bash_bomb, runId=run_id, timeoutMs=60_000))
    readers = [threading.Thread(target=read) for _ in range(24)]
    for thread in [bomb, *readers]:
        thread.start()
    refused = 0
    deadline = time.monotonic() + 20
    while refused < 20 and time.monotonic() < deadline:
        assert box.call("GET", "/health")[0] == 204
        status, answer = box.try_run("true")
        if status != 200:
            assert (status, answer["sandkeeper"]["code"]) == (429, "pids_exhausted")
            refused += 1
    stop.set()
    for thread in readers:
        thread.join()
    selected = {"process": {"sandkeeper": {"runId": run_id}}, "sandkeeper": {"tree": True}}
    assert box.ask("POST", "/process.Process/SendSignal", selected)[1] == {"sandkeeper": {"notStopped": []}}
    bomb.join()
    assert refused == 20
    assert wrong == []
    assert box.sh("grep Threads /proc/1/status").stdout == threads_before  # what a bomb cannot take away


def test_orphans_leave_no_zombies(box: Box) -> None:
    box.sh("i=0; while [ $i -lt 1000 ]; do (sleep 0.01 &) ; i=$((i+1)); done; sleep 0.3")
    while box.living("sleep 0.01"):
        time.sleep(0.02)
    assert box.living("defunct") == []


def test_a_lost_client_leaves_the_run_alone(box: Box) -> None:
    run_id = uuid.uuid4().hex
    script = "sleep 0.3; echo finished"
    request = {"process": {"cmd": "sh", "args": ["-c", script]}, "sandkeeper": {"runId": run_id}}
    text = json.dumps(request).encode()
    connection = UnixConnection(box.control)
    connection.request("POST", "/process.Process/Start", struct.pack(">BI", 0, len(text)) + text)
    connection.getresponse().read(5)
    connection.close()
    found = box.sh(script, runId=run_id)
    assert (found.attached, found.stdout, found.end["exitCode"]) == (True, b"finished\n", 0)
