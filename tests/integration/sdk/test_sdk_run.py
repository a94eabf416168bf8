"""Foreground commands through the SDK, on a real container behind a real owner: cases X1 to X5, X8, X11, X15, X17, X19,
X21."""

from __future__ import annotations

import asyncio
import hashlib
import random
import resource
from typing import Any

import pytest

from sandkeeper import Keeper, Sandbox, SandkeeperError
from tests.support.cutting import Cutter
from tests.support.yard import Yard

pytestmark = pytest.mark.docker
CUP = "\u2615"


async def test_x1_a_timeout_ends_the_whole_tree(sandbox: Sandbox) -> None:
    """X1: a parent that ignores TERM and a child in a session of its own are gone after the timeout."""
    line = "trap '' TERM; setsid sleep 4711 & sleep 4712"
    result = await sandbox.run(line, timeout_s=1)
    assert (result.outcome, result.reason, result.exit_code) == ("timeout", "deadline", None)
    assert not result.not_stopped
    left = await sandbox.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 471[12]'")
    assert left.stdout == "0\n"


async def test_x2_a_timeout_is_told_when_it_has_passed(sandbox: Sandbox) -> None:
    """X2: not only once the command would have ended by itself."""
    result = await sandbox.run(["sleep", "60"], timeout_s=1)
    assert result.outcome == "timeout"
    assert 1000 <= result.duration_ms < 30_000


async def test_limits_of_silence_and_cpu_time_have_reasons(sandbox: Sandbox) -> None:
    quiet, busy = await asyncio.gather(
        sandbox.run("echo begun; sleep 60", quiet_timeout_s=1),
        sandbox.run("while :; do :; done", cpu_limit_s=0.5, timeout_s=60),
    )
    assert (quiet.outcome, quiet.reason, quiet.stdout) == ("timeout", "quiet", "begun\n")
    assert (busy.outcome, busy.reason) == ("timeout", "cpu")


async def test_what_a_command_used_is_told(sandbox: Sandbox) -> None:
    result = await sandbox.run(["python3", "-c", "x = bytearray(40 << 20); sum(range(10**6))"])
    assert result.usage is not None
    assert result.usage.user_ms > 0
    assert result.usage.max_rss_bytes > 40 << 20


