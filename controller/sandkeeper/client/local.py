"""Starting a supervisor for a state folder when none runs.

Owns the one place where the client reaches for the server side, and says which extra is missing when it is not there.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Mapping
from typing import Any

from sandkeeper.client.installation import Installation
from sandkeeper.core.errors import FailedPrecondition


async def ensure_up(installation: Installation, *, config: Mapping[str, Any]) -> None:
    """Return when a supervisor keeps the folder: the one that did, or one started now as a daemon.

    Raises:
        FailedPrecondition: `server_extra_missing`.
        InvalidArgument: `config_invalid`.
        SandkeeperError: Whatever kept it from starting.
    """
    if installation.is_up() and installation.directory_socket.exists():
        return
    await asyncio.to_thread(start_daemon, installation, config=config)


def start_daemon(installation: Installation, *, config: Mapping[str, Any]) -> None:
    """Start the supervisor as a daemon and return when it is ready; blocks."""
    supervisor = server_module("sandkeeper.owner.supervisor")
    supervisor.start_daemon(server_config(installation, config=config))


def server_config(installation: Installation, *, config: Mapping[str, Any]) -> Any:
    """Return the server's configuration for this folder."""
    return server_module("sandkeeper.owner.config").load_config(installation.state_dir, **config)


def server_module(name: str) -> Any:
    """Import a module of the server side.

    Raises:
        FailedPrecondition: `server_extra_missing`, naming the package that is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise FailedPrecondition(
            f"the server side is not installed: there is no module {error.name}",
            code="server_extra_missing",
            advice="pip install 'sandkeeper[server]', or join one that runs with Keeper.join()",
        ) from error
