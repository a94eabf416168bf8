"""Which engine an installation uses, from one line of its configuration.

Owns the spelling of that line. Never starts an engine.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path

from sandkeeper.containers.docker_engine import DockerEngine
from sandkeeper.containers.endpoint import find_endpoint
from sandkeeper.containers.engine import Engine
from sandkeeper.core.errors import InvalidArgument
from sandkeeper.core.ids import InstallationId
from sandkeeper.ports import Ports

USERS_ENGINE = "docker"


def open_engine(
    spec: str,
    *,
    installation_id: InstallationId,
    ports: Ports,
    state_dir: Path,
    environment: Mapping[str, str],
) -> Engine:
    """Return the engine that `spec` names; nothing is connected yet.

    Args:
        spec: `docker` or empty: the user's engine (DOCKER_HOST, else the well-known sockets). `unix://...` or
            `tcp://...`: that one. `module:factory`: what `factory(installation_id=, ports=, state_dir=)` returns;
            for benches and tests.
        installation_id: Whose containers the engine shows.
        ports: Time and chance.
        state_dir: The installation's state folder.
        environment: Where DOCKER_HOST is looked for.

    Raises:
        InvalidArgument: `engine_unknown`.
    """
    if spec in ("", USERS_ENGINE):
        return DockerEngine(find_endpoint(environment).url, installation_id=installation_id, ports=ports)
    if "://" in spec:
        return DockerEngine(spec, installation_id=installation_id, ports=ports)
    module_name, _, name = spec.partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgument(
            f"engine {spec!r} is neither `docker`, an address, nor module:factory: {error}",
            code="engine_unknown",
            details={"field": "engine"},
        ) from error
    engine: Engine = factory(installation_id=installation_id, ports=ports, state_dir=state_dir)
    return engine
