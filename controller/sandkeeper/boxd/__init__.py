"""boxd seen from the host: the boot hand-over and the typed client. Exports only.

A name is imported when it is first asked for: a client that only runs commands needs none of the models.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sandkeeper.boxd.answers import ArchiveLoaded, FileEntry, Hello, Quiesced
    from sandkeeper.boxd.boot import BootListener
    from sandkeeper.boxd.boot_sockets import Greeting, is_listening
    from sandkeeper.boxd.events import (
        RunEnded,
        RunEvent,
        RunListing,
        RunLost,
        RunOutcome,
        RunOutput,
        RunStarted,
    )
    from sandkeeper.boxd.link import BoxControl, BoxdLink
    from sandkeeper.boxd.paths import boot_folder, control_folder, control_socket, remove_folders
    from sandkeeper.boxd.transport import Deadlines

__all__ = [
    "ArchiveLoaded",
    "BootListener",
    "BoxControl",
    "BoxdLink",
    "Deadlines",
    "FileEntry",
    "Greeting",
    "Hello",
    "Quiesced",
    "RunEnded",
    "RunEvent",
    "RunListing",
    "RunLost",
    "RunOutcome",
    "RunOutput",
    "RunStarted",
    "boot_folder",
    "control_folder",
    "control_socket",
    "is_listening",
    "remove_folders",
]

_HOMES = {
    "ArchiveLoaded": "sandkeeper.boxd.answers",
    "BootListener": "sandkeeper.boxd.boot",
    "BoxControl": "sandkeeper.boxd.link",
    "BoxdLink": "sandkeeper.boxd.link",
    "Deadlines": "sandkeeper.boxd.transport",
    "FileEntry": "sandkeeper.boxd.answers",
    "Greeting": "sandkeeper.boxd.boot_sockets",
    "Hello": "sandkeeper.boxd.answers",
    "Quiesced": "sandkeeper.boxd.answers",
    "RunEnded": "sandkeeper.boxd.events",
    "RunEvent": "sandkeeper.boxd.events",
    "RunListing": "sandkeeper.boxd.events",
    "RunLost": "sandkeeper.boxd.events",
    "RunOutcome": "sandkeeper.boxd.events",
    "RunOutput": "sandkeeper.boxd.events",
    "RunStarted": "sandkeeper.boxd.events",
    "boot_folder": "sandkeeper.boxd.paths",
    "control_folder": "sandkeeper.boxd.paths",
    "control_socket": "sandkeeper.boxd.paths",
    "is_listening": "sandkeeper.boxd.boot_sockets",
    "remove_folders": "sandkeeper.boxd.paths",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
