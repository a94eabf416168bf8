"""A hostile program in the box: at the boot socket, at its folder, at the process table, at the disk."""

from __future__ import annotations

import asyncio

import pytest

from sandkeeper.core.errors import PermissionDenied, SandkeeperError
from tests.support.yard import Yard, eventually, token

pytestmark = [pytest.mark.crash, pytest.mark.docker]

CLAIM = """
$SIG{PIPE} = "IGNORE";
for (1..$ARGV[0]) {
  socket(S, 1, 1, 0) or die "socket: $!";
  connect(S, pack("Sa*", 1, "/run/sandkeeper/boot.sock")) or die "connect: $!";
  syswrite(S, "{\\"protocol\\":1,\\"build\\":\\"x\\",\\"pid1\\":true}\\n");
  $got = sysread(S, $answer, 100);
  die "got $answer" if $got;
  close(S);
}
print "refused";
"""
FLOOD = 2000
HANGERS = """
for (1..300) { socket($s[$_], 1, 1, 0); connect($s[$_], pack("Sa*", 1, "/run/sandkeeper/boot.sock")) or last; }
print "held"; sleep 600;
"""


async def claim(yard: Yard, sandbox_id: str, times: int) -> str:
    async with yard.link(sandbox_id) as link:
        outcome = await link.runs.collect(
            ["perl", "-e", CLAIM, str(times)], run_id=token(), user="root", timeout_ms=60_000
        )
    return str(outcome.stdout) + str(outcome.stderr)


async def impostors(yard: Yard, sandbox_id: str) -> list[dict[str, int]]:
    return [event["details"] for event in await yard.events(sandbox_id) if event["kind"] == "box_impostor"]


async def test_a_second_process_claims_the_boot_socket(yard: Yard) -> None:
    """It is refused and told; the box goes on, also after the owner was killed in between."""
    view = await yard.create()
    assert await claim(yard, view["id"], 1) == "refused"
    await eventually(lambda: impostors(yard, view["id"]), "it was not told")
    await yard.restart_owner()
    assert await claim(yard, view["id"], 1) == "refused"
    told = await eventually(lambda: at_least_two(yard, view["id"]), "it was not told again")
    assert {line["birth_id"] for line in told} == {view["birth_id"]}
    assert (await yard.describe(view["id"]))["generation"] == 1


async def at_least_two(yard: Yard, sandbox_id: str) -> list[dict[str, int]] | None:
    told = await impostors(yard, sandbox_id)
    return told if len(told) >= 2 else None


async def test_a_flood_at_the_boot_socket(yard: Yard) -> None:
    """All are refused, the owner goes on working for others, and the journal gets a line now and then, not each."""
    view, other = await yard.create(), await yard.create()
    async with yard.link(view["id"]) as link:
        holding = asyncio.create_task(
            link.runs.collect(["perl", "-e", HANGERS], run_id="holds", user="root", timeout_ms=60_000)
        )
        flooding = asyncio.create_task(claim(yard, view["id"], FLOOD))
        rounds = 0
        while not flooding.done():
            assert (await yard.run(other["id"], "echo other")).stdout == "other\n"
            assert (await yard.own("ping"))["sandbox_count"] == 2
            rounds += 1
        assert await flooding == "refused"
        assert rounds > 1
        assert await link.runs.kill_tree("holds") == ()
        await holding
    told = await impostors(yard, view["id"])
    assert 1 <= len(told) < FLOOD / 20
    assert (await yard.run(view["id"], "echo self")).stdout == "self\n"
    stopped = await yard.change("stop", view["id"], keep="files")
    assert stopped["phase"] == "stopped"
    assert (await yard.change("start", view["id"]))["generation"] == 2, "its boxd still gets its listener"


@pytest.mark.parametrize(
    "attack",
    [
        "touch /run/sandkeeper/x",
        "rm -f /run/sandkeeper/boot.sock",
        "mv /run/sandkeeper/boot.sock /run/sandkeeper/egress.sock",
        "ln -s /etc/passwd /run/sandkeeper/link",
        "chmod 777 /run/sandkeeper/boot.sock",
        "mount -o remount,rw /run/sandkeeper",
        "mount --bind /tmp /run/sandkeeper",
        "umount /run/sandkeeper",
        "echo x > /.sandkeeper/boxd",
        "rm -f /.sandkeeper/boxd",
    ],
)
async def test_writing_into_the_hosts_folders(yard: Yard, attack: str, box: str) -> None:
    outcome = await yard.run(box, attack)
    assert outcome.exit_code not in (0, None), outcome
    assert (await yard.run(box, "ls /run/sandkeeper /.sandkeeper")).stdout.split() == [
        "/.sandkeeper:",
        "boxd",
        "/run/sandkeeper:",
        "boot.sock",
    ]
    assert (await yard.describe(box))["generation"] == 1


@pytest.fixture
async def box(yard: Yard) -> str:
    return str((await yard.create())["id"])


async def test_a_fork_bomb_beside_24_file_reads(yard: Yard) -> None:
    """Reads stay right, exec says which limit was hit, the owner can still stop, kill and snapshot the box."""
    size = {"name": "custom", "vcpu": 1, "memory_mib": 512, "pids": 200}
    view = await yard.create(size=size)
    body = b"b" * 1_000_000
    await yard.write(view["id"], "/big", body)
    async with yard.link(view["id"]) as link:
        bombing = asyncio.create_task(
            link.runs.collect(
                ["bash", "-c", "b() { b | b & }; b; sleep 600"],
                run_id="bomb",
                user="root",
                timeout_ms=90_000,
            )
        )

        async def exhausted() -> bool:
            try:
                await link.runs.collect(["true"], run_id=token())
            except SandkeeperError as error:
                return error.code == "pids_exhausted"
            return False

        await eventually(exhausted, "the limit was never reached")
        reads = await asyncio.gather(*(link.files.read("/big") for _ in range(24)))
        assert all(bytes(read) == body for read in reads)
        assert (await link.hello(timeout_s=30)).state == "running"
        assert (await yard.own("ping"))["sandbox_count"] == 1
        assert await link.runs.kill_tree("bomb") == ()
        assert (await bombing).exit_code is None
    assert (await yard.run(view["id"], "echo fine")).stdout == "fine\n"
    now = await yard.describe(view["id"])
    assert (now["phase"], now["generation"]) == ("running", 1)


async def test_a_sparse_file_of_a_tebibyte(yard: Yard) -> None:
    """Refused before anything is frozen, with the numbers; when it is gone the snapshot is taken."""
    view = await yard.create()
    await yard.write(view["id"], "/kept", b"kept")
    first = await yard.snapshot(view["id"])
    assert (await yard.run(view["id"], "truncate -s 1T /sparse")).exit_code == 0
    yard.engine.seen.clear()
    with pytest.raises(PermissionDenied) as large:
        await yard.snapshot(view["id"])
    assert large.value.code == "snapshot_too_large"
    assert large.value.message.startswith("snapshot ")
    assert not {"pause", "commit"} & set(yard.engine.seen)
    with pytest.raises(PermissionDenied) as kept:
        await yard.change("stop", view["id"], keep="snapshot")
    assert kept.value.code == "snapshot_too_large"
    assert (await yard.until(view["id"], "running"))["generation"] == 1, "and it is not stopped without one"
    assert await yard.restores(first["id"], "/kept") == b"kept"
    assert (await yard.run(view["id"], "rm /sparse")).exit_code == 0
    second = await yard.snapshot(view["id"])
    assert second["delta_bytes"] < 1 << 20
    assert await yard.restores(second["id"], "/kept") == b"kept"
