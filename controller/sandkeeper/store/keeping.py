"""What goes into an owner's file for what a sandbox keeps beside its box: changes of state and of alarms.

Owns the shapes, and what a stored change answers. Never touches a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from sandkeeper.core.alarms import Alarm, AlarmId
from sandkeeper.core.ids import SandboxId, TenantId
from sandkeeper.core.record import RequestRef
from sandkeeper.core.state import StateEntry, StateItem, size_of
from sandkeeper.store.entries import Answer


@dataclass(frozen=True, slots=True)
class KeptChange:
    """A client's change of what a sandbox keeps.

    Attributes:
        at: The moment of its journal line.
    """

    sandbox_id: SandboxId
    tenant_id: TenantId
    request: RequestRef
    at: datetime

    def answered(self, document: dict[str, Any]) -> Answer:
        """Return the answer to keep."""
        return Answer(
            tenant_id=self.tenant_id,
            request_id=self.request.request_id,
            verb=self.request.verb,
            fingerprint=self.request.fingerprint,
            is_error=False,
            document=document,
            at=self.at,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange(KeptChange):
    """A write or a deletion of one key.

    Attributes:
        text: The value as JSON text (`core.state.document_text`); None deletes the key.
        if_version: Version the key must have; 0 for none, None for any.
    """

    key: str
    text: str | None
    if_version: int | None = None

    @property
    def size_bytes(self) -> int:
        """What the key counts against the limit afterwards."""
        return 0 if self.text is None else size_of(self.key, self.text)

    def item(self, version: int) -> StateItem:
        """Return the key as it is after the change."""
        return StateItem(key=self.key, version=version, size_bytes=self.size_bytes, updated_at=self.at)

    def document(self, *, version: int, was_there: bool) -> dict[str, Any]:
        """Return what the change answers; `version` is the number of its journal line."""
        if self.text is None:
            return {"key": self.key, "was_there": was_there}
        return self.item(version).model_dump(mode="json")

    def details(self) -> dict[str, Any]:
        """Return the details of its journal line; values are the sandbox's own and stay out of the journal."""
        return {"key": self.key, "size_bytes": self.size_bytes}

    @property
    def kind(self) -> str:
        """Kind of its journal line."""
        return "state_deleted" if self.text is None else "state_put"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmChange(KeptChange):
    """An alarm that is set, or cancelled when `alarm` is None."""

    alarm_id: AlarmId
    alarm: Alarm | None = None


class KeptState(Protocol):
    """The durable key-value state of an owner's sandboxes; the same promises as `contract.Journal`."""

    async def change(self, change: StateChange) -> Answer:
        """Make a change durable and return its answer; a repeat of the request changes nothing again.

        Raises:
            NotFound: `sandbox_not_found`, `sandbox_destroyed`.
            FailedPrecondition: `state_version_conflict`.
            ResourceExhausted: `state_full`.
            AlreadyExists: `request_id_conflict`.
        """
        ...

    async def entry(self, sandbox_id: SandboxId, *, key: str) -> StateEntry | None:
        """Return one key with its value, of a destroyed sandbox too."""
        ...

    async def items(self, sandbox_id: SandboxId, *, prefix: str = "") -> list[StateItem]:
        """Return the keys that begin with `prefix`, in their own order."""
        ...


class KeptAlarms(Protocol):
    """The durable alarms of an owner's sandboxes; the same promises as `contract.Journal`."""

    async def change(self, change: AlarmChange) -> Answer:
        """Set or cancel an alarm durably and return the answer; a repeat of the request changes nothing again.

        Raises:
            NotFound: `sandbox_not_found`, `sandbox_destroyed`, `alarm_not_found`.
            ResourceExhausted: `alarms_full`.
            AlreadyExists: `request_id_conflict`.
        """
        ...

    async def fire(self, now: datetime, *, limit: int) -> list[Alarm]:
        """Fire up to `limit` alarms that are due, soonest first: each with its `alarm_fired` line, all or none."""
        ...

    async def next_at(self) -> datetime | None:
        """Return when the soonest pending alarm is due."""
        ...

    async def of(self, sandbox_id: SandboxId, *, settled: int = 0) -> list[Alarm]:
        """Return a sandbox's pending alarms, soonest first, then the `settled` ones that ended last."""
        ...
