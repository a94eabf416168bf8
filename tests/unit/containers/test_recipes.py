"""The content address of an image, its build context, and the order of building."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from sandkeeper.containers.images import proxy_arguments
from sandkeeper.containers.recipes import (
    RECIPES,
    SMOKE_CHECK,
    build_context,
    content_id,
    images_folder,
    with_parents,
)
from sandkeeper.containers.root_image import check_pin
from sandkeeper.core.errors import FailedPrecondition, InvalidArgument


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    recipe = tmp_path / "recipe"
    recipe.mkdir()
    (recipe / "Dockerfile").write_text("FROM scratch\n")
    (recipe / "smoke.sh").write_text("true\n")
    return recipe


def test_parents_come_first_and_once() -> None:
    assert [recipe.name for recipe in with_parents(["build", "slim"])] == ["slim", "base", "build"]
    assert [recipe.name for recipe in with_parents(["slim"])] == ["slim"]


def test_an_unknown_image_is_refused() -> None:
    with pytest.raises(InvalidArgument) as refusal:
        with_parents(["base", "huge"])
    assert refusal.value.code == "image_unknown"
    assert "slim, base, build" in refusal.value.advice


def test_content_id_follows_content_name_and_parent(folder: Path) -> None:
    first = content_id(folder, parent_id="sha256:1")
    assert content_id(folder, parent_id="sha256:1") == first
    assert content_id(folder, parent_id="sha256:2") != first
    (folder / "smoke.sh").write_text("false\n")
    changed = content_id(folder, parent_id="sha256:1")
    assert changed != first
    (folder / "smoke.sh").rename(folder / "smoke2.sh")
    assert content_id(folder, parent_id="sha256:1") != changed


def test_build_context_depends_on_content_only(folder: Path) -> None:
    first = build_context(folder).read()
    (folder / "Dockerfile").chmod(0o600)
    (folder / "Dockerfile").touch()
    assert build_context(folder).read() == first
    with tarfile.open(fileobj=build_context(folder)) as archive:
        assert archive.getnames() == ["Dockerfile", "smoke.sh"]
        assert {member.mtime for member in archive} == {0}


def test_every_recipe_has_its_folder() -> None:
    for name in RECIPES:
        folder = images_folder() / name
        assert (folder / "Dockerfile").is_file()
        assert (folder / SMOKE_CHECK).is_file()


def test_recipes_declare_no_volume_and_no_label() -> None:
    for name in RECIPES:
        words = {
            line.split()[0]
            for line in (images_folder() / name / "Dockerfile").read_text().splitlines()
            if line
        }
        assert not words & {"VOLUME", "LABEL", "ADD", "ENTRYPOINT"}


def test_a_wheel_is_preferred_to_a_checkout(tmp_path: Path) -> None:
    for place in ("packaged", "checkout"):
        (tmp_path / place / "slim").mkdir(parents=True)
        (tmp_path / place / "slim" / "Dockerfile").touch()
    packaged, checkout = tmp_path / "packaged", tmp_path / "checkout"
    assert images_folder(packaged=packaged, checkout=checkout) == packaged
    assert images_folder(packaged=tmp_path / "none", checkout=checkout) == checkout
    with pytest.raises(FailedPrecondition) as refusal:
        images_folder(packaged=tmp_path / "none", checkout=tmp_path / "none")
    assert refusal.value.code == "image_recipes_missing"


def test_proxies_are_build_arguments_only_when_set() -> None:
    environment = {"http_proxy": "http://p:1", "HTTPS_PROXY": "", "HOME": "/root"}
    assert proxy_arguments(environment) == {"http_proxy": "http://p:1"}


DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize("name", ["debian", "mirror.example:5000/library/debian"])
def test_a_pinned_root_image_is_accepted(name: str) -> None:
    check_pin(f"{name}@{DIGEST}")


@pytest.mark.parametrize(
    "reference",
    [
        "debian",
        "debian:bookworm",
        "debian@sha256:abc",
        "debian@sha256:" + "x" * 64,
        f"debian:bookworm@{DIGEST}",
        f"@{DIGEST}",
        "",
    ],
)
def test_a_root_image_without_a_digest_is_refused(reference: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        check_pin(reference)
    assert refusal.value.code == "root_image_not_pinned"
