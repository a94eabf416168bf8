"""What makes an image unusable as the base of a sandbox."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandkeeper.containers.image_facts import ImageFacts, check_usable
from sandkeeper.core.errors import FailedPrecondition

GOOD = ImageFacts(
    digest="sha256:1",
    env={},
    workdir="/",
    user="",
    entrypoint=(),
    cmd=(),
    volumes=(),
    size_bytes=1,
    os="linux",
    arch="amd64",
)


def test_a_plain_image_is_usable() -> None:
    check_usable(GOOD, reference="plain", arch="amd64")


def test_a_volume_is_refused_and_named() -> None:
    with pytest.raises(FailedPrecondition) as refusal:
        check_usable(replace(GOOD, volumes=("/data", "/logs")), reference="db", arch="amd64")
    assert refusal.value.code == "image_declares_volume"
    assert "db declares VOLUME /data, /logs" in refusal.value.message
    assert refusal.value.details == {"image": "sha256:1", "volumes": ["/data", "/logs"]}


@pytest.mark.parametrize("facts", [replace(GOOD, arch="arm64"), replace(GOOD, os="windows")])
def test_another_platform_is_refused(facts: ImageFacts) -> None:
    with pytest.raises(FailedPrecondition) as refusal:
        check_usable(facts, reference="other", arch="amd64")
    assert refusal.value.code == "image_wrong_platform"
