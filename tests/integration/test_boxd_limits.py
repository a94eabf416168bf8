"""Limits of one run in a real container: silence, CPU time, memory of a child; what never outlives them."""

from __future__ import annotations

import pytest

from tests.support.raw_box import Box

pytestmark = pytest.mark.docker


def test_a_silent_run_ends_and_a_talking_one_does_not(box: Box) -> None:
    silent = box.sh("echo up; sleep 60", quietTimeoutMs=300)
    assert (silent.ours["outcome"], silent.ours["reason"], silent.stdout) == ("timeout", "quiet", b"up\n")
    talking = box.sh("for i in 1 2 3 4 5 6; do sleep 0.1; echo $i >&2; done", quietTimeoutMs=450)
    assert talking.ours["outcome"] == "exited"


@pytest.mark.parametrize("user", ["root", "nobody"])
def test_cpu_time_counts_the_whole_tree(box: Box, user: str) -> None:
    """A parent that sleeps, children in sessions of their own, and some that have ended already."""
    burn = "timeout 0.2 sh -c 'while :; do :; done'"
    script = f"(setsid {burn} &); (setsid {burn} &); while :; do {burn}; sleep 0.05; done"
    ended = box.sh(script, cpuLimitMs=700, timeoutMs=30_000, user=user)
    assert (ended.ours["outcome"], ended.ours["reason"]) == ("timeout", "cpu")
    assert ended.ours["durationMs"] < 10_000
    assert box.living("while") == []


def test_a_run_below_its_cpu_limit_tells_its_usage(box: Box) -> None:
    ended = box.sh("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done", cpuLimitMs=60_000)
    assert ended.ours["outcome"] == "exited"
    usage = ended.ours["rusage"]
    assert usage["userMs"] > 0
    assert usage["maxRssBytes"] > 500_000


def test_a_child_killed_for_memory_is_told(box: Box) -> None:
    hungry = "bash -c 'x=$(head -c 900M /dev/zero | tr \"\\\\000\" a); echo ${#x}'"
    ended = box.sh(f"{hungry}; echo went on; exit 0", timeoutMs=60_000)
    assert (ended.end["exitCode"], ended.ours["oomKilled"]) == (0, True)
    assert ended.ours["oomKills"] >= 1
    assert box.sh("true").ours["oomKills"] == 0
