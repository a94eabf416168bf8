"""Knows what this test session has made, so that its last test can see that nothing of it is left.

Everything temporary is made in one folder of the session's own, and each installation is noted by its id as it
appears: what others do on this machine at the same time is never judged. The functions are hooks for the conftest.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from _pytest.runner import runtestprotocol
from docker.errors import DockerException

from sandkeeper.containers.endpoint import find_endpoint

LAST_MODULE = "test_zz_nothing_left"
_INSTALLATIONS: set[str] = set()
_FOLDERS: list[Path] = []
_IDENTITY = '"installation_id":"'


def pytest_configure(config: pytest.Config) -> None:
    """Give the session a temporary folder; pytest's own stays where it is."""
    before = tempfile.gettempdir()
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", before)
    folder = Path(tempfile.mkdtemp(prefix="skt-", dir=before))
    _FOLDERS.append(folder)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)

    def end() -> None:
        os.environ["TMPDIR"] = tempfile.tempdir = before
        shutil.rmtree(folder, ignore_errors=True)

    config.add_cleanup(end)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The last look comes last, whatever was asked for in which order."""
    items.sort(key=_is_last)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Before the last look everything ends, fixtures of the whole session too."""
    if nextitem is None or not _is_last(nextitem) or _is_last(item):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    runtestprotocol(item, nextitem=None)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Note the installations there are, before fixtures remove their folders."""
    own = getattr(item, "funcargs", {}).get("tmp_path")
    for folder in (*_FOLDERS, *([own] if own is not None else [])):
        for pattern in ("machine.json", "*/machine.json", "*/*/machine.json"):
            for path in folder.glob(pattern):
                _INSTALLATIONS.update(_installation_of(path))


def left_behind() -> dict[str, list[str]]:
    """Return what there still is of this session, by kind; kinds of which there is nothing are left out."""
    (folder,) = _FOLDERS
    found = {
        "folders": sorted(path.name for path in folder.glob("sk-*")),
        "mounts": [
            line for line in Path("/proc/self/mounts").read_text().splitlines() if str(folder) in line
        ],
        "processes": sorted(_processes_of(folder)),
    } | _at_the_engine(folder)
    return {kind: things for kind, things in found.items() if things}


def installations_seen() -> frozenset[str]:
    """Return the ids of all installations noted so far."""
    return frozenset(_INSTALLATIONS)


def _is_last(item: pytest.Item) -> bool:
    return LAST_MODULE in item.nodeid


def _installation_of(path: Path) -> Iterator[str]:
    try:
        text = path.read_text()
    except OSError:
        return
    if _IDENTITY in text:
        yield text.split(_IDENTITY, 1)[1].partition('"')[0]


def _processes_of(folder: Path) -> Iterator[str]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words:
            yield f"{entry.name}: {words[:200]}"


def _at_the_engine(folder: Path) -> dict[str, list[str]]:
    try:
        engine = docker.APIClient(base_url=find_endpoint(os.environ).url, version="auto")
    except DockerException:
        return {}
    try:
        containers = engine.containers(all=True)
        images = [tag for image in engine.images() for tag in image.get("RepoTags") or []]
    finally:
        engine.close()
    return {
        "containers": [
            f"{container['Names'][0]} {container['Labels'].get('sandkeeper', '')}"
            for container in containers
            if container["Labels"].get("sandkeeper") in _INSTALLATIONS
            or any(str(folder) in mount.get("Source", "") for mount in container["Mounts"])
        ],
        "images": [
            tag for tag in images if tag.partition(":")[0].removeprefix("sandkeeper-") in _INSTALLATIONS
        ],
    }
