"""The exit status of `exec` stands for what came of the command."""

from __future__ import annotations

from typing import Any

import pytest

from sandkeeper.cli.exit_status import conclude, exit_status
from sandkeeper.cli.options import chosen_size
from sandkeeper.cli.speech import age, pairs, size_text, speaking
from sandkeeper.core.errors import Internal, InvalidArgument
from tests.unit.client.test_attempts import result


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"exit_code": 0}, 0),
        ({"exit_code": 7}, 7),
        ({"outcome": "signaled", "signal": 15}, 143),
        ({"outcome": "signaled", "signal": 9, "oom_killed": True}, 137),
        ({"outcome": "timeout", "signal": 9}, 124),
        ({"outcome": "interrupted"}, 125),
        ({"outcome": "unknown"}, 125),
        ({"outcome": "exited", "exit_code": None}, 125),
        ({"exit_code": 0, "lost_bytes": 10}, 125),
    ],
)
def test_exit_status(facts: dict[str, Any], status: int) -> None:
    assert exit_status(result(**facts)) == status


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({"outcome": "timeout", "duration_ms": 1500.0}, "timeout: killed after 1.5 s"),
        ({"outcome": "interrupted", "message": "lost"}, "no exit code is known (admitted: yes): lost"),
        ({"outcome": "signaled", "signal": 9, "oom_killed": True}, "memory limit"),
        ({"exit_code": 0, "lost_bytes": 10}, "output lost: 10 bytes"),
        ({"exit_code": 0, "not_stopped": (5, 6)}, "could not be stopped: 5, 6"),
    ],
)
def test_what_is_left_to_say(facts: dict[str, Any], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        conclude(result(**facts), is_json=False)
    assert word in capsys.readouterr().err


def test_a_result_as_json_has_text_and_no_bytes() -> None:
    document = result(exit_code=0, stdout_bytes=b"\xffhi").to_json()
    assert document["stdout"] == "\ufffdhi"
    assert "stdout_bytes" not in document
    assert document["exit_code"] == 0


def test_several_failures_are_all_told(capsys: pytest.CaptureFixture[str]) -> None:
    failures = [Internal("one", code="first"), Internal("two", code="second")]
    with pytest.raises(SystemExit) as left, speaking(is_json=False):
        raise ExceptionGroup("left behind", failures)
    assert left.value.code == 1
    assert capsys.readouterr().err.splitlines() == ["error: one [first]", "error: two [second]"]
    with pytest.raises(ExceptionGroup), speaking(is_json=False):
        raise ExceptionGroup("a defect", [Internal("one"), ValueError()])


def test_words() -> None:
    assert [age(seconds) for seconds in (-1, 5, 125, 7300, 200_000)] == ["0s", "5s", "2m", "2h", "2d"]
    assert [size_text(count) for count in (10, 2048, 5 * 1024**2, 3 * 1024**3)] == [
        "10 B",
        "2.0 KiB",
        "5.0 MiB",
        "3.0 GiB",
    ]
    assert pairs(["A=b=c"], option="--env") == {"A": "b=c"}
    with pytest.raises(InvalidArgument):
        pairs(["=x"], option="--env")


def test_a_custom_size_is_basics_but_for_what_is_given() -> None:
    assert chosen_size(None, vcpu=None, memory_mib=None) is None
    assert chosen_size("lite", vcpu=None, memory_mib=None) == "lite"
    assert chosen_size(None, vcpu=0.5, memory_mib=None) == {"vcpu": 0.5, "memory_mib": 512}
