"""Fixtures around `raw_box`: a compiled boxd, an image, and boxes that are removed afterwards."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.raw_box import SOURCE, Box, go_command, go_environment


@pytest.fixture(scope="session")
def boxd_binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("boxd") / "boxd"
    command = [
        go_command(),
        "build",
        "-trimpath",
        "-ldflags",
        "-s -w -X main.build=test",
        "-o",
        str(target),
        ".",
    ]
    subprocess.run(command, cwd=SOURCE, env=go_environment(), check=True)
    return target


@pytest.fixture(scope="session")
def image() -> str:
    named = os.environ.get("SANDKEEPER_TEST_IMAGE", "")
    if named:
        return named
    for repository in ("sandkeeper/slim", "sandkeeper/base"):
        listed = subprocess.run(
            ["docker", "images", "-q", repository], check=True, capture_output=True, text=True
        )
        if listed.stdout:
            return listed.stdout.split()[0]
    pytest.skip(
        "no image: build the shipped ones, or let SANDKEEPER_TEST_IMAGE name one with sh, bash and coreutils"
    )


@pytest.fixture(scope="module")
def box(boxd_binary: Path, image: str) -> Iterator[Box]:
    made = Box(boxd_binary, image)
    yield made
    made.close()


@pytest.fixture
def make_box(boxd_binary: Path, image: str) -> Iterator[Any]:
    made: list[Box] = []

    def make(**options: Any) -> Box:
        made.append(Box(boxd_binary, image, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
