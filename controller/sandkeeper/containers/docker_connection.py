"""Two clients of one docker engine: one that gives up waiting, one that does not.

Owns the connection, made at the first call, and the few engine calls that the docker library does not offer.
"""

from __future__ import annotations

import threading
from typing import Any

import docker

QUICK_TIMEOUT_S = 60
POOL_SIZE = 16
FIRST_VERSION = "1.41"  # any known one: it is not part of the question which versions there are


class DockerApi(docker.APIClient):  # type: ignore[misc]
    """The library's low-level client, with what we need beyond it."""

    def newest_version(self) -> str:
        """Return the newest version of the interface that the engine speaks."""
        return str(self.version(api_version=False)["ApiVersion"])

    def inspect_with_size(self, name: str) -> dict[str, Any]:
        """Return the container's document with `SizeRw`, for which the engine walks its writable layer."""
        answer = self._get(self._url("/containers/{0}/json", name), params={"size": True})
        document: dict[str, Any] = self._result(answer, True)
        return document

    def update_limits(self, name: str, limits: dict[str, Any]) -> None:
        """Change limits; the library's own call leaves out the number of processes."""
        self._result(self._post_json(self._url("/containers/{0}/update", name), data=limits), True)


class DockerConnection:
    """The engine at one address. Safe to use from many threads; every method blocks."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opening = threading.Lock()
        self._quick: DockerApi | None = None
        self._slow: DockerApi | None = None
        self._version: str | None = None

    def quick(self) -> DockerApi:
        """Return the client whose calls end after `QUICK_TIMEOUT_S`."""
        with self._opening:
            if self._quick is None:
                self._quick = self._client(timeout_s=QUICK_TIMEOUT_S)
            return self._quick

    def slow(self) -> DockerApi:
        """Return the client that waits as long as the engine takes."""
        with self._opening:
            if self._slow is None:
                self._slow = self._client(timeout_s=None)
            return self._slow

    def close(self) -> None:
        """Close idle connections; calls that are running keep theirs."""
        with self._opening:
            for client in (self._quick, self._slow):
                if client is not None:
                    client.close()

    def _client(self, *, timeout_s: int | None) -> DockerApi:
        """Make a client; the first one asks the engine, with a timeout, which version it speaks."""
        version = self._version or FIRST_VERSION
        if self._version is None:
            asking = DockerApi(base_url=self._url, version=version, timeout=QUICK_TIMEOUT_S)
            try:
                version = self._version = asking.newest_version()
            finally:
                asking.close()
        return DockerApi(base_url=self._url, version=version, timeout=timeout_s, max_pool_size=POOL_SIZE)
