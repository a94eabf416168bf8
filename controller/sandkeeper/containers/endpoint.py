"""Where the user's container engine listens, and whether it answers.

Owns the choice of the endpoint (DOCKER_HOST, else the well-known sockets) and the first handshake. It never starts
or installs anything.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import docker
from docker.errors import DockerException
from requests.exceptions import RequestException

from sandkeeper.core.errors import FailedPrecondition, Unavailable

SYSTEM_SOCKET = Path("/var/run/docker.sock")
HANDSHAKE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address of an engine.

    Attributes:
        url: As the docker library takes it.
        is_chosen_by_user: True when DOCKER_HOST names it: then we never fall back to another.
    """

    url: str
    is_chosen_by_user: bool = False

    @property
    def socket(self) -> Path | None:
        """The socket's path, or None where the engine is not on a unix socket."""
        return Path(self.url.removeprefix("unix://")) if self.url.startswith("unix://") else None


def find_endpoint(environment: Mapping[str, str]) -> Endpoint:
    """Return the engine address to use: DOCKER_HOST, else the rootless socket if it is there, else the system's."""
    chosen = environment.get("DOCKER_HOST", "")
    if chosen:
        return Endpoint(url=chosen, is_chosen_by_user=True)
    runtime_dir = environment.get("XDG_RUNTIME_DIR", "")
    rootless = Path(runtime_dir) / "docker.sock" if runtime_dir else None
    if rootless and rootless.is_socket() and not SYSTEM_SOCKET.is_socket():
        return Endpoint(url=f"unix://{rootless}")
    return Endpoint(url=f"unix://{SYSTEM_SOCKET}")


def answers(endpoint: Endpoint, *, timeout_s: float = HANDSHAKE_TIMEOUT_S) -> bool:
    """Say whether an engine answers at `endpoint` within `timeout_s`."""
    try:
        connect(endpoint, timeout_s=timeout_s).close()
    except Unavailable:
        return False
    return True


def connect(endpoint: Endpoint, *, timeout_s: float = 60.0) -> docker.DockerClient:
    """Return a docker client that has spoken with the engine; the caller closes it.

    Raises:
        FailedPrecondition: `engine_permission`: the socket is there and we may not open it.
        Unavailable: `engine_unreachable`.
    """
    if endpoint.socket is not None:
        _knock(endpoint.socket, timeout_s=timeout_s)
    client: docker.DockerClient | None = None
    try:
        client = docker.DockerClient(base_url=endpoint.url, timeout=timeout_s)
        client.ping()
    except (DockerException, RequestException, OSError) as error:
        if client is not None:
            client.close()
        raise _unreachable(endpoint.url, reason=str(error)) from error
    return client


def _knock(path: Path, *, timeout_s: float) -> None:
    """Open the socket once by hand: the library leaks its socket when nobody listens, and hides why."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(timeout_s)
        try:
            probe.connect(str(path))
        except PermissionError as error:
            raise FailedPrecondition(
                f"this user may not open the engine's socket {path}",
                code="engine_permission",
                advice="add the user to the group that owns it (`sudo usermod -aG docker $USER`, then log in again)",
            ) from error
        except OSError as error:
            raise _unreachable(f"unix://{path}", reason=str(error)) from error


def _unreachable(url: str, *, reason: str) -> Unavailable:
    return Unavailable(
        f"no container engine answers at {url}: {reason}",
        code="engine_unreachable",
        advice="start it, or run `make setup` as root, which installs and starts one",
    )
