"""The plain copy of a file through a unix socket: a second process sends, this one receives into a file.

Nothing but read, sendall, recv_into and write with one buffer: what any stream of a file between two processes costs
at least.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

BUFFER_BYTES = 256 * 1024
PATIENCE_S = 60.0
SENDER = f"""
import socket, sys
with socket.socket(socket.AF_UNIX) as peer, open(sys.argv[2], "rb", buffering=0) as source:
    peer.connect(sys.argv[1])
    buffer = bytearray({BUFFER_BYTES})
    while count := source.readinto(buffer):
        peer.sendall(memoryview(buffer)[:count])
"""


def plain_copy(source: Path, target: Path, *, folder: Path) -> None:
    """Copy `source` to `target`. The sender's interpreter is started within: some 15 ms."""
    path = folder / "plain.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.settimeout(PATIENCE_S)
        listener.bind(str(path))
        listener.listen(1)
        sender = subprocess.Popen([sys.executable, "-S", "-c", SENDER, str(path), str(source)])
        try:
            peer, _ = listener.accept()
            peer.settimeout(PATIENCE_S)
            with peer, target.open("wb", buffering=0) as sink:
                _receive(peer, sink.fileno())
        finally:
            path.unlink()
            sender.kill()
            sender.wait()


def _receive(peer: socket.socket, sink: int) -> None:
    buffer = bytearray(BUFFER_BYTES)
    view = memoryview(buffer)
    while count := peer.recv_into(buffer):
        os.write(sink, view[:count])
