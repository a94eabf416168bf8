"""boxd seen from the host: the boot hand-over and the typed client. Exports only."""

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
