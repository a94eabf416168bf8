"""Finding boxd in the package and laying it out for mounting."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

import pytest

from sandkeeper.containers.boxd_binary import install, locate, machine_arch
from sandkeeper.core.errors import FailedPrecondition, InvalidArgument

CONTENT = b"\x7fELF stand-in"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def packaged(tmp_path: Path) -> Path:
    folder = tmp_path / "_boxd"
    (folder / "linux-amd64").mkdir(parents=True)
    (folder / "linux-amd64" / "boxd").write_bytes(CONTENT)
    return folder


def test_install_lays_it_out_by_its_digest(packaged: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    binary = install(state, arch="amd64", folder=packaged)
    assert binary.sha256 == SHA256
    assert binary.path == state / "boxd" / SHA256 / "boxd"
    assert binary.path.read_bytes() == CONTENT
    assert stat.S_IMODE(binary.path.stat().st_mode) == 0o755
    assert stat.S_IMODE(binary.path.parent.stat().st_mode) == 0o755
    assert [path.name for path in binary.path.parent.iterdir()] == ["boxd"], "nothing half-made stays"


def test_a_repeat_leaves_the_file_alone(packaged: Path, tmp_path: Path) -> None:
    first = install(tmp_path, arch="amd64", folder=packaged)
    inode = first.path.stat().st_ino
    assert install(tmp_path, arch="amd64", folder=packaged) == first
    assert first.path.stat().st_ino == inode


def test_a_damaged_copy_is_replaced_as_a_whole(packaged: Path, tmp_path: Path) -> None:
    first = install(tmp_path, arch="amd64", folder=packaged)
    first.path.write_bytes(CONTENT[:3])
    inode = first.path.stat().st_ino
    again = install(tmp_path, arch="amd64", folder=packaged)
    assert again.path.read_bytes() == CONTENT
    assert again.path.stat().st_ino != inode


def test_a_copy_that_cannot_run_is_replaced(packaged: Path, tmp_path: Path) -> None:
    first = install(tmp_path, arch="amd64", folder=packaged)
    first.path.chmod(0o644)
    assert stat.S_IMODE(install(tmp_path, arch="amd64", folder=packaged).path.stat().st_mode) == 0o755


def test_a_package_without_boxd_says_how_to_get_it(packaged: Path) -> None:
    with pytest.raises(FailedPrecondition) as refusal:
        locate("arm64", folder=packaged)
    assert refusal.value.code == "boxd_missing"
    assert "make setup" in refusal.value.advice


@pytest.mark.parametrize(("machine", "arch"), [("x86_64", "amd64"), ("aarch64", "arm64"), ("ARM64", "arm64")])
def test_architecture_names(machine: str, arch: str) -> None:
    assert machine_arch(machine) == arch


def test_another_architecture_is_refused() -> None:
    with pytest.raises(InvalidArgument) as refusal:
        machine_arch("riscv64")
    assert refusal.value.code == "arch_unsupported"
