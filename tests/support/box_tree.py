"""What a box says its files are, by boxd's manifest, in a form two boxes can be compared by."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from typing import Any

from tests.support.yard import Yard

Tree = dict[str, dict[str, Any]]


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("box", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


async def tree_of(yard: Yard, sandbox_id: str, path: str) -> Tree:
    """Return every entry below `path` by its name; hard links are told by who shares an inode, not by its number."""
    lease = await yard.own("lease", sandbox_id=sandbox_id)
    text = await asyncio.to_thread(_get, lease["control_path"], f"/sandkeeper/v1/manifest?path={path}&hash=1")
    entries = [json.loads(line) for line in text.splitlines()]
    groups: dict[int, list[str]] = {}
    for entry in entries:
        groups.setdefault(entry["inode"], []).append(entry["path"])
    return {entry["path"]: {**entry, "inode": sorted(groups[entry["inode"]])} for entry in entries}


def differences(before: Tree, after: Tree) -> dict[str, tuple[Any, Any]]:
    """Return what two trees do not agree on, so that a failure can be read."""
    return {
        path: (before.get(path), after.get(path))
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    }


def _get(control_path: str, target: str) -> str:
    connection = _UnixConnection(control_path)
    try:
        connection.request("GET", target)
        answer = connection.getresponse()
        body = answer.read().decode()
        assert answer.status == 200, body
        return body
    finally:
        connection.close()
