"""The link against the real boxd in a real container."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, closing
from itertools import count
from pathlib import Path

import pytest

from sandkeeper.boxd import (
    BootListener,
    BoxdLink,
    Deadlines,
    RunEnded,
    RunLost,
    RunOutput,
    RunStarted,
    control_socket,
)
from sandkeeper.core.errors import (
    Aborted,
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from sandkeeper.core.ids import RunId
from sandkeeper.core.sizes import Size
from sandkeeper.ports import real_ports
from tests.integration.box import Box, running_box

pytestmark = pytest.mark.docker

_numbers = count()


def run_id() -> RunId:
    return RunId(f"t{next(_numbers)}")


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with running_box() as running:
        yield running


@pytest.fixture
def own_box() -> Iterator[Box]:
    """A container for tests that break it."""
    with running_box(size=Size(name="custom", vcpu=1, memory_mib=64)) as running:
        yield running


@pytest.fixture
async def link(box: Box) -> AsyncIterator[BoxdLink]:
    made = box.link()
    await made.go(birth_id=box.birth_id)
    yield made
    await made.aclose()


# ---------------------------------------------------------------- control


async def test_nothing_runs_before_go(own_box: Box) -> None:
    link = own_box.link(generation=4, epoch=7)
    hello = await link.hello(timeout_s=10)
    assert (hello.state, hello.birth_id, hello.generation) == ("waiting", own_box.birth_id, 0)
    with pytest.raises(Unavailable) as caught:
        await link.runs.collect(["true"], run_id=run_id())
    assert (caught.value.code, caught.value.admitted) == ("not_started", "no")
    hello = await link.go(birth_id=own_box.birth_id, user="root", workdir="/tmp", env={"FROM_GO": "yes"})
    assert (hello.state, hello.generation, hello.epoch) == ("running", 4, 7)
    outcome = await link.runs.collect(["sh", "-c", "echo $FROM_GO; pwd; id -un"], run_id=run_id())
    assert outcome.stdout == "yes\n/tmp\nroot\n"
    await link.aclose()


async def test_a_new_owner_adopts_and_the_old_one_is_fenced(own_box: Box) -> None:
    old, new = own_box.link(epoch=1), own_box.link(epoch=2)
    await old.go(birth_id=own_box.birth_id)
    running = asyncio.get_running_loop().create_task(new.runs.collect(["sleep", "0.2"], run_id=RunId("over")))
    assert (await new.go(birth_id=own_box.birth_id)).epoch == 2
    for call in (old.go(birth_id=own_box.birth_id), old.quiesce(reason="x"), old.resume()):
        with pytest.raises(FailedPrecondition) as caught:
            await call
        assert (caught.value.code, caught.value.details) == ("stale_epoch", {"epoch": 2})
    with pytest.raises(FailedPrecondition) as caught:
        await old.runs.collect(["true"], run_id=run_id())
    assert caught.value.code == "stale_epoch"
    other = own_box.link(generation=2, epoch=3)
    with pytest.raises(FailedPrecondition) as caught:
        await other.go(birth_id=own_box.birth_id)
    assert caught.value.code == "wrong_generation"
    assert (await running).exit_code == 0
    for link in (old, new, other):
        await link.aclose()


async def test_quiesce_is_refused_while_busy_and_forced_or_idle_it_drains(own_box: Box) -> None:
    link = own_box.link()
    await link.go(birth_id=own_box.birth_id)
    sleeper = run_id()
    async with aclosing(link.runs.start(["sleep", "60"], run_id=sleeper)) as events:
        assert isinstance(await anext(events), RunStarted)
        assert (await link.quiesce(reason="idle")).state == "busy"
        forced = await link.quiesce(reason="stop", force=True)
        assert (forced.state, forced.runs) == ("drained", (sleeper,))
        for call in (
            link.runs.collect(["true"], run_id=run_id()),
            link.files.write("/tmp/no", data=b""),
        ):
            with pytest.raises(Unavailable) as caught:
                await call
            assert (caught.value.code, caught.value.admitted) == ("draining", "no")
        assert (await link.resume()).state == "running"
        assert await link.runs.kill_tree(sleeper) == ()
    assert (await link.quiesce(reason="idle")).state == "drained"
    await link.aclose()


async def test_a_frozen_box_is_silent_and_says_what_it_knows_after_thaw(box: Box, link: BoxdLink) -> None:
    os.kill(box.pid, signal.SIGSTOP)
    while not all(" T " in stat.read_text() for stat in Path(f"/proc/{box.pid}/task").glob("*/stat")):
        await asyncio.sleep(0.01)  # the stop reaches its threads one by one
    try:
        with pytest.raises(Unavailable) as caught:
            await link.hello(timeout_s=0.2)
        assert caught.value.code == "runtime_silent"
    finally:
        os.kill(box.pid, signal.SIGCONT)
    await link.health(timeout_s=10)


# ---------------------------------------------------------------- runs


async def test_output_is_exact_and_sizes_are_true(link: BoxdLink) -> None:
    argv = ["sh", "-c", "printf 'a\\377b'; printf err >&2; exit 7"]
    outcome = await link.runs.collect(argv, run_id=run_id())
    assert (outcome.exit_code, outcome.outcome, outcome.truncated) == (7, "exited", False)
    assert (outcome.stdout_bytes, outcome.stderr_bytes) == (b"a\xffb", b"err")
    assert outcome.stdout == "a\ufffdb"
    capped = await link.runs.collect(
        ["head", "-c", "5000000", "/dev/zero"], run_id=run_id(), max_output_bytes=1000
    )
    assert (len(capped.stdout_bytes), capped.stdout_size_bytes, capped.truncated) == (1000, 5_000_000, True)


async def test_where_as_whom_and_with_what(link: BoxdLink) -> None:
    outcome = await link.runs.collect(
        ["sh", "-c", "pwd; id -un; echo $A; cat"],
        run_id=run_id(),
        cwd="/usr",
        user="root",
        env={"A": "é"},
        stdin=b"typed",
    )
    assert outcome.stdout == "/usr\nroot\né\ntyped"


async def test_no_stdin_is_an_empty_one(link: BoxdLink) -> None:
    assert (await link.runs.collect(["cat"], run_id=run_id())).exit_code == 0


async def test_stdin_may_come_later(link: BoxdLink) -> None:
    reader = run_id()
    seen = b""
    async with aclosing(link.runs.start(["cat"], run_id=reader, stdin_open=True)) as events:
        await anext(events)
        await link.runs.send_stdin(reader, data=b"one ")
        await link.runs.send_stdin(reader, data=b"two")
        await link.runs.close_stdin(reader)
        async for event in events:
            if isinstance(event, RunOutput):
                seen += event.data
    assert seen == b"one two"


async def test_a_repeat_attaches_and_another_argv_does_not(link: BoxdLink) -> None:
    same = run_id()
    argv = ["sh", "-c", "echo $$ $(date +%s%N)"]
    first = await link.runs.collect(argv, run_id=same)
    again = await link.runs.collect(argv, run_id=same)
    assert (first.attached, again.attached) == (False, True)
    assert again.stdout == first.stdout
    with pytest.raises(AlreadyExists) as caught:
        await link.runs.collect(["true"], run_id=same)
    assert caught.value.code == "run_id_conflict"


async def test_two_at_once_with_one_id_are_one_run(link: BoxdLink) -> None:
    same = run_id()
    argv = ["sh", "-c", "sleep 0.1; echo $$"]
    both = await asyncio.gather(*(link.runs.collect(argv, run_id=same) for _ in range(2)))
    assert both[0].stdout == both[1].stdout
    assert sorted(outcome.attached for outcome in both) == [False, True]


async def test_a_reader_that_left_goes_on_where_it_was(link: BoxdLink) -> None:
    same = run_id()
    argv = ["sh", "-c", "printf abc; read go; printf def"]
    first = b""
    async with aclosing(link.runs.start(argv, run_id=same, stdin_open=True)) as events:
        async for event in events:
            if isinstance(event, RunOutput):
                first += event.data
            if first == b"abc":
                break
    await link.runs.send_stdin(same, data=b"go\n")
    async with aclosing(link.runs.start(argv, run_id=same, stdin_open=True, stdout_offset=3)) as events:
        rest = [event async for event in events]
    assert rest[1] == RunOutput("stdout", 3, b"def")
    assert isinstance(rest[-1], RunEnded)


async def test_what_is_kept_no_more_is_announced(link: BoxdLink) -> None:
    same, size = run_id(), 80 * 1024 * 1024
    argv = ["head", "-c", str(size), "/dev/zero"]
    await link.runs.collect(argv, run_id=same, max_output_bytes=1)
    lost = seen = 0
    async with aclosing(link.runs.start(argv, run_id=same)) as events:
        async for event in events:
            if isinstance(event, RunLost):
                lost += event.lost_bytes
            elif isinstance(event, RunOutput):
                seen += len(event.data)
    assert lost > 0
    assert lost + seen == size


async def test_a_timeout_kills_the_tree_and_keeps_the_output(link: BoxdLink) -> None:
    argv = ["sh", "-c", "setsid sleep 1000 & echo $!; sleep 1000"]
    outcome = await link.runs.collect(argv, run_id=run_id(), timeout_ms=500)
    assert (outcome.outcome, outcome.exit_code, outcome.not_stopped) == ("timeout", None, ())
    child = outcome.stdout.strip()
    gone = await link.runs.collect(["test", "-e", f"/proc/{child}"], run_id=run_id())
    assert gone.exit_code == 1


async def test_a_cancelled_call_leaves_nothing_running(link: BoxdLink) -> None:
    doomed = run_id()
    call = asyncio.get_running_loop().create_task(link.runs.collect(["sleep", "1000"], run_id=doomed))
    while not call.done() and doomed not in [run.run_id for run in await link.runs.list()]:
        await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert doomed not in [run.run_id for run in await link.runs.list()]


async def test_signals_and_listing(link: BoxdLink) -> None:
    sleeper = run_id()
    async with aclosing(link.runs.start(["sleep", "1000"], run_id=sleeper, cwd="/tmp")) as events:
        started = await anext(events)
        assert isinstance(started, RunStarted)
        [listed] = [run for run in await link.runs.list() if run.run_id == sleeper]
        assert (listed.pid, listed.argv, listed.cwd) == (started.pid, ("sleep", "1000"), "/tmp")
        await link.runs.signal(sleeper, signum=signal.SIGUSR1)
        ended = await anext(events)
    assert isinstance(ended, RunEnded)
    assert (ended.outcome, ended.signal, ended.exit_code) == ("signaled", signal.SIGUSR1, None)
    with pytest.raises(NotFound):
        await link.runs.signal(sleeper, signum=signal.SIGTERM)
    with pytest.raises(NotFound):
        await link.runs.kill_tree(RunId("never"))


async def test_a_child_in_the_background_does_not_hold_the_call(link: BoxdLink) -> None:
    same = run_id()
    outcome = await link.runs.collect(["sh", "-c", "(sleep 1000; echo late) & echo now"], run_id=same)
    assert (outcome.stdout, outcome.exit_code) == ("now\n", 0)
    assert await link.runs.kill_tree(same) == ()


@pytest.mark.parametrize(
    ("argv", "options", "code"),
    [
        (["no-such-program"], {}, "exec_not_found"),
        (["/etc/passwd"], {}, "exec_denied"),
        (["true"], {"cwd": "/nowhere"}, "bad_cwd"),
        (["true"], {"user": "nobody-here"}, "unknown_user"),
    ],
)
async def test_what_cannot_be_started_says_why(
    link: BoxdLink, argv: list[str], options: dict[str, str], code: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await link.runs.collect(argv, run_id=run_id(), cwd=options.get("cwd"), user=options.get("user"))
    assert (caught.value.code, caught.value.admitted) == (code, "no")


async def test_many_runs_at_once(link: BoxdLink) -> None:
    outcomes = await asyncio.gather(
        *(link.runs.collect(["echo", str(n)], run_id=run_id()) for n in range(40))
    )
    assert [outcome.stdout for outcome in outcomes] == [f"{n}\n" for n in range(40)]


async def test_memory_beyond_the_limit_is_told(own_box: Box) -> None:
    link = own_box.link()
    await link.go(birth_id=own_box.birth_id)
    outcome = await link.runs.collect(
        ["perl", "-e", "$x = 'a' x 300_000_000"], run_id=run_id(), timeout_ms=60_000
    )
    assert (outcome.outcome, outcome.signal, outcome.oom_killed) == ("signaled", signal.SIGKILL, True)
    assert (await link.hello(timeout_s=10)).state == "running"
    await link.aclose()


# ---------------------------------------------------------------- death, and who else is in the box


async def test_a_box_killed_in_the_middle_of_a_run(own_box: Box) -> None:
    link = own_box.link()
    await link.go(birth_id=own_box.birth_id)
    with pytest.raises(Aborted) as lost:
        await _until_killed(link, pid=own_box.pid)
    assert (lost.value.code, lost.value.admitted) == ("connection_lost", "yes")
    with pytest.raises(Unavailable) as gone:
        await link.hello()
    assert (gone.value.code, gone.value.admitted) == ("runtime_unreachable", "no")
    await link.aclose()


async def _until_killed(link: BoxdLink, *, pid: int) -> None:
    async with aclosing(link.runs.start(["sleep", "1000"], run_id=run_id())) as events:
        await anext(events)
        os.kill(pid, signal.SIGKILL)
        await anext(events)


CLAIM = """
$SIG{PIPE} = "IGNORE"; socket(S, 1, 1, 0) or die;
connect(S, pack("Sa*", 1, "/run/sandkeeper/boot.sock")) or die "connect: $!";
syswrite(S, "{\\"protocol\\":1,\\"build\\":\\"x\\",\\"pid1\\":true}\\n");
print defined(sysread(S, $answer, 100)) && length($answer) ? "got $answer" : "refused";
"""


async def test_root_in_the_box_gets_no_listener_and_cannot_touch_the_folder(box: Box, link: BoxdLink) -> None:
    seen: list[tuple[int, int]] = []
    boot = BootListener(
        box.state_dir,
        birth_id=box.birth_id,
        ports=real_ports(),
        on_impostor=lambda pid, total: seen.append((pid, total)),
    )
    with closing(boot):
        assert boot.open() is True
        assert await boot.hand_over(pid=box.pid, timeout_s=1) is None
        claim = await link.runs.collect(["perl", "-e", CLAIM], run_id=run_id(), user="root")
        assert claim.stdout == "refused", claim.stderr
        assert len(seen) == 1
        for attack in (
            "rm /run/sandkeeper/boot.sock",
            "touch /run/sandkeeper/x",
            "mount -o remount,rw /run/sandkeeper",
        ):
            outcome = await link.runs.collect(["sh", "-c", attack], run_id=run_id(), user="root")
            assert outcome.exit_code != 0
    assert (await link.hello(timeout_s=10)).state == "running"


# ---------------------------------------------------------------- files


async def test_a_file_is_written_whole_and_read_in_parts(link: BoxdLink) -> None:
    path = "/tmp/deep/er/file ä?.bin"
    data = bytes(range(256)) * 4000
    assert await link.files.write(path, data=data) == path
    assert await link.files.read(path) == data
    assert await link.files.read(path, offset=1_000_000, length=30) == data[1_000_000:1_000_030]
    assert await link.files.read(path, offset=len(data) - 1) == data[-1:]
    assert await link.files.read(path, offset=len(data)) == b""
    assert await link.files.read(path, length=0) == b""
    with pytest.raises(ResourceExhausted) as caught:
        await link.files.read(path, limit_bytes=1000)
    assert caught.value.code == "file_too_large"
    entry = await link.files.stat(path)
    assert (entry.type, entry.size_bytes, entry.mode & 0o777, entry.path) == ("file", len(data), 0o644, path)
    assert entry.modified_at is not None


async def test_an_upload_in_pieces_and_an_empty_one(link: BoxdLink) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for n in range(20):
            yield bytes([n]) * 100_000
            yield b""

    await link.files.write("/tmp/pieces", data=pieces())
    assert await link.files.read("/tmp/pieces") == b"".join(bytes([n]) * 100_000 for n in range(20))
    await link.files.write("/tmp/empty", data=b"")
    assert await link.files.read("/tmp/empty") == b""


async def test_an_upload_that_breaks_leaves_the_old_file(link: BoxdLink) -> None:
    async def breaks() -> AsyncIterator[bytes]:
        yield b"new"
        raise ValueError("source is gone")

    await link.files.write("/tmp/kept", data=b"old")
    with pytest.raises(ValueError, match="source is gone"):
        await link.files.write("/tmp/kept", data=breaks())
    assert await link.files.read("/tmp/kept") == b"old"
    assert [entry.name for entry in await link.files.list("/tmp") if "kept" in entry.name] == ["kept"]


async def test_folders(link: BoxdLink) -> None:
    await link.files.mkdir("/tmp/d/e")
    with pytest.raises(AlreadyExists):
        await link.files.mkdir("/tmp/d/e")
    await link.files.mkdir("/tmp/d/e", exist_ok=True)
    await link.files.write("/tmp/d/f", data=b"x")
    await link.runs.collect(["ln", "-s", "f", "/tmp/d/l"], run_id=run_id())
    assert sorted(entry.name for entry in await link.files.list("/tmp/d")) == ["e", "f", "l"]
    assert (await link.files.stat("/tmp/d/l")).symlink_target == "/tmp/d/f"
    assert (await link.files.move("/tmp/d/f", destination="/tmp/d/e/g")).path == "/tmp/d/e/g"
    assert not await link.files.exists("/tmp/d/f")
    assert {entry.path for entry in await link.files.list("/tmp/d", depth=2)} >= {"/tmp/d/e", "/tmp/d/e/g"}
    await link.files.remove("/tmp/d")
    await link.files.remove("/tmp/d")
    assert not await link.files.exists("/tmp/d")


async def test_missing_files_say_so(link: BoxdLink) -> None:
    for call in (
        link.files.read("/nothing"),
        link.files.stat("/nothing"),
        link.files.list("/nothing"),
        link.files.move("/nothing", destination="/tmp/x"),
    ):
        with pytest.raises(NotFound) as caught:
            await call
        assert caught.value.admitted == "no"
    with pytest.raises(InvalidArgument):
        await link.files.read("/tmp")


def packed(*members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


async def once(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def test_archives_both_ways(link: BoxdLink) -> None:
    data = packed(("a/one", b"1" * 10_000), ("two", b"2"))
    loaded = await link.files.upload_archive("/tmp/project", chunks=once(data))
    assert (loaded.files, loaded.size_bytes) == (2, 10_001)
    async with aclosing(link.files.download_archive("/tmp/project")) as pieces:
        back = b"".join([piece async for piece in pieces])
    with tarfile.open(fileobj=io.BytesIO(back)) as archive:
        names = {member.name.removeprefix("./").rstrip("/"): member for member in archive.getmembers()}
        assert {"a/one", "two"} <= set(names)
        one = archive.extractfile(names["a/one"])
        assert one is not None
        assert one.read() == b"1" * 10_000


@pytest.mark.parametrize("name", ["../outside", "/outside", "a/../../outside"])
async def test_an_archive_stays_in_its_folder(link: BoxdLink, name: str) -> None:
    with pytest.raises(InvalidArgument):
        await link.files.upload_archive("/tmp/jail", chunks=once(packed((name, b"x"))))
    assert not await link.files.exists("/tmp/outside")
    assert not await link.files.exists("/outside")


async def test_a_refused_upload_does_not_spoil_the_next_call(box: Box) -> None:
    path = control_socket(box.state_dir, birth_id=box.birth_id)
    link = BoxdLink(path, generation=1, epoch=1, ports=real_ports(), deadlines=Deadlines(answer_s=20))
    await link.go(birth_id=box.birth_id)
    for _ in range(3):
        with pytest.raises(InvalidArgument):
            await link.files.write("/tmp", data=b"x" * 3_000_000)
        assert (await link.hello(timeout_s=10)).state == "running"
    await link.aclose()
