"""The high-water mark: the last seq that was acknowledged, in a file of its own.

SQLite, opening a -wal file whose tail is missing, silently goes back to the last whole transaction: right for
a crash in the middle of a write, wrong when acknowledged transactions were cut off (a restored or truncated
file, a disk that lied about fsync). So the committer writes the seq here after each commit, without a sync.
On an honest disk the mark can lag behind the database, never lead it; a mark that leads means loss.
"""

from __future__ import annotations

import os
from pathlib import Path

from sandkeeper.store.errors import damaged

_WIDTH = 20


class HighWaterMark:
    """The mark beside one database file. Used by one thread."""

    def __init__(self, database: Path) -> None:
        self.path = database.with_name(f"{database.name}.mark")
        self._fd: int | None = None

    def read(self) -> int:
        """Return the last acknowledged seq; 0 when there is no mark, or one the disk never got.

        Raises:
            DataLoss: `journal_damaged` when the mark is unreadable.
        """
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return 0
        text = text.strip(b"\0\n")
        if not text:
            return 0
        if not text.isdigit():
            raise damaged(self.path, problem="the high-water mark is not a number")
        return int(text)

    def open(self) -> None:
        """Open the mark for `write`."""
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def write(self, seq: int) -> None:
        """Replace the mark in place; one small write that no kill can tear."""
        if self._fd is not None:
            os.pwrite(self._fd, b"%0*d\n" % (_WIDTH, seq), 0)

    def close(self) -> None:
        """Close the file; safe to repeat."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)
