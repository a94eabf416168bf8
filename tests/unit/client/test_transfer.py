"""Trees go both ways whole, with flat memory, and nothing a box chose lands outside the folder."""

from __future__ import annotations

import io
import os
import tarfile
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from sandkeeper.client.hostile import HostileMemberError, admit_member
from sandkeeper.client.transfer import Arriving, packed, unpack
from sandkeeper.core.errors import Aborted, InvalidArgument, NotFound, SandkeeperError


async def pieces(data: bytes, *, size: int = 1000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def archive(*members: tuple[str, Callable[[tarfile.TarInfo], None], bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, change, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            change(member)
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def plain(_member: tarfile.TarInfo) -> None:
    return


def link(kind: bytes, target: str) -> Callable[[tarfile.TarInfo], None]:
    def change(member: tarfile.TarInfo) -> None:
        member.type, member.linkname, member.size = kind, target, 0

    return change


def device(member: tarfile.TarInfo) -> None:
    member.type, member.size = tarfile.CHRTYPE, 0


async def test_a_tree_arrives_as_it_was(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a" / "b").mkdir(parents=True)
    (source / "a" / "b" / "text").write_text("hello")
    (source / "empty").mkdir()
    (source / "run").write_text("#!/bin/sh\n")
    (source / "run").chmod(0o755)
    (source / "link").symlink_to("a/b/text")
    os.mkfifo(source / "pipe")
    target = tmp_path / "target"
    told: list[int] = []
    parcel = packed(source, path="/x", on_bytes=told.append)
    assert parcel.folder == "/x"
    size = await unpack(parcel.chunks, folder=target)
    assert size == 5 + 10
    assert (target / "a" / "b" / "text").read_text() == "hello"
    assert (target / "link").readlink() == Path("a/b/text")
    assert (target / "run").stat().st_mode & 0o777 == 0o755
    assert sorted(path.name for path in target.iterdir()) == ["a", "empty", "link", "run"]
    assert told == sorted(told)


@pytest.mark.parametrize(
    ("path", "folder", "name"),
    [("/a/b", "/a", "b"), ("b", ".", "b"), ("/b", "/", "b"), ("/a/", "/a", "source")],
)
async def test_one_file_goes_where_it_is_told(tmp_path: Path, path: str, folder: str, name: str) -> None:
    (tmp_path / "source").write_text("x")
    parcel = packed(tmp_path / "source", path=path)
    assert parcel.folder == folder
    await unpack(parcel.chunks, folder=tmp_path / "out")
    assert (tmp_path / "out" / name).read_text() == "x"


@pytest.mark.parametrize("size", [0, 1, 511, 512, 3 * 2**20 + 7])
async def test_the_archive_of_one_file_is_one_tarfile_reads(tmp_path: Path, size: int) -> None:
    source = tmp_path / "source"
    source.write_bytes(body := os.urandom(size))
    source.chmod(0o751)
    name = "ü" * 90  # beyond what the plain header holds
    sent: list[int] = []
    data = b"".join([piece async for piece in packed(source, path=f"/a/{name}", on_bytes=sent.append).chunks])
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        (member,) = tar.getmembers()
        file = tar.extractfile(member)
        assert file is not None
        assert file.read() == body
    assert (member.name, member.mode, member.uid) == (name, 0o751, 0)
    assert member.mtime == pytest.approx(source.stat().st_mtime)
    assert len(data) % tarfile.BLOCKSIZE == 0
    assert sent[-1:] == ([size] if size else [])


async def test_a_file_that_becomes_shorter_on_the_way_is_no_upload(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(3 * 2**20))
    chunks = packed(source, path="/a/b").chunks
    await anext(chunks)
    await anext(chunks)
    os.truncate(source, 1000)
    with pytest.raises(InvalidArgument) as refused:
        async for _ in chunks:
            pass
    assert refused.value.code == "local_unreadable"


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        packed(tmp_path / "nothing", path="/x")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgument):
        packed(tmp_path / "file", path="/x/..")


HOSTILE = {
    "absolute": archive(("/etc/owned", plain, b"x")),
    "parent": archive(("../owned", plain, b"x")),
    "hidden parent": archive(("a/../../owned", plain, b"x")),
    "through a link": archive(("d/l", link(tarfile.SYMTYPE, "../.."), b""), ("d/l/owned", plain, b"x")),
    "hard link": archive(("a", link(tarfile.LNKTYPE, "../owned"), b"")),
    "device": archive(("a", device, b"")),
    "no archive": b"this is no tar" * 1000,
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_hostile_archives_are_refused_and_write_nothing_outside(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "in" / "folder"
    with pytest.raises(Aborted) as refused:
        await unpack(pieces(HOSTILE[kind]), folder=folder)
    assert refused.value.code == "archive_hostile"
    assert [path.name for path in tmp_path.rglob("owned")] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


@pytest.mark.parametrize("target", ["/etc", "/usr/bin/python3", "..", "../../x"])
async def test_links_that_lead_outside_are_left_out_and_named(tmp_path: Path, target: str) -> None:
    came = archive(("a/out", link(tarfile.SYMTYPE, target), b""), ("a/kept", plain, b"x"))
    left_out: list[str] = []
    await unpack(pieces(came), folder=tmp_path / "in" / "folder", on_left_out=left_out.append)
    assert left_out == (["a/out"] if target != ".." else [])
    assert (tmp_path / "in" / "folder" / "a" / "kept").read_text() == "x"


def test_a_link_already_there_does_not_lead_outside(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "out").symlink_to(tmp_path)
    with pytest.raises(HostileMemberError):
        admit_member(tarfile.TarInfo("out/owned"), folder=tmp_path / "folder")


def test_members_become_ours_without_special_bits(tmp_path: Path) -> None:
    member = tarfile.TarInfo("x")
    member.mode, member.uid, member.uname = 0o6777, 4242, "root"
    admitted = admit_member(member, folder=tmp_path)
    assert (admitted.mode, admitted.uid, admitted.uname) == (0o755, os.geteuid(), "")


async def test_a_cut_stream_is_an_error_not_half_a_tree_taken_for_whole(tmp_path: Path) -> None:
    async def cut() -> AsyncIterator[bytes]:
        yield archive(("a", plain, b"x" * 100_000))[:50_000]
        raise Aborted("cut", code="connection_lost")

    with pytest.raises(SandkeeperError):
        await unpack(cut(), folder=tmp_path / "x")


async def test_leaving_early_ends_the_packing(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "big").write_bytes(bytes(4_000_000))
    parcel = packed(tmp_path / "source", path="/x")
    assert len(await anext(parcel.chunks)) > 0
    await parcel.chunks.aclose()


async def test_memory_does_not_grow_with_the_tree(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(4):
        (source / f"f{number}").write_bytes(bytes(8 * 1024 * 1024))
    tracemalloc.start()
    await unpack(packed(source, path="/x").chunks, folder=tmp_path / "out")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 1024 * 1024


def test_a_file_arrives_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file"
    with Arriving(target, name="x") as arriving:
        arriving.write(b"half")
    assert list((tmp_path / "deep").iterdir()) == []
    with Arriving(target, name="x") as arriving:
        arriving.write(b"whole")
        arriving.keep()
    assert target.read_bytes() == b"whole"
    with Arriving(tmp_path / "deep", name="x") as arriving:
        arriving.keep()
    assert (tmp_path / "deep" / "x").exists()