async def test_x3_a_cut_stream_has_the_commands_own_exit_code(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X3: cut half-way, the run is attached again: 7, never 0."""
    cutter = Cutter(monkeypatch)
    running = asyncio.create_task(sandbox.run("echo a; sleep 2; echo b; exit 7"))
    await asyncio.sleep(0.7)
    assert cutter.cut() >= 1
    result = await running
    assert (result.outcome, result.exit_code, result.stdout) == ("exited", 7, "a\nb\n")


async def test_x3_a_killed_container_is_interrupted(own_sandbox: Sandbox, yard: Yard) -> None:
    """X3: no exit code is made up for a runtime that is gone."""
    running = asyncio.create_task(own_sandbox.run("echo a; sleep 60; exit 7"))
    await asyncio.sleep(0.5)
    birth_id = (await own_sandbox.describe()).birth_id
    yard.kill_container(str(birth_id))
    result = await running
    assert (result.outcome, result.exit_code, result.stdout, result.admitted) == (
        "interrupted",
        None,
        "a\n",
        "yes",
    )


async def test_a_box_frozen_by_nobody_answers_timeout(own_sandbox: Sandbox, yard: Yard) -> None:
    """The host has a deadline of its own: two seconds after the command's."""
    birth_id = str((await own_sandbox.describe()).birth_id)
    running = asyncio.create_task(own_sandbox.run("sleep 60", timeout_s=1.5))
    await asyncio.sleep(0.5)
    yard.docker.pause(birth_id)
    try:
        async with asyncio.timeout(20):
            result = await running
    finally:
        yard.docker.unpause(birth_id)
    assert (result.outcome, result.reason, result.exit_code) == ("timeout", "host_deadline", None)
    assert result.duration_ms < 1500 + 2000 + 1000, result


async def test_x4_a_background_child_holds_nothing_up_and_lives_on(sandbox: Sandbox) -> None:
    """X4: the call ends with its shell; the child goes on writing into nothing."""
    result = await sandbox.run(
        "(while :; do date; touch /tmp/x4-alive; sleep 0.1; done) & echo $! >/tmp/x4; echo started",
        timeout_s=30,
    )
    assert (result.exit_code, result.stdout.count("started\n")) == (0, 1)
    alive = await sandbox.run("rm -f /tmp/x4-alive; sleep 0.7; ls /tmp/x4-alive && kill -9 $(cat /tmp/x4)")
    assert alive.exit_code == 0, alive


async def test_x5_characters_cut_between_pieces_stay_whole(sandbox: Sandbox) -> None:
    """X5: streamed and collected alike."""
    many = await sandbox.run(
        ["python3", "-c", f"print({CUP!r} * 100_000, end='')"], env={"PYTHONIOENCODING": "utf-8"}
    )
    assert many.stdout == CUP * 100_000
    slow = 'for b in 342 230 225; do printf "\\\\$b"; sleep 0.2; done'
    assert (await sandbox.run(slow)).stdout == CUP
    process = await sandbox.spawn(slow)
    assert "".join([text async for text in process.stdout.text()]) == CUP


async def test_x8_a_long_silence_is_no_failure(sandbox: Sandbox) -> None:
    """X8, scaled: silent for longer than the keep-alive asks for."""
    result = await sandbox.run("sleep 11; echo ok")
    assert (result.outcome, result.stdout) == ("exited", "ok\n")


@pytest.mark.soak
async def test_x8_a_silence_of_ninety_seconds_is_no_failure(sandbox: Sandbox) -> None:
    """X8 in full."""
    assert (await sandbox.run("sleep 90; echo ok")).stdout == "ok\n"


async def test_x11_a_timeout_keeps_the_output_so_far(sandbox: Sandbox) -> None:
    """X11: all lines that were printed before it hung."""
    result = await sandbox.run("seq 1000; sleep 60", timeout_s=1)
    assert result.outcome == "timeout"
    assert result.stdout == "".join(f"{number}\n" for number in range(1, 1001))


async def test_x15_exit_ends_a_command_and_not_the_session(sandbox: Sandbox) -> None:
    """X15: 3, then `hi`; folder and variables stay, whatever they are called."""
    async with await sandbox.shell(env={"FIRST": "1"}) as session:
        assert (await session.run('cd /tmp; export A="it\'s"; id=7; export id; exit 3')).exit_code == 3
        after = await session.run('echo hi; pwd; echo "$FIRST$A$id"')
        assert (after.exit_code, after.stdout) == (0, "hi\n/tmp\n1it's7\n")


async def test_a_stuck_command_of_a_session_hurts_nobody(sandbox: Sandbox) -> None:
    async with await sandbox.shell() as session:
        await session.run("cd /var")
        stuck = asyncio.create_task(session.run("cd /tmp; sleep 60", timeout_s=2))
        await asyncio.sleep(0.3)
        assert (await session.run("pwd")).stdout == "/var\n"
        assert (await stuck).outcome == "timeout"
        assert (await session.run("pwd; exit 0")).stdout == "/var\n"


async def test_a_session_whose_folder_is_gone_says_so(sandbox: Sandbox) -> None:
    async with await sandbox.shell() as session:
        await session.run("mkdir /tmp/gone; cd /tmp/gone; rmdir /tmp/gone")
        with pytest.raises(SandkeeperError) as ended:
            await session.run("pwd")
        assert (ended.value.code, ended.value.admitted) == ("session_ended", "no")


async def test_x17_arguments_arrive_as_they_are(sandbox: Sandbox) -> None:
    """X17: no shell is between, the empty one included."""
    words = ["a b", "$HOME", "x'y", ""]
    result = await sandbox.run(["python3", "-c", "import sys; print(sys.argv[1:])", *words])
    assert result.stdout == f"{words}\n"


async def test_x19_endless_output_is_counted_and_costs_no_memory(sandbox: Sandbox) -> None:
    """X19, scaled: 256 MiB are counted, 1 MiB is kept; a burst of 4 MiB is complete."""
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = 256 << 20
    flood = await sandbox.run(f"yes | head -c {size}")
    assert (flood.exit_code, flood.truncated, flood.stdout_size_bytes) == (0, True, size)
    assert len(flood.stdout_bytes) == 1 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 100 << 10
    burst = await sandbox.run(
        [
            "python3",
            "-c",
            "import sys, random; r = random.Random(1); sys.stdout.buffer.write(r.randbytes(4 << 20))",
        ],
        max_output_bytes=8 << 20,
    )
    here = random.Random(1).randbytes(4 << 20)
    assert hashlib.sha256(burst.stdout_bytes).digest() == hashlib.sha256(here).digest()
    assert not burst.truncated


async def test_x21_nobody_waits_for_input_that_nobody_gave(sandbox: Sandbox) -> None:
    """X21: `cat` reads an end of file, in the foreground and in the background."""
    assert (await sandbox.run(["cat"], timeout_s=20)).exit_code == 0
    process = await sandbox.spawn(["cat"], timeout_s=20)
    assert (await process.wait()).exit_code == 0


async def test_a_sandbox_without_a_shell_is_unhealthy_and_not_a_missing_program(
    keeper: Keeper, own_sandbox: Sandbox
) -> None:
    gone = await own_sandbox.run(["python3", "-c", "import os; os.remove('/bin/sh')"], user="root")
    assert gone.exit_code == 0
    with pytest.raises(SandkeeperError) as failed:
        await own_sandbox.run("true")
    error: Any = failed.value
    assert (error.code, error.details["refusal"], error.admitted) == (
        "sandbox_unhealthy",
        "exec_not_found",
        "no",
    )
    with pytest.raises(SandkeeperError):
        await own_sandbox.run(["no-such-program"])


async def test_a_full_process_table_is_told_as_such(keeper: Keeper, yard: Yard) -> None:
    sandbox = await keeper.create(image=yard.image, size={"vcpu": 1, "memory_mib": 256, "pids": 160})
    bomb = await sandbox.spawn("while :; do sleep 60 & done 2>/dev/null; wait")
    codes: set[str] = set()
    async with asyncio.timeout(30):
        while not codes:
            try:
                await sandbox.run(["true"])
            except SandkeeperError as error:
                codes.add(error.code)
    assert codes == {"pids_exhausted"}
    assert await bomb.kill() == ()
    assert (await sandbox.run(["true"])).exit_code == 0
