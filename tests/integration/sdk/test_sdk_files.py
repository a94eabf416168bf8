"""Files through the SDK on a real container: cases F1, F2, F3, F6, F7, F8; search, links, watching."""

from __future__ import annotations

import asyncio
import hashlib
import io
import tarfile
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from sandkeeper import Sandbox, SandkeeperError
from sandkeeper.boxd.file_search import GrepEnd, GrepMatch

pytestmark = pytest.mark.docker

EVERY_BYTE = bytes(range(256)) * 4096


@pytest.mark.parametrize("size", [0, 100_000, 128 << 10, 1 << 20, 32 << 20])
async def test_f1_any_size_comes_back_equal(sandbox: Sandbox, size: int) -> None:
    """F1: around the sizes where pipes and arguments end, and far beyond."""
    content = (EVERY_BYTE * (size // len(EVERY_BYTE) + 1))[:size]
    await sandbox.files.write("/tmp/f1", content)
    assert await sandbox.files.read("/tmp/f1") == content
    said = await sandbox.run("sha256sum </tmp/f1")
    assert said.stdout.split()[0] == hashlib.sha256(content).hexdigest()


async def test_f2_every_byte_by_every_route(sandbox: Sandbox, tmp_path: Path) -> None:
    """F2: write, append, copy, upload of a file and of a folder; read, ranges, stream, both downloads, stdout."""
    files = sandbox.files
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "f2").write_bytes(EVERY_BYTE)
    await files.write("/tmp/f2/written", EVERY_BYTE)
    assert await files.append("/tmp/f2/appended", EVERY_BYTE[:1000]) == 1000
    assert await files.append("/tmp/f2/appended", EVERY_BYTE[1000:]) == len(EVERY_BYTE)
    await files.copy("/tmp/f2/written", "/tmp/f2/copied")
    await files.upload(tmp_path / "in" / "f2", "/tmp/f2/uploaded")
    await files.upload(tmp_path / "in", "/tmp/f2/folder")
    for name in ("written", "appended", "copied", "uploaded", "folder/f2"):
        assert await files.read(f"/tmp/f2/{name}") == EVERY_BYTE, name
    assert await files.read("/tmp/f2/written", offset=300, length=512) == EVERY_BYTE[300:812]
    assert await files.read("/tmp/f2/written", offset=len(EVERY_BYTE)) == b""
    await files.download("/tmp/f2/written", tmp_path / "out")
    await files.download("/tmp/f2", tmp_path / "tree")
    assert (tmp_path / "out").read_bytes() == EVERY_BYTE
    assert (tmp_path / "tree" / "folder" / "f2").read_bytes() == EVERY_BYTE
    printed = await sandbox.run(["cat", "/tmp/f2/written"], max_output_bytes=2 << 20)
    assert printed.stdout_bytes == EVERY_BYTE


async def test_f3_links_lead_nowhere_but_into_the_sandbox(sandbox: Sandbox, tmp_path: Path) -> None:
    """F3: planted links and dotted paths read the sandbox's own files; hostile archives write nothing outside."""
    marker = tmp_path / "marker"
    marker.write_text("host")
    files = sandbox.files
    await sandbox.run(
        f"mkdir -p /tmp/f3; cd /tmp/f3; ln -s /etc/hostname own; ln -s /proc/1/root/etc/hostname deep;"
        f" ln -s {tmp_path} folder; ln -s {marker} host"
    )
    own = (await sandbox.run(["cat", "/etc/hostname"])).stdout
    assert await files.read_text("/tmp/f3/own") == own
    assert await files.read_text("/tmp/f3/../../tmp/f3/own") == own
    for path in ("/tmp/f3/host", "/tmp/f3/folder/marker", str(marker)):
        with pytest.raises(SandkeeperError) as refused:
            await files.read(path)
        assert refused.value.category == "NotFound", path
    assert await files.read_text("/tmp/f3/deep") == own
    await files.write("/tmp/f3/folder-made", "x")
    for member in hostile_members():
        archive = archive_of(member)
        box = await sandbox._boxes.take(sandbox.id)
        with pytest.raises(SandkeeperError) as hostile:
            await box.link.files.upload_archive("/tmp/f3/into", chunks=pieces(archive))
        assert hostile.value.code == "hostile_archive", member
    assert not await files.exists("/tmp/evil")
    assert not await files.exists("/evil")
    assert marker.read_text() == "host"


def hostile_members() -> list[tuple[tarfile.TarInfo, ...]]:
    above, absolute, link, through = (
        tarfile.TarInfo(name) for name in ("../evil", "/evil", "out", "out/evil")
    )
    link.type, link.linkname = tarfile.SYMTYPE, "/tmp"
    return [(above,), (absolute,), (link, through)]


def archive_of(members: tuple[tarfile.TarInfo, ...]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for member in members:
            archive.addfile(member)
    return held.getvalue()


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def test_f6_a_cut_upload_leaves_the_old_file(sandbox: Sandbox) -> None:
    """F6: half of a new file was sent; the old one is whole and no temporary lies beside it."""
    files = sandbox.files
    await files.write("/tmp/f6/file", "old")

    async def half() -> AsyncIterator[bytes]:
        yield EVERY_BYTE
        raise ConnectionResetError

    box = await sandbox._boxes.take(sandbox.id)
    with pytest.raises(ConnectionResetError):
        await box.link.files.write("/tmp/f6/file", data=half())
    async with asyncio.timeout(20):
        while [entry.name for entry in await files.list("/tmp/f6")] != ["file"]:
            await asyncio.sleep(0.05)
    assert await files.read("/tmp/f6/file") == b"old"


async def test_f7_what_a_file_is_needs_no_read_of_it(sandbox: Sandbox) -> None:
    """F7: five sparse GiB; nothing of it is read, or this would not end in time."""
    await sandbox.run(["truncate", "-s", "5G", "/tmp/f7"])
    async with asyncio.timeout(5):
        for _ in range(20):
            assert await sandbox.files.exists("/tmp/f7")
            assert (await sandbox.files.stat("/tmp/f7")).size_bytes == 5 << 30
        assert await sandbox.files.read("/tmp/f7", offset=(5 << 30) - 3) == b"\0\0\0"
    await sandbox.files.remove("/tmp/f7")


async def test_f8_files_belong_to_the_user_commands_run_as(own_sandbox: Sandbox, tmp_path: Path) -> None:
    """F8: the image's user; what was written and uploaded, it may append to."""
    (tmp_path / "up").write_text("one\n")
    await own_sandbox.files.write("made/written", "one\n")
    await own_sandbox.files.append("made/appended", "one\n")
    await own_sandbox.files.upload(tmp_path / "up", "made/uploaded")
    result = await own_sandbox.run("cd made && for f in *; do echo two >>$f; stat -c %U $f; done; id -un")
    assert result.exit_code == 0, result.stderr
    assert len(set(result.stdout.split())) == 1
    assert await own_sandbox.files.read_text("made/written") == "one\ntwo\n"


async def test_modes_owners_and_links(sandbox: Sandbox) -> None:
    files = sandbox.files
    await files.write("/tmp/mol/a/file", "x")
    await files.symlink("/tmp/mol/a/link", "file")
    await files.chmod("/tmp/mol/a/file", 0o640)
    await files.chown("/tmp/mol/a", "daemon:daemon", recursive=True)
    link = await files.lstat("/tmp/mol/a/link")
    assert (link.type, link.symlink_target, link.owner) == ("symlink", "file", "daemon")
    through = await files.stat("/tmp/mol/a/link")
    assert (through.type, through.size_bytes, through.mode & 0o777) == ("file", 1, 0o640)
    copied = await files.copy("/tmp/mol/a", "/tmp/mol/b", recursive=True, preserve_owner=True)
    assert (copied.type, copied.owner) == ("directory", "daemon")
    assert (await files.lstat("/tmp/mol/b/link")).symlink_target == "file"
    with pytest.raises(SandkeeperError):
        await files.copy("/tmp/mol/a", "/tmp/mol/c")
    listed = await files.list("/tmp/mol", depth=2)
    assert [entry.path for entry in listed if entry.type == "file" and not entry.is_symlink] == [
        "/tmp/mol/a/file",
        "/tmp/mol/b/file",
    ]


async def test_searching_happens_in_the_box(sandbox: Sandbox) -> None:
    files = sandbox.files
    for number in range(5):
        await files.write(f"/tmp/look/{number}/x.py", f"a\nneedle {number}\n")
    await files.write("/tmp/look/x.bin", b"\0needle")
    assert await files.glob("**/*.py", root="/tmp/look") == tuple(
        f"/tmp/look/{number}/x.py" for number in range(5)
    )
    with pytest.raises(SandkeeperError) as many:
        await files.glob("**/*.py", root="/tmp/look", limit=3)
    assert many.value.code == "too_many_found"
    found = [item async for item in files.grep("needle [0-2]", root="/tmp/look")]
    *matches, end = found
    assert [(m.path, m.line, m.offset) for m in matches if isinstance(m, GrepMatch)] == [
        (f"/tmp/look/{number}/x.py", 2, 2) for number in range(3)
    ]
    assert isinstance(end, GrepEnd)
    assert (end.matches, end.is_truncated) == (3, False)
    cut = [item async for item in files.grep("needle", root="/tmp/look", limit=2)]
    assert isinstance(cut[-1], GrepEnd)
    assert cut[-1].is_truncated


async def test_changes_are_seen_while_they_happen_and_a_flood_is_told(sandbox: Sandbox) -> None:
    await sandbox.files.mkdir("/tmp/seen/deep")
    async with aclosing(sandbox.files.watch("/tmp/seen", recursive=True)) as events:
        assert (await anext(events)).change == "ready"
        await sandbox.run("echo x >/tmp/seen/deep/file; rm /tmp/seen/deep/file")
        changes: list[str] = []
        async with asyncio.timeout(20):
            while "removed" not in changes:
                event = await anext(events)
                assert event.name == "deep/file"
                changes.append(event.change)
        assert changes[0] == "created"
        await sandbox.run("cd /tmp/seen; seq 20000 | xargs touch")
        async with asyncio.timeout(30):
            while (await anext(events)).change != "overflow":
                pass


async def test_what_changed_since_a_snapshot_is_a_list_and_a_patch(own_sandbox: Sandbox) -> None:
    home = (
        await own_sandbox.run("mkdir w; cd w; seq 5 >text; seq 5 >gone; ln -s text link; pwd")
    ).stdout.strip()
    with pytest.raises(SandkeeperError) as none:
        await own_sandbox.diff()
    assert none.value.code == "no_snapshot"
    snapshot = await own_sandbox.snapshot()
    await own_sandbox.run(
        "cd w; sed -i s/3/three/ text; rm gone; printf new >made; chmod 700 made; touch link; mkdir empty;"
        " printf 'a\\0b' >binary"
    )
    found = await own_sandbox.diff(since=snapshot)
    changes = {change.path: change.kind for change in found.changes if change.path.startswith(home)}
    assert changes == {
        f"{home}/binary": "added",
        f"{home}/empty": "added",
        f"{home}/gone": "removed",
        f"{home}/made": "added",
        f"{home}/text": "modified",
    }
    patch = found.patch()
    assert f"--- a{home}/text\n+++ b{home}/text\n@@ -1,5 +1,5 @@\n 1\n 2\n-3\n+three\n" in patch
    assert f"Binary files /dev/null and b{home}/binary differ\n" in patch
    assert f"diff --git a{home}/made b{home}/made\nnew file mode 100755\n" in patch
    assert (await own_sandbox.diff()).changes == found.changes
