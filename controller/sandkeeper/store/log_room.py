"""Room for a file's write-ahead log, written before it is needed.

Owns nothing of what the log says. A sync of a file that has grown waits for the file system's own journal, and so for
what everybody else on the disk is writing (measured beside running containers: p99 8-11 ms a commit); a sync of bytes
written over older ones does not (1 ms). SQLite writes its log over the old one after each checkpoint, so only the way
up to its full size is slow; that is what is made here.
"""

from __future__ import annotations

import os
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

PIECE_BYTES = 256 * 1024
SPARE_FACTOR = 64
"""The room is made only where the disk has this many times as much left."""


def make_log_room(database: Path, *, size_bytes: int) -> bool:
    """Bring the log of an open database up to `size_bytes` with zeros behind its end; blocks until they are synced.

    Safe beside the writer in this process, and repeatable: zeros are only ever appended, SQLite writes its frames over
    them, and a reader of the log stops at the first frame whose salts are not the header's (SQLite file format, 4.1-4.5
    "The Write-Ahead Log").

    Returns:
        False when it was left as it is: the disk is nearly full, or would not take it. The log then grows as it must.
    """
    path = database.with_name(f"{database.name}-wal")
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            disk = os.fstatvfs(fd)
            if disk.f_bavail * disk.f_frsize < SPARE_FACTOR * size_bytes:
                return False
            while (missing := size_bytes - os.fstat(fd).st_size) > 0:
                os.write(fd, bytes(min(missing, PIECE_BYTES)))
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        log.warning("log_room_not_made", file=str(path), error=str(error))
        return False
    return True
