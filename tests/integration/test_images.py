"""The shipped images at a real engine: built once, found again, checked, and what is refused."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from sandkeeper.containers.boxd_binary import machine_arch
from sandkeeper.containers.endpoint import connect, find_endpoint
from sandkeeper.containers.host import RealHost
from sandkeeper.containers.image_facts import admit_image, inspect_image
from sandkeeper.containers.images import ensure_images, shipped_tags
from sandkeeper.containers.progress import Progress
from sandkeeper.containers.recipes import DEFAULT_IMAGES, content_id
from sandkeeper.containers.root_image import ensure_root_image
from sandkeeper.core.errors import FailedPrecondition, Internal, NotFound, Unavailable

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    engine = connect(find_endpoint({}), timeout_s=900)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def images(client: docker.DockerClient) -> dict[str, str]:
    return ensure_images(client, host=RealHost())


def write_recipe(folder: Path, *, dockerfile: str, smoke: str) -> Path:
    (folder / "slim").mkdir()
    (folder / "slim" / "Dockerfile").write_text(f"ARG PARENT\nFROM ${{PARENT}}\n{dockerfile}\n")
    (folder / "slim" / "smoke.sh").write_text(smoke)
    return folder


def images_with(client: docker.DockerClient, *, setting: str) -> list[str]:
    """Return the images, untagged ones included, that have `setting` in their environment."""
    ids = [image["Id"] for image in client.api.images(all=True)]
    found = []
    for image_id in ids:
        try:
            environment = client.api.inspect_image(image_id)["Config"].get("Env") or []
        except docker.errors.ImageNotFound:
            continue  # somebody else's, gone since it was listed
        if setting in environment:
            found.append(image_id)
    return found


def tag_of(client: docker.DockerClient, *, folder: Path) -> str:
    root = ensure_root_image(client, host=RealHost(), pinned=None, on_progress=lambda _: None)
    return f"sandkeeper/slim:{content_id(folder / 'slim', parent_id=root.image_id)}"


def test_a_second_call_builds_nothing(client: docker.DockerClient, images: dict[str, str]) -> None:
    news: list[Progress] = []
    assert ensure_images(client, host=RealHost(), on_progress=news.append) == images
    assert news == []
    assert set(images) == set(DEFAULT_IMAGES)


@pytest.mark.parametrize("name", DEFAULT_IMAGES)
def test_shipped_images_keep_the_contract(
    client: docker.DockerClient, images: dict[str, str], name: str
) -> None:
    facts = admit_image(client, images[name], arch=machine_arch())
    assert facts.digest == images[name]
    assert (facts.user, facts.workdir) == ("user", "/home/user")
    assert facts.entrypoint == ()
    assert set(facts.env) == {"PATH", "LANG"}
    assert not client.api.inspect_image(images[name])["Config"].get("Labels")
    assert shipped_tags(client)[name]


def test_an_unknown_image_is_not_found(client: docker.DockerClient) -> None:
    with pytest.raises(NotFound) as refusal:
        inspect_image(client, "sandkeeper/none:none")
    assert refusal.value.code == "image_unknown"


def test_a_volume_is_refused(client: docker.DockerClient) -> None:
    empty = io.BytesIO()
    with tarfile.open(fileobj=empty, mode="w"):
        pass
    reference = "sandkeeper/test-volume:once"
    client.api.import_image_from_data(
        empty.getvalue(), repository="sandkeeper/test-volume", tag="once", changes=["VOLUME /data"]
    )
    try:
        with pytest.raises(FailedPrecondition) as refusal:
            admit_image(client, reference, arch=machine_arch())
        assert refusal.value.code == "image_declares_volume"
        assert inspect_image(client, reference).volumes == ("/data",)
    finally:
        client.api.remove_image(reference)


@pytest.mark.usefixtures("images")
def test_an_image_that_fails_its_check_gets_no_tag(client: docker.DockerClient, tmp_path: Path) -> None:
    folder = write_recipe(tmp_path, dockerfile="ENV BROKEN=1", smoke='echo "BROKEN=$BROKEN is wrong"; exit 7')
    with pytest.raises(Internal) as refusal:
        ensure_images(client, host=RealHost(), names=["slim"], folder=folder)
    assert refusal.value.code == "image_smoke_failed"
    assert "fails its smoke check with 7: BROKEN=1 is wrong" in refusal.value.message
    assert images_with(client, setting="BROKEN=1") == []
    with pytest.raises(NotFound):
        inspect_image(client, tag_of(client, folder=folder))


@pytest.mark.usefixtures("images")
def test_a_build_that_fails_says_what_the_step_said(client: docker.DockerClient, tmp_path: Path) -> None:
    folder = write_recipe(tmp_path, dockerfile="RUN echo no such luck && exit 9", smoke="true")
    before = {container["Id"] for container in client.api.containers(all=True)}
    with pytest.raises(Unavailable) as refusal:
        ensure_images(client, host=RealHost(), names=["slim"], folder=folder)
    assert refusal.value.code == "image_build_failed"
    assert "no such luck" in refusal.value.message
    made = [container for container in client.api.containers(all=True) if container["Id"] not in before]
    assert [container for container in made if "no such luck" in container["Command"]] == []


@pytest.mark.usefixtures("images")
def test_proxies_of_the_build_stay_out_of_the_image(
    client: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://me:hidden-word@127.0.0.1:9")
    folder = write_recipe(tmp_path, dockerfile='RUN test -n "$http_proxy"', smoke='test -z "${http_proxy:-}"')
    ids = ensure_images(client, host=RealHost(), names=["slim"], folder=folder)
    try:
        told: list[Any] = [client.api.inspect_image(ids["slim"]), client.api.history(ids["slim"])]
        assert "hidden-word" not in str(told)
    finally:
        client.api.remove_image(tag_of(client, folder=folder))
