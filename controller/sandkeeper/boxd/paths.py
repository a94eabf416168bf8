"""Where the two sockets of a container lie on the host, and how a long path still fits a socket address.

Owns the names `r/<birth id>/boot.sock` (seen by the box, read-only) and `c/<birth id>/control.sock` (never
mounted). Never follows a link, and never opens a path that a process of the box could have changed.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from sandkeeper.core.errors import FailedPrecondition
from sandkeeper.core.ids import BirthId

SOCKET_ADDRESS_BYTES = 107
"""Longest path a unix socket address holds on Linux: 108 bytes with the closing zero."""

BOOT_SOCKET = "boot.sock"
CONTROL_SOCKET = "control.sock"


def boot_folder(state_dir: Path, *, birth_id: BirthId) -> Path:
    """Return the folder that is mounted read-only at `/run/sandkeeper` of that container."""
    return state_dir / "r" / birth_id


def control_folder(state_dir: Path, *, birth_id: BirthId) -> Path:
    """Return the host-only folder of that container's control socket."""
    return state_dir / "c" / birth_id


def control_socket(state_dir: Path, *, birth_id: BirthId) -> Path:
    """Return the path hosts connect to: boxd accepts there once the listener is handed over."""
    return control_folder(state_dir, birth_id=birth_id) / CONTROL_SOCKET


class SocketAddress:
    """An address for `bind` or `connect` that means `path`, whatever its length.

    A path that does not fit is reached through its folder: `/proc/self/fd/<n>/<name>` with the folder
    opened O_PATH. The address works in this process until `close`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder_fd: int | None = None

    def text(self) -> str:
        """Return the address; opens the folder at the first call if the path is long.

        Raises:
            OSError: The folder of a long path cannot be opened.
        """
        plain = str(self.path)
        if len(os.fsencode(plain)) <= SOCKET_ADDRESS_BYTES:
            return plain
        if self._folder_fd is None:
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            self._folder_fd = os.open(self.path.parent, flags)
        return f"/proc/self/fd/{self._folder_fd}/{self.path.name}"

    def close(self) -> None:
        """Give the folder up; repeating is safe."""
        if self._folder_fd is not None:
            os.close(self._folder_fd)
            self._folder_fd = None


def make_private_folder(folder: Path) -> None:
    """Make `folder` and its parent, both 0700 and ours, or say why that cannot be.

    Raises:
        FailedPrecondition: Something that is not a folder of this user lies there (`state_folder_unsafe`).
    """
    for place in (folder.parent, folder):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        seen = place.lstat()
        if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.geteuid():
            raise FailedPrecondition(
                f"{place} is not a folder of user {os.geteuid()}",
                code="state_folder_unsafe",
                advice="remove it, or choose another state folder",
            )
        if stat.S_IMODE(seen.st_mode) != 0o700:
            place.chmod(0o700)


def remove_socket(path: Path) -> None:
    """Remove a socket file of ours if it is there; anything else that lies there stays and is an error.

    Raises:
        FailedPrecondition: What lies there is not a socket (`state_folder_unsafe`).
    """
    try:
        seen = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(seen.st_mode):
        raise FailedPrecondition(f"{path} is not a socket", code="state_folder_unsafe")
    path.unlink(missing_ok=True)


def remove_folders(state_dir: Path, *, birth_id: BirthId) -> None:
    """Remove both folders of a container that is gone, with the sockets in them. Repeating is safe.

    Only what this project puts there is removed, so a wrong path costs nothing: files that are no sockets
    and folders inside make it stop.

    Raises:
        FailedPrecondition: A folder holds something that is not ours (`state_folder_unsafe`).
    """
    for folder in (boot_folder(state_dir, birth_id=birth_id), control_folder(state_dir, birth_id=birth_id)):
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            continue
        for name in names:
            remove_socket(folder / name)
        try:
            folder.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise
            if error.errno == errno.ENOTEMPTY:
                raise FailedPrecondition(
                    f"{folder} is not empty after its sockets were removed", code="state_folder_unsafe"
                ) from error
