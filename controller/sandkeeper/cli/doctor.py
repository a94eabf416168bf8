"""Says what this machine lacks for running sandboxes, and how to get it.

Owns the list of checks and their advice. A check looks and never changes anything; how the list is shown is the
command's business.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandkeeper.core.errors import SandkeeperError

MIN_PYTHON = (3, 11)
RAY_IMPORT_TIMEOUT_S = 60.0
MIN_DISK_BYTES = 5 * 1024**3
MIN_INOTIFY_WATCHES = 8192
MIN_PIDS = 4096
# A socket's name has 107 bytes at most. We open ours through the folder's descriptor; other tools (curl, socat) use
# the full path, which should leave room for `owners/<owner id>/control.sock`.
MAX_STATE_DIR_BYTES = 60

BASE_MODULES = ("aiohttp", "httptools", "pydantic", "rich", "structlog", "tenacity", "typer")
SERVER_MODULES = ("aiosqlite", "docker", "ray", "sqlalchemy")


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    Attributes:
        name: Constant name of the check.
        ok: True when nothing is missing.
        detail: What was found.
        advice: How to get what is missing; empty when nothing is.
        is_required: False for what only makes things slower or poorer.
    """

    name: str
    ok: bool
    detail: str
    advice: str = ""
    is_required: bool = True


def run_checks(state_dir: Path) -> list[Finding]:
    """Run all checks, in the order in which things are to be mended; never raises for a failed check.

    Args:
        state_dir: The state folder; it need not exist.
    """
    findings = [
        check_python(sys.version_info[:3]),
        check_modules("base", names=BASE_MODULES, is_present=_has_module),
        check_modules("server", names=SERVER_MODULES, is_present=_has_module),
        check_ray(),
        check_boxd(),
        check_state_dir(state_dir),
        check_disk(nearest_existing(state_dir), free_bytes=free_bytes(state_dir)),
        check_limit(
            "inotify watches",
            value=_read_number(Path("/proc/sys/fs/inotify/max_user_watches")),
            least=MIN_INOTIFY_WATCHES,
            key="fs.inotify.max_user_watches",
        ),
        check_limit(
            "process ids",
            value=_read_number(Path("/proc/sys/kernel/pid_max")),
            least=MIN_PIDS,
            key="kernel.pid_max",
        ),
    ]
    if not _has_module("docker"):
        advice = "pip install 'sandkeeper[server]'"
        return [
            *findings,
            Finding(name="engine", ok=False, detail="no docker library to ask it", advice=advice),
        ]
    from sandkeeper.cli.doctor_engine import engine_checks

    return findings + engine_checks()


def check_python(version: tuple[int, ...]) -> Finding:
    """Check the interpreter's version."""
    text = ".".join(str(part) for part in version)
    ok = version[:2] >= MIN_PYTHON
    return Finding(
        name="python",
        ok=ok,
        detail=text,
        advice="" if ok else f"install Python {MIN_PYTHON[0]}.{MIN_PYTHON[1]} or newer",
    )


def check_modules(extra: str, *, names: tuple[str, ...], is_present: Callable[[str], bool]) -> Finding:
    """Check that the modules of an extra (or of the base install) can be imported."""
    missing = [name for name in names if not is_present(name)]
    package = "sandkeeper" if extra == "base" else f"'sandkeeper[{extra}]'"
    return Finding(
        name=f"{extra} packages",
        ok=not missing,
        detail=f"missing: {', '.join(missing)}" if missing else "all installed",
        advice=f"pip install {package}" if missing else "",
    )


def check_ray() -> Finding:
    """Check that Ray can be imported, in a process of its own: a broken Ray may end the one that tries."""
    try:
        tried = subprocess.run(
            [sys.executable, "-c", "import ray; print(ray.__version__)"],
            capture_output=True,
            text=True,
            timeout=RAY_IMPORT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        detail = f"not imported within {RAY_IMPORT_TIMEOUT_S:.0f} s"
        return Finding(name="ray", ok=False, detail=detail, advice="look for a full or very slow disk")
    if tried.returncode != 0:
        last = (tried.stderr.strip().splitlines() or ["no message"])[-1]
        return Finding(name="ray", ok=False, detail=last, advice="pip install 'sandkeeper[server]'")
    return Finding(name="ray", ok=True, detail=tried.stdout.strip())


def check_boxd() -> Finding:
    """Check that boxd was compiled for this machine."""
    from sandkeeper.containers.boxd_binary import locate, machine_arch

    try:
        found = locate(machine_arch())
    except SandkeeperError as error:
        return Finding(name="boxd", ok=False, detail=error.message, advice=error.advice)
    return Finding(name="boxd", ok=True, detail=f"{found.path} ({found.sha256[:12]})")


def check_state_dir(state_dir: Path) -> Finding:
    """Check that the state folder can be written and is short enough for socket names."""
    length_bytes = len(os.fsencode(state_dir))
    if length_bytes > MAX_STATE_DIR_BYTES:
        return Finding(
            name="state folder",
            ok=False,
            detail=f"{state_dir} has {length_bytes} bytes, at most {MAX_STATE_DIR_BYTES} leave room for socket names",
            advice="set SANDKEEPER_STATE_DIR to a shorter path",
            is_required=False,
        )
    nearest = nearest_existing(state_dir)
    ok = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    return Finding(
        name="state folder",
        ok=ok,
        detail=f"{state_dir} ({'exists' if nearest == state_dir else 'not made yet'})",
        advice=""
        if ok
        else f"make {nearest} writable for this user, or set SANDKEEPER_STATE_DIR to a folder that is",
    )


def check_disk(folder: Path, *, free_bytes: int, name: str = "disk") -> Finding:
    """Check the free space on the file system of `folder`."""
    ok = free_bytes >= MIN_DISK_BYTES
    return Finding(
        name=name,
        ok=ok,
        detail=f"{free_bytes / 1024**3:.1f} GiB free at {folder}",
        advice=""
        if ok
        else f"free some space: images and snapshots need at least {MIN_DISK_BYTES // 1024**3} GiB",
    )


def check_limit(name: str, *, value: int | None, least: int, key: str) -> Finding:
    """Check a kernel limit; None means that this kernel does not show it."""
    if value is None:
        return Finding(name=name, ok=True, detail="not shown by this kernel", is_required=False)
    ok = value >= least
    return Finding(
        name=name,
        ok=ok,
        detail=str(value),
        advice="" if ok else f"raise it: `sudo sysctl -w {key}={least}`",
        is_required=False,
    )


def _has_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def nearest_existing(folder: Path) -> Path:
    """Return `folder`, or the closest folder above it that exists."""
    absolute = folder.absolute()
    return next(path for path in (absolute, *absolute.parents) if path.exists())


def free_bytes(folder: Path) -> int:
    """Return the free space of the file system that holds `folder` or would hold it."""
    return shutil.disk_usage(nearest_existing(folder)).free


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text().split()[0])
    except (FileNotFoundError, ValueError, IndexError):
        return None
