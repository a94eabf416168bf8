"""`sandbox.state`: durable key-value pairs beside the box.

Owns the checks that need no round trip. The values are JSON documents; they belong to the sandbox, not to its runtime:
they outlive rebuilds, stops and restores, are in no snapshot, and can be read for days after it is destroyed.
"""

from __future__ import annotations

from typing import Any, TypeVar

from sandkeeper.client.routing import Router
from sandkeeper.core.documents import document_text
from sandkeeper.core.ids import SandboxId
from sandkeeper.core.keeping_verbs import DeleteState, GetState, ListState, PutState
from sandkeeper.core.state import STATE_VALUE, StateEntry, StateItem
from sandkeeper.core.verbs import Params, checked

P = TypeVar("P", bound=Params)


class SandboxState:
    """The state of one sandbox. Changes take a `request_id`: a repeat with the same one gets the same answer."""

    def __init__(self, sandbox_id: SandboxId, *, router: Router) -> None:
        self._id = sandbox_id
        self._router = router

    async def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or `default` when there is no such key."""
        entry = await self.entry(key)
        return default if entry is None else entry.value

    async def entry(self, key: str) -> StateEntry | None:
        """Return a key with its value and version, or None when there is no such key."""
        params = checked(GetState, sandbox_id=self._id, key=key)
        entry: StateEntry | None = await self._router.owner(
            self._id, "state_get", params, answer=StateEntry | None
        )
        return entry

    async def put(
        self, key: str, value: Any, *, if_version: int | None = None, request_id: str | None = None
    ) -> StateItem:
        """Write a key; durable when it returns.

        Args:
            key: 1-256 characters without control characters.
            value: A JSON document of up to 64 KiB; a sandbox has room for 1 MiB and 4,096 keys.
            if_version: Write only when the key has this version; 0 = only when there is no such key.
            request_id: A repeat with the same id writes once.

        Raises:
            InvalidArgument: `state_not_json`, `state_too_large`.
            FailedPrecondition: `state_version_conflict`, with the present `version` in its details.
            ResourceExhausted: `state_full`.
            NotFound: `sandbox_destroyed`.
        """
        document_text(value, STATE_VALUE)
        params = checked(
            PutState,
            sandbox_id=self._id,
            request_id=request_id or self._router.ports.new_token(),
            key=key,
            value=value,
            if_version=if_version,
        )
        item: StateItem = await self._router.owner(self._id, "state_put", params, answer=StateItem)
        return item

    async def delete(self, key: str, *, if_version: int | None = None, request_id: str | None = None) -> bool:
        """Delete a key; return whether it was there. `if_version` and `request_id` as for `put`."""
        params = checked(
            DeleteState,
            sandbox_id=self._id,
            request_id=request_id or self._router.ports.new_token(),
            key=key,
            if_version=if_version,
        )
        answer: dict[str, Any] = await self._router.owner(
            self._id, "state_delete", params, answer=dict[str, Any]
        )
        return bool(answer["was_there"])

    async def list(self, prefix: str = "") -> list[StateItem]:
        """Return the keys that begin with `prefix`, without their values, in order."""
        params = checked(ListState, sandbox_id=self._id, prefix=prefix)
        items: list[StateItem] = await self._router.owner(
            self._id, "state_list", params, answer=list[StateItem]
        )
        return items
