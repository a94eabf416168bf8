"""The archive of a snapshot: what is written is what is read, and nothing else is taken."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandkeeper.core.errors import DataLoss, InvalidArgument, NotFound, SandkeeperError
from sandkeeper.core.record import SnapshotRecord
from sandkeeper.owner.snapshot_archive import IMAGE, MANIFEST, ArchiveReader, ArchiveWriter, Manifest
from tests.fakes.image_archive import image_id_of, pack_image
from tests.unit.core.samples import AT
from tests.unit.core.test_snapshots import taken

FILES = {"/work": b"12345" * 1000}


def snapshot(image_id: str | None = None) -> SnapshotRecord:
    row = taken(1)
    boot = row.boot.model_copy(update={"image_id": image_id or image_id_of(FILES, salt="s")})
    return row.model_copy(update={"boot": boot})


def written(
    folder: Path, *, image: bytes | None = None, row: SnapshotRecord | None = None, piece: int = 333
) -> Path:
    path = folder / "one.snapshot"
    writer = ArchiveWriter(path)
    writer.open()
    body = pack_image(FILES, salt="s") if image is None else image
    for start in range(0, len(body), piece):
        writer.write(body[start : start + piece])
    writer.finish(image="base", snapshot=row or snapshot(), at=AT)
    return path


def checked(path: Path) -> tuple[Manifest, bytes]:
    reader = ArchiveReader(path)
    try:
        return reader.check(), b"".join(reader.image())
    finally:
        reader.close()


def refusal(path: Path) -> SandkeeperError:
    with pytest.raises(SandkeeperError) as caught:
        checked(path)
    return caught.value


def test_what_was_written_is_read(tmp_path: Path) -> None:
    manifest, image = checked(written(tmp_path))
    assert image == pack_image(FILES, salt="s")
    assert (manifest.image, manifest.snapshot, manifest.image_bytes) == ("base", snapshot(), len(image))
    assert [entry.name for entry in tmp_path.iterdir()] == ["one.snapshot"]


def test_it_is_a_tar_anyone_can_read(tmp_path: Path) -> None:
    with tarfile.open(written(tmp_path)) as archive:
        assert archive.getnames() == [IMAGE, MANIFEST]
        shown = json.load(archive.extractfile(MANIFEST))  # type: ignore[arg-type]
    assert shown["format"] == 1


def test_one_that_was_not_finished_leaves_what_was_there(tmp_path: Path) -> None:
    path = written(tmp_path)
    before = path.read_bytes()
    writer = ArchiveWriter(path)
    writer.open()
    writer.write(b"half")
    writer.discard()
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["one.snapshot"]


@pytest.mark.parametrize("at", [600, 3000, 7000])
def test_a_changed_byte_is_found(tmp_path: Path, at: int) -> None:
    path = written(tmp_path)
    body = bytearray(path.read_bytes())
    body[at] ^= 1
    path.write_bytes(body)
    assert refusal(path).code in ("archive_damaged", "archive_refused")


@pytest.mark.parametrize("size", [0, 100, 511, 512, 1000, 5000, 9000])
def test_a_cut_one_is_damaged(tmp_path: Path, size: int) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes()[:size])
    assert isinstance(refusal(path), DataLoss)


def test_an_image_that_would_take_a_name_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, image=pack_image(FILES, salt="s", tags=["sandkeeper/base:dev"]))
    assert (refusal(path).code, type(refusal(path))) == ("archive_refused", InvalidArgument)


def test_another_image_than_promised_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, image=pack_image({"/evil": b"x"}, salt="s"))
    assert refusal(path).code == "archive_refused"


def _tar(**members: Any) -> bytes:
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w") as tar:
        for name, document in members.items():
            content = json.dumps(document).encode()
            entry = tarfile.TarInfo(name.replace("_", "."))
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return body.getvalue()


@pytest.mark.parametrize(
    "image",
    [
        _tar(),
        b"no tar",
        _tar(manifest_json=[]),
        _tar(manifest_json={"Config": "x"}),
        _tar(manifest_json=[1]),
        _tar(manifest_json=[{"Config": None, "RepoTags": None}]),
        _tar(manifest_json=[{"Config": "../x", "RepoTags": None}]),
        _tar(manifest_json=[{"Config": "a", "RepoTags": None}, {"Config": "b", "RepoTags": None}]),
    ],
)
def test_what_holds_no_image_is_refused(tmp_path: Path, image: bytes) -> None:
    assert refusal(written(tmp_path, image=image)).code in ("archive_refused", "archive_damaged")


def _changed(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Write the archive again with another manifest."""
    with tarfile.open(path) as archive:
        image = archive.extractfile(IMAGE)
        manifest = archive.extractfile(MANIFEST)
        assert image is not None
        assert manifest is not None
        body, document = image.read(), json.load(manifest)
    change(document)
    with tarfile.open(path, "w") as archive:
        for name, content in ((IMAGE, body), (MANIFEST, json.dumps(document).encode())):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda document: document.update(format=2), "archive_refused"),
        (lambda document: document.update(surprise=1), "archive_refused"),
        (lambda document: document.pop("sha256"), "archive_refused"),
        (lambda document: document.update(sha256="0" * 64), "archive_damaged"),
        (lambda document: document.update(image_bytes=5), "archive_damaged"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], code: str
) -> None:
    assert refusal(_changed(written(tmp_path), change)).code == code


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    assert isinstance(refusal(tmp_path / "none"), NotFound)
    with pytest.raises(InvalidArgument) as unwritable:
        ArchiveWriter(tmp_path / "no folder" / "one").open()
    assert unwritable.value.code == "path_unwritable"
