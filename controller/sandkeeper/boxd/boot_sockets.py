"""The sockets of the boot hand-over: bound, probed, and what is said on them.

Owns the system calls. Never decides who is given a listener: that is `boot`.
"""

from __future__ import annotations

import array
import asyncio
import json
import os
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandkeeper.boxd.paths import SocketAddress, remove_socket

GREETING_LIMIT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Greeting:
    """What boxd said when it came: the version of the hand-over and its build."""

    protocol: int
    build: str


def is_listening(path: Path) -> bool:
    """Return whether some process accepts connections at `path`: boxd, once it has its listener.

    A full backlog counts: only a live listener has one.
    """
    address = SocketAddress(path)
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    with probe:
        try:
            probe.connect(address.text())
        except BlockingIOError:
            return True
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        finally:
            address.close()
    return True


def bind_listener(path: Path, *, backlog: int) -> socket.socket:
    """Return a listener at `path`, in the place of a socket that lies there; only its user may connect."""
    remove_socket(path)
    address = SocketAddress(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        listener.bind(address.text())
        os.chmod(path, stat.S_IRUSR | stat.S_IWUSR)
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    finally:
        address.close()
    return listener


def peer_pid(peer: socket.socket) -> int:
    """Return who connected, as this host sees it; 0 for a process it cannot see."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, _, _ = struct.unpack("3i", credentials)
    return int(pid)


async def read_greeting(peer: socket.socket) -> Greeting:
    """Return what the peer says first.

    Raises:
        ValueError: It is no greeting.
    """
    loop = asyncio.get_running_loop()
    line = bytearray()
    while b"\n" not in line:
        data = await loop.sock_recv(peer, GREETING_LIMIT_BYTES)
        if not data:
            raise ValueError("ended before its line")
        line += data
        if len(line) > GREETING_LIMIT_BYTES:
            raise ValueError("too long a line")
    document: Any = json.loads(line[: line.index(b"\n")])
    if not isinstance(document, dict) or not isinstance(document.get("protocol"), int):
        raise ValueError("no greeting")
    return Greeting(protocol=document["protocol"], build=str(document.get("build", ""))[:100])


def send_answer(peer: socket.socket, document: dict[str, Any], *, listener: socket.socket | None) -> None:
    """Send one JSON line, with `listener` by SCM_RIGHTS if one is given."""
    line = json.dumps(document, separators=(",", ":")).encode() + b"\n"
    rights = (
        []
        if listener is None
        else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener.fileno()]))]
    )
    peer.sendmsg([line], rights)
