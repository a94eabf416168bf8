"""The directory's calls to owners: repeated with the same request id while an owner is coming back."""

from __future__ import annotations

from typing import Any

from sandkeeper.control.caller import ControlCaller
from sandkeeper.core.errors import Unavailable
from sandkeeper.core.ids import OwnerId
from sandkeeper.core.verbs import Params
from sandkeeper.owner.config import StatePaths
from sandkeeper.ports import Ports

RETRY_FOR_S = 60.0
RETRY_FIRST_S = 0.05
RETRY_MOST_S = 1.0
CALL_TIMEOUT_S = 150.0


class OwnerCalls:
    """Callers of every owner's control socket, opened when first needed."""

    def __init__(self, paths: StatePaths, *, ports: Ports) -> None:
        self._paths = paths
        self._ports = ports
        self._callers: dict[OwnerId, ControlCaller] = {}

    async def call(
        self, owner_id: OwnerId, verb: str, params: Params, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> Any:
        """Call a verb of an owner; one that is away is waited for, up to a minute.

        Raises:
            Unavailable: `owner_unreachable` for that long.
            SandkeeperError: What the verb answers.
        """
        deadline_s = self._ports.clock.monotonic_s() + min(RETRY_FOR_S, timeout_s)
        document = params.model_dump(mode="json")
        delay_s = RETRY_FIRST_S
        while True:
            try:
                return await self._caller(owner_id).call(verb, document, timeout_s=timeout_s)
            except Unavailable:
                if self._ports.clock.monotonic_s() + delay_s >= deadline_s:
                    raise
            await self._ports.sleep(delay_s)
            delay_s = min(RETRY_MOST_S, delay_s * 2)

    async def ping(self, owner_id: OwnerId, *, timeout_s: float) -> dict[str, Any]:
        """Ask an owner who it is, once.

        Raises:
            Unavailable: It does not answer in time.
        """
        answer: dict[str, Any] = await self._caller(owner_id).call("ping", {}, timeout_s=timeout_s)
        return answer

    async def close(self) -> None:
        """Close all connections. Repeating is safe."""
        while self._callers:
            await self._callers.popitem()[1].close()

    def _caller(self, owner_id: OwnerId) -> ControlCaller:
        if owner_id not in self._callers:
            self._callers[owner_id] = ControlCaller(self._paths.owner(owner_id).control_socket)
        return self._callers[owner_id]
