"""Every command says its result on stdout, its errors on stderr, both also as JSON, with the right exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandkeeper.core.errors import Internal, ResourceExhausted, Unavailable
from sandkeeper.core.record import Phase
from tests.fakes.control import FakeControl
from tests.unit.cli.conftest import Sk


def test_create_prints_the_id_and_stays(control: FakeControl, sk: Sk) -> None:
    said = sk("create", "--name", "box", "--vcpu", "0.5", "--memory-mib", "300", "-e", "A=b", "-l", "set=x")
    assert (said.status, said.out) == (0, "sb1\n")
    seen = control.sandboxes["sb1"]
    assert (seen.phase, seen.detached, seen.size.memory_mib) == (Phase.RUNNING, True, 300)
    assert (control.called("create")[0].env, seen.labels) == ({"A": "b"}, {"set": "x"})


def test_create_as_json_is_the_whole_view(control: FakeControl, sk: Sk) -> None:
    said = sk("create", "--size", "lite", "--json")
    assert (said.json["id"], said.json["size"]["name"]) == ("sb1", "lite")


@pytest.mark.parametrize(
    "words",
    [
        ("create", "--size", "huge"),
        ("create", "--size", "lite", "--vcpu", "1"),
        ("create", "--env", "NOSIGN"),
        ("create", "--memory-mib", "0"),
        ("create", "--name", "No Name"),
    ],
)
def test_what_is_wrong_is_one_readable_line(control: FakeControl, sk: Sk, words: tuple[str, ...]) -> None:
    said = sk(*words)
    assert (said.status, said.out) == (1, "")
    assert said.err.startswith("error: ")
    assert control.called("create") == []


def test_errors_carry_their_code_and_advice(control: FakeControl, sk: Sk) -> None:
    error = ResourceExhausted(
        "no room", code="machine_memory_full", advice="destroy some", admitted="unknown"
    )
    control.failures["create"] = [error, error]
    said = sk("create")
    assert said.err.splitlines() == [
        "error: no room [machine_memory_full]",
        "admitted: unknown",
        "advice: destroy some",
    ]
    as_json = json.loads(sk("create", "--json").err)["error"]
    assert (as_json["category"], as_json["code"]) == ("ResourceExhausted", "machine_memory_full")


def test_the_last_words_of_what_died_are_shown(control: FakeControl, sk: Sk) -> None:
    control.failures["create"] = [Internal("died", details={"output_tail": "one\ntwo"})]
    assert sk("create").err.splitlines()[1:3] == ["  | one", "  | two"]


def test_nothing_running_is_said_with_what_to_do(sk: Sk) -> None:
    said = sk("ps")
    assert said.status == 1
    assert "[not_up]" in said.err
    assert "sandkeeper up" in said.err


def test_ps_lists_and_filters(control: FakeControl, sk: Sk) -> None:
    sk("create", "--name", "one", "-l", "set=a")
    sk("create")
    sk("rm", "sb2")
    lines = sk("ps").out.splitlines()
    assert lines[0].split() == ["ID", "NAME", "PHASE", "GEN", "IMAGE", "SIZE", "AGE"]
    assert (len(lines), lines[1].split()[:3]) == (2, ["sb1", "one", "running"])
    assert sk("ps", "-q", "-a").out.split() == ["sb1", "sb2"]
    assert [seen["id"] for seen in sk("ps", "--json", "-l", "set=a").json] == ["sb1"]
    assert sk("ps", "-q", "-l", "set=b").out == ""


def test_the_lifecycle_verbs(control: FakeControl, sk: Sk) -> None:
    sk("create", "--name", "box")
    for words, phase in {
        ("pause", "box"): "paused",
        ("resume", "box"): "running",
        ("stop", "box", "--keep", "files"): "stopped",
        ("start", "box"): "running",
    }.items():
        said = sk(*words)
        assert (said.status, said.out) == (0, f"sb1  {phase}  generation 1\n")
    assert sk("resize", "box", "--size", "lite", "--json").json["size"]["name"] == "lite"
    assert sk("stop", "box", "--keep", "all").status == 1
    assert "phase" in sk("describe", "box").out
    assert sk("describe", "box", "--json").json["id"] == "sb1"


def test_rm_does_all_it_can(control: FakeControl, sk: Sk) -> None:
    sk("create")
    said = sk("rm", "nobody", "sb1")
    assert (said.status, said.out) == (1, "sb1\n")
    assert "[sandbox_not_found]" in said.err
    assert control.sandboxes["sb1"].phase is Phase.DESTROYED


def test_snapshots_and_forks(control: FakeControl, sk: Sk) -> None:
    sk("create", "--name", "box")
    assert sk("snapshot", "take", "box", "--name", "base").out == "sn2\n"
    assert sk("snapshot", "list").out.splitlines()[1].split()[:3] == ["sn2", "base", "sb1"]
    assert sk("snapshot", "list", "--json").json[0]["delta_bytes"] == 10
    assert sk("fork", "sn2", "-n", "2").out.split() == ["sb3", "sb4"]
    assert control.sandboxes["sb3"].detached
    assert sk("fork", "sn2", "--json").json == ["sb5"]
    assert sk("snapshot", "delete", "sn2", "--json").json == {"deleted": "sn2"}
    assert sk("fork", "sn2").status == 1


def test_events(control: FakeControl, sk: Sk) -> None:
    sk("create")
    sk("pause", "sb1")
    lines = sk("events", "sb1").out.splitlines()
    assert [line.split()[3] for line in lines] == ["runtime_started", "moved_to_paused"]
    assert json.loads(sk("events", "sb1", "--after", "1", "--json").out)["kind"] == "moved_to_paused"


def test_status(control: FakeControl, sk: Sk) -> None:
    said = sk("status")
    assert said.status == 0
    assert "ow1" in said.out
    assert sk("status", "--json").json["directory_pid"] == 41
    control.failures["status"] = [Unavailable("engine away", code="engine_unavailable")]
    assert sk("status").status == 1


def test_up_says_when_it_runs_already(control: FakeControl, sk: Sk, state_dir: Path) -> None:
    assert sk("up").out == f"already up: {state_dir}\n"
    assert sk("up", "--json").json == {"state_dir": str(state_dir), "was_up": True}


def test_exec_and_run_refuse_with_125(control: FakeControl, sk: Sk) -> None:
    sk("create")
    sk("stop", "sb1")
    said = sk("exec", "sb1", "true")
    assert (said.status, "[sandbox_not_running" in said.err) == (125, True)
    assert sk("exec", "nobody", "true").status == 125
    assert json.loads(sk("exec", "--json", "nobody", "true").err)["error"]["code"] == "sandbox_not_found"
    control.failures["create"] = [ResourceExhausted("no room")]
    assert sk("run", "true").status == 125


@pytest.mark.parametrize(
    "words", [("exec",), ("exec", "sb1"), ("nonsense",), ("create", "--nonsense"), ("cp", "one"), ("fork",)]
)
def test_wrong_usage_is_2(sk: Sk, words: tuple[str, ...]) -> None:
    assert sk(*words).status == 2


def test_cp_needs_one_end_in_a_sandbox(control: FakeControl, sk: Sk) -> None:
    for words in (("a", "b"), ("x:a", "y:b"), ("./x:a", "/b")):
        said = sk("cp", *words)
        assert (said.status, "[usage]" in said.err) == (1, True)


def test_the_command_line_starts_without_ray_docker_or_the_sdk() -> None:
    code = (
        "import sys, sandkeeper.cli.app, sandkeeper.cli.table, sandkeeper.cli.quick_exec\n"
        "heavy = {'ray', 'docker', 'aiohttp', 'sqlalchemy', 'structlog', 'rich', 'pydantic'} & set(sys.modules)\n"
        "print(sorted(heavy))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]"
