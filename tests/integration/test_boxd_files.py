"""Files and archives in a real container: owners, atomic writes, hostile members."""

from __future__ import annotations

import io
import tarfile
import threading
import uuid

import pytest

from tests.support.raw_box import Box

pytestmark = pytest.mark.docker


def test_files(box: Box) -> None:
    status, written = box.ask("POST", "/files?path=/tmp/f/deep/a.txt&username=nobody", b"hello world")
    assert (status, written[0]["path"]) == (200, "/tmp/f/deep/a.txt")
    assert box.call("GET", "/files?path=/tmp/f/deep/a.txt") == (200, b"hello world")
    assert box.call("GET", "/files?path=/tmp/f/deep/a.txt", Range="bytes=6-") == (206, b"world")
    assert box.call("GET", "/files?path=/tmp/f/deep/none")[0] == 404
    entry = box.ask("POST", "/filesystem.Filesystem/Stat", {"path": "/tmp/f/deep/a.txt"})[1]["entry"]
    assert (entry["type"], entry["size"], entry["permissions"], entry["owner"]) == (
        "FILE_TYPE_FILE", 11, "-rw-r--r--", "nobody",
    )  # fmt: skip
    listed = box.ask("POST", "/filesystem.Filesystem/ListDir", {"path": "/tmp/f", "depth": 2})[1]["entries"]
    assert [each["path"] for each in listed] == ["/tmp/f/deep", "/tmp/f/deep/a.txt"]
    assert box.ask("POST", "/filesystem.Filesystem/MakeDir", {"path": "/tmp/f"})[0] == 409
    moved = box.ask(
        "POST", "/filesystem.Filesystem/Move", {"source": "/tmp/f/deep", "destination": "/tmp/g/x"}
    )
    assert moved[1]["entry"]["path"] == "/tmp/g/x"
    assert box.call("GET", "/files?path=/tmp/g/x/a.txt")[1] == b"hello world"
    assert box.ask("POST", "/filesystem.Filesystem/Remove", {"path": "/tmp/g"}) == (200, {})
    assert box.ask("POST", "/filesystem.Filesystem/Stat", {"path": "/tmp/g"})[0] == 404


def test_a_folder_of_the_image_can_be_moved(box: Box) -> None:
    """Overlay file systems answer EXDEV to a rename of a lower folder."""
    names = {"source": "/usr/share/doc", "destination": "/usr/share/doc2"}
    moved = box.ask("POST", "/filesystem.Filesystem/Move", names)
    assert moved[0] == 200, moved
    assert box.sh("test -e /usr/share/doc").end["exitCode"] == 1


def test_a_file_the_engine_mounted_can_be_written(box: Box) -> None:
    assert box.call("POST", "/files?path=/etc/hosts", b"127.0.0.1 localhost\n")[0] == 200
    assert box.run("cat", "/etc/hosts").stdout == b"127.0.0.1 localhost\n"


def test_a_reader_sees_the_old_file_or_the_new_one(box: Box) -> None:
    contents = [bytes([65 + i]) * 200_000 for i in range(8)]
    box.call("POST", "/files?path=/tmp/atomic", contents[0])
    writers = [
        threading.Thread(target=box.call, args=("POST", "/files?path=/tmp/atomic", content))
        for content in contents
    ]
    for writer in writers:
        writer.start()
    for _ in range(20):
        assert box.call("GET", "/files?path=/tmp/atomic")[1] in contents
    for writer in writers:
        writer.join()
    assert b".sk-" not in box.sh("ls -a /tmp").stdout


def tar_of(*members: tarfile.TarInfo, content: bytes = b"data") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for member in members:
            member.size = len(content) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(content) if member.isreg() else None)
    return buffer.getvalue()


def member(name: str, *, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


def test_archive_up_and_down(box: Box) -> None:
    packed = tar_of(member("d/a"), member("d/l", kind=tarfile.SYMTYPE, link="a"), member("b"))
    status, answer = box.ask("PUT", "/sandkeeper/v1/archive?path=/tmp/up/here&username=nobody", packed)
    assert (status, answer) == (200, {"files": 3, "bytes": 8})
    assert box.sh("stat -c %U /tmp/up/here/d/a").stdout == b"nobody\n"
    status, text = box.call("GET", "/sandkeeper/v1/archive?path=/tmp/up/here")
    with tarfile.open(fileobj=io.BytesIO(text)) as archive:
        assert archive.getnames() == ["b", "d", "d/a", "d/l"]
        assert archive.getmember("d/l").linkname == "a"


@pytest.mark.parametrize(
    "hostile",
    [
        [member("../escaped")],
        [member("/tmp/escaped")],
        [member("l", kind=tarfile.SYMTYPE, link="/tmp"), member("l/escaped")],
        [member("l", kind=tarfile.SYMTYPE, link=".."), member("l/escaped")],
        [member("h", kind=tarfile.LNKTYPE, link="../../etc/passwd")],
        [member("p", kind=tarfile.FIFOTYPE)],
        [member("c", kind=tarfile.CHRTYPE)],
    ],
)
def test_hostile_archives_are_refused(box: Box, hostile: list[tarfile.TarInfo]) -> None:
    status, refusal = box.ask(
        "PUT", f"/sandkeeper/v1/archive?path=/tmp/trap/{uuid.uuid4().hex}", tar_of(*hostile)
    )
    assert (status, refusal["sandkeeper"]["code"]) == (400, "hostile_archive")
    assert box.sh("ls /tmp/escaped /tmp/trap/escaped").end["exitCode"] == 2
