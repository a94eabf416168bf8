"""What every engine promises about whole images and files of containers: one suite for the fake and the real one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from sandkeeper.core.errors import DataLoss, NotFound
from sandkeeper.core.ids import BirthId
from tests.support.engine_rig import EngineRig, FakeRig

NOBODY = BirthId("sk-nobody-is-called-so")
NO_IMAGE = f"sha256:{'1' * 64}"


@pytest.fixture(params=["fake", pytest.param("docker", marks=pytest.mark.docker)])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[EngineRig]:
    made: EngineRig = FakeRig() if request.param == "fake" else request.getfixturevalue("make_docker_rig")()
    yield made
    await made.close()


async def written(rig: EngineRig, *, frozen: bool = False) -> BirthId:
    settings = rig.settings()
    await rig.engine.create(settings)
    await rig.engine.start(settings.birth_id)
    rig.write(settings.birth_id, "/new.txt", b"new\n")
    if frozen:
        await rig.engine.freeze(settings.birth_id)
    return settings.birth_id


async def files_of(rig: EngineRig, image_id: str, path: str) -> bytes | None:
    """Return a file of an image, through a container of it that never runs."""
    settings = rig.settings()
    await rig.engine.create(replace(settings, image_id=image_id))
    body = await rig.engine.read_file(settings.birth_id, path, max_bytes=100)
    await rig.engine.remove(settings.birth_id)
    return body


@pytest.mark.parametrize("frozen", [True, False])
async def test_changes_and_files_are_seen_from_outside(rig: EngineRig, frozen: bool) -> None:
    birth_id = await written(rig, frozen=frozen)
    changed = await rig.engine.changed_paths(birth_id)
    assert "/new.txt" in changed
    assert "/base.txt" not in changed
    assert await rig.engine.read_file(birth_id, "/new.txt", max_bytes=2) == b"ne"
    assert await rig.engine.read_file(birth_id, "/base.txt", max_bytes=100) == b"from the image\n"
    assert await rig.engine.read_file(birth_id, "/none", max_bytes=100) is None


async def test_a_flattened_image_has_the_same_files_and_no_parent(rig: EngineRig) -> None:
    birth_id = await written(rig)
    image_id = await rig.engine.commit(birth_id, tag=f"{rig.repository}:deep")
    tag = f"{rig.repository}:flat-c1"
    flat_id = await rig.engine.flatten(image_id, name="flat-c1", tag=tag)
    assert flat_id != image_id
    assert await files_of(rig, flat_id, "/new.txt") == b"new\n"
    assert await files_of(rig, flat_id, "/base.txt") == b"from the image\n"
    assert not rig.has_container("flat-c1")
    await rig.engine.remove(birth_id)
    await rig.engine.untag_or_remove_image(f"{rig.repository}:deep")
    assert await rig.engine.image(image_id) is None
    shown = await rig.engine.image(tag)
    assert shown is not None
    assert shown.image_id == flat_id


async def test_an_image_survives_the_engine_in_an_archive(rig: EngineRig) -> None:
    birth_id = await written(rig)
    image_id = await rig.engine.commit(birth_id, tag=f"{rig.repository}:saved")
    archive = bytearray()
    await rig.engine.save_image(image_id, sink=archive.extend)
    await rig.engine.remove(birth_id)
    await rig.engine.untag_or_remove_image(f"{rig.repository}:saved")
    assert await rig.engine.image(image_id) is None
    await rig.engine.load_image([bytes(archive[:1000]), bytes(archive[1000:])])
    loaded = await rig.engine.image(image_id)
    assert loaded is not None
    assert loaded.tags == ()
    await rig.engine.tag(image_id, f"{rig.repository}:again")
    assert await files_of(rig, image_id, "/new.txt") == b"new\n"


async def test_what_is_no_archive_is_refused(rig: EngineRig) -> None:
    with pytest.raises(DataLoss) as caught:
        await rig.engine.load_image([b"no archive at all" * 100])
    assert caught.value.code == "archive_refused"


async def test_what_is_not_there(rig: EngineRig) -> None:
    with pytest.raises(NotFound):
        await rig.engine.changed_paths(NOBODY)
    with pytest.raises(DataLoss) as flattened:
        await rig.engine.flatten(NO_IMAGE, name="flat-c2", tag=f"{rig.repository}:flat-c2")
    with pytest.raises(DataLoss) as saved:
        await rig.engine.save_image(NO_IMAGE, sink=lambda chunk: None)
    assert flattened.value.code == saved.value.code == "image_missing"
