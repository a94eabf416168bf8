"""Where an installation of this machine lives, and whether its supervisor runs.

Owns the reading of the state folder from outside. It never writes there and never starts anything.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from sandkeeper.core.errors import Unavailable

STATE_DIR_VARIABLE = "SANDKEEPER_STATE_DIR"
DIRECTORY_SOCKET = "directory.sock"
UP_FILE = "up.json"


def default_state_dir() -> Path:
    """Return the state folder: SANDKEEPER_STATE_DIR, else the system's for root and the user's for others."""
    chosen = os.environ.get(STATE_DIR_VARIABLE, "")
    if chosen:
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/sandkeeper")
    return Path.home() / ".local" / "share" / "sandkeeper"


@dataclass(frozen=True, slots=True)
class Installation:
    """One installation, named by its state folder."""

    state_dir: Path

    @property
    def directory_socket(self) -> Path:
        """Where the directory answers."""
        return self.state_dir / DIRECTORY_SOCKET

    def is_up(self) -> bool:
        """Return whether the supervisor recorded in the state folder is alive: same pid, same start time."""
        try:
            noted = json.loads((self.state_dir / UP_FILE).read_text())
            stat = Path(f"/proc/{int(noted['pid'])}/stat").read_text()
        except (OSError, ValueError, KeyError, TypeError):
            # No file, half a file, or no such process: each means that nobody keeps this folder now.
            return False
        fields = stat[stat.rindex(")") + 2 :].split()
        return fields[0] != "Z" and int(fields[19]) == noted.get("start_ticks")

    def not_up(self) -> Unavailable:
        """Return the error for a folder nobody keeps."""
        return Unavailable(
            f"nothing runs for the state folder {self.state_dir}",
            code="not_up",
            advice="run `sandkeeper up`, or point SANDKEEPER_STATE_DIR at the folder of one that runs",
            admitted="no",
        )
