"""Processes that are left going, through the SDK on a real container: cases X12, X13, X18."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from sandkeeper import Keeper, Sandbox, SandkeeperError
from sandkeeper.boxd.events import RunLost, RunOutput
from sandkeeper.client.output import Output
from tests.support.cutting import Cutter
from tests.support.yard import Yard

pytestmark = pytest.mark.docker


async def bytes_of(output: Output, *, pieces: int = 10**9) -> bytes:
    """Read to the end, or so many pieces; no loss may be told."""
    gathered = bytearray()
    while pieces and (piece := await anext(output, None)) is not None:
        assert isinstance(piece, RunOutput), piece
        gathered += piece.data
        pieces -= 1
    return bytes(gathered)


async def test_x12_a_process_is_taken_up_again_by_its_id(sandbox: Sandbox, yard: Yard) -> None:
    """X12, scaled: another client gets the output so far, then the live one, then the exit code."""
    process = await sandbox.spawn("for i in 1 2 3 4 5 6; do echo $i; sleep 0.3; done; exit 5")
    assert await bytes_of(process.stdout, pieces=1) == b"1\n"
    await process.stdout.aclose()
    async with Keeper.join(yard.config.state_dir) as other:
        again = await (await other.get(sandbox.id)).processes.attach(process.id)
        assert await bytes_of(again.stdout) == b"1\n2\n3\n4\n5\n6\n"
        result = await again.wait()
        assert (result.outcome, result.exit_code, result.stdout) == ("exited", 5, "1\n2\n3\n4\n5\n6\n")
        tail = await (await other.get(sandbox.id)).processes.attach(process.id, offset=8)
        assert await bytes_of(tail.stdout) == b"5\n6\n"


async def test_x13_output_is_exact_over_cuts_and_a_restart_of_the_owner(
    keeper: Keeper, own_sandbox: Sandbox, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X13: five cuts and a new owner; byte for byte what was printed."""
    script = "import time\nfor i in range(1, 100_001):\n    print(i)\n    if i % 2000 == 0: time.sleep(0.1)\n"
    cutter = Cutter(monkeypatch)
    process = await own_sandbox.spawn(["python3", "-u", "-c", script])
    reading = asyncio.create_task(bytes_of(process.stdout))
    waiting = asyncio.create_task(process.wait(max_output_bytes=4 << 20))
    for _ in range(5):
        await asyncio.sleep(0.3)
        cutter.cut()
    await yard.kill_owner()
    cutter.cut()
    await yard.start_owner()
    expected = "".join(f"{number}\n" for number in range(1, 100_001)).encode()
    assert await reading == expected
    result = await waiting
    assert (result.exit_code, result.generation) == (0, 1)
    assert result.stdout_bytes == expected
    assert not result.truncated


async def test_x13_output_that_is_kept_no_more_is_told_with_its_size(own_sandbox: Sandbox) -> None:
    """X13: 80 MiB were printed, 64 are kept: a reader from the beginning is told what is missing."""
    size = 80 << 20
    process = await own_sandbox.spawn(f"yes | head -c {size}")
    assert (await process.wait(max_output_bytes=0)).stdout_size_bytes == size
    lost = told = 0
    async for piece in process.output("stdout"):
        if isinstance(piece, RunLost):
            assert piece.offset == told + lost
            lost += piece.lost_bytes
        else:
            assert piece.offset == told + lost
            told += len(piece.data)
    assert lost > 0
    assert lost + told == size


async def test_x18_a_kill_is_the_end_of_the_whole_tree(sandbox: Sandbox) -> None:
    """X18: a lone process and a shell with children; the status is the signal."""
    lone = await sandbox.spawn(["sleep", "4721"])
    shell = await sandbox.spawn("sleep 4722 & sleep 4723 & setsid sleep 4724 & wait")
    await asyncio.sleep(0.3)
    for process in (lone, shell):
        assert await process.kill() == ()
        result = await process.wait()
        assert (result.outcome, result.signal, result.exit_code) == ("signaled", 9, None)
    left = await sandbox.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 472[1-4]'")
    assert left.stdout == "0\n"


async def test_a_signal_reaches_the_group_and_input_is_streamed(sandbox: Sandbox) -> None:
    process = await sandbox.spawn("trap 'echo got; exit 9' USR1; while :; do sleep 0.05; done")
    await asyncio.sleep(0.3)
    await process.signal("USR1")
    result = await process.wait()
    assert (result.exit_code, result.stdout) == (9, "got\n")
    copy = await sandbox.spawn(["sha256sum"], stdin_open=True)
    for _ in range(3):
        await copy.write(b"x" * 1_000_000)
    await copy.close_stdin()
    assert (await copy.wait()).stdout.startswith(hashlib.sha256(b"x" * 3_000_000).hexdigest())
    with pytest.raises(SandkeeperError) as wrong:
        await copy.signal("NOTHING")
    assert wrong.value.code == "signal_invalid"


async def test_a_terminal_has_a_size_and_many_viewers(sandbox: Sandbox) -> None:
    process = await sandbox.spawn(["/bin/sh"], terminal=(80, 24))
    other = await sandbox.processes.attach(process.id)
    await process.resize(cols=100, rows=30)
    await other.write("stty size; exit 4\n")
    seen, seen_too = await asyncio.gather(bytes_of(process.pty), bytes_of(other.pty))
    assert seen == seen_too
    assert b"30 100" in seen
    result = await process.wait()
    assert (result.exit_code, result.stdout_bytes, result.truncated) == (4, seen, False)


async def test_what_runs_is_listed_and_nothing_starts_twice(sandbox: Sandbox) -> None:
    first = await sandbox.spawn("sleep 30", request_id="once-only")
    again = await sandbox.spawn("sleep 30", request_id="once-only")
    listed = [entry for entry in await sandbox.processes.list() if entry.run_id == first.id == again.id]
    assert [entry.argv for entry in listed] == [("/bin/sh", "-c", "sleep 30")]
    await first.kill()
    with pytest.raises(SandkeeperError) as unknown:
        await sandbox.processes.attach("never-was")
    assert unknown.value.category == "NotFound"


async def test_a_process_of_a_lost_runtime_is_interrupted(own_sandbox: Sandbox, yard: Yard) -> None:
    process = await own_sandbox.spawn("echo a; sleep 60")
    assert await bytes_of(process.stdout, pieces=1) == b"a\n"
    waiting = asyncio.create_task(process.wait())
    await asyncio.sleep(0.2)
    yard.kill_container(str((await own_sandbox.describe()).birth_id))
    result = await waiting
    assert (result.outcome, result.exit_code, result.stdout) == ("interrupted", None, "a\n")
    with pytest.raises(SandkeeperError) as lost:
        await anext(process.stdout)
    assert lost.value.code == "run_interrupted"
    with pytest.raises(SandkeeperError) as unheard:
        await process.write("x")
    assert unheard.value.code in ("run_interrupted", "no_such_run")
