"""Starting a supervisor for a state folder when none runs.

Owns the one place where the client reaches for the server side, and says which extra is missing when it is not there.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

from sandkeeper.client.installation import Installation
from sandkeeper.core.errors import FailedPrecondition
from sandkeeper.ports import Ports


async def ensure_up(installation: Installation, *, config: Mapping[str, Any], ports: Ports) -> None:
    """Return when a supervisor keeps the folder: the one that did, or one started now as a daemon.

    Raises:
        FailedPrecondition: `server_extra_missing`.
        InvalidArgument: `config_invalid`.
        Unavailable: `up_failed`.
    """
    if installation.is_up():
        return
    # The daemon is told to start its own imports; what is checked here is that it can.
    server_module("ray", is_loaded=False)
    daemon = server_module("sandkeeper.owner.daemon")
    await daemon.start_daemon(server_config(installation, config=config), ports=ports)


async def end_up(installation: Installation, *, ports: Ports) -> bool:
    """End the supervisor that keeps the folder, if one does; return whether one did. Sandboxes go on."""
    daemon = server_module("sandkeeper.owner.daemon")
    paths = server_module("sandkeeper.owner.config").StatePaths(installation.state_dir)
    return bool(await daemon.stop_daemon(paths, ports=ports))


def server_config(installation: Installation, *, config: Mapping[str, Any]) -> Any:
    """Return the server's configuration for this folder."""
    return server_module("sandkeeper.owner.config").load_config(installation.state_dir, **config)


def server_module(name: str, *, is_loaded: bool = True) -> Any:
    """Import a module of the server side; without `is_loaded` only look whether it is installed.

    Raises:
        FailedPrecondition: `server_extra_missing`, naming the package that is not installed.
    """
    try:
        if is_loaded:
            return importlib.import_module(name)
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(name=name)
    except ModuleNotFoundError as error:
        raise FailedPrecondition(
            f"the server side is not installed: there is no module {error.name}",
            code="server_extra_missing",
            advice="pip install 'sandkeeper[server]', or join one that runs with Keeper.join()",
        ) from error
    return None
