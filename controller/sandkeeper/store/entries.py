"""What goes into an owner's journal and what comes out of it.

Owns the shapes. Never touches a file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict

from sandkeeper.core.errors import InvalidArgument
from sandkeeper.core.events import Event
from sandkeeper.core.ids import BirthId, CommandId, MachineId, RequestId, SandboxId, TenantId
from sandkeeper.core.record import Phase, SandboxRecord, SnapshotRecord

PHASES_WITHOUT_MEMORY = frozenset({Phase.STOPPED, Phase.FAILED, Phase.DESTROYED})
"""Phases in which a sandbox has no runtime and is not about to have one."""


class Answer(BaseModel):
    """The answer a mutating request got: a repeat of its `request_id` gets it again.

    Attributes:
        verb: Name of the verb.
        fingerprint: Hash of the verb's parameters; another fingerprint under one id is a conflict.
        is_error: Whether `document` is an error's wire form.
        document: The answer, JSON-safe.
        at: When it was given.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tenant_id: TenantId
    request_id: RequestId
    verb: str
    fingerprint: str
    is_error: bool
    document: dict[str, Any]
    at: AwareDatetime


class JournalEvent(BaseModel):
    """One line of the journal.

    Attributes:
        seq: Its number in the owner's file; 1, 2, 3 ... without gaps.
        kind: The event's kind, or the name of a note.
        event: The lifecycle event, where the line is one.
        details: Facts beside it, JSON-safe.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    seq: int
    tenant_id: TenantId
    machine_id: MachineId
    sandbox_id: SandboxId
    kind: str
    at: AwareDatetime
    event: Event | None = None
    details: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """What one commit makes durable together: all of it or nothing.

    Attributes:
        record: The sandbox's new record; replaces the old one.
        kind: Name of the journal line; the event's kind where there is one.
        at: The moment of the line.
        event: The lifecycle event that led to the record; None for a create or a recovery's own line.
        details: Facts beside the event, JSON-safe.
        snapshot: A snapshot committed by it.
        answers: Answers of client requests settled by it.
    """

    record: SandboxRecord
    kind: str
    at: datetime
    event: Event | None = None
    details: dict[str, Any] = field(default_factory=dict)
    snapshot: SnapshotRecord | None = None
    answers: tuple[Answer, ...] = ()


@dataclass(frozen=True, slots=True)
class Claims:
    """What an owner's records say about names at the engine.

    Attributes:
        births: Birth ids claimed by a sandbox that is not destroyed.
        given_up: Engine names abandoned with their command, destroyed sandboxes' included.
        pending: Commands whose reply is awaited; a pending-* image of any other command is garbage.
    """

    births: frozenset[BirthId]
    given_up: frozenset[str]
    pending: frozenset[CommandId]


def moment_text(at: datetime) -> str:
    """Return the stored form of an aware moment: UTC, microseconds, so that text order is time order.

    Raises:
        InvalidArgument: `moment_naive`.
    """
    if at.tzinfo is None:
        raise InvalidArgument("a moment without time zone cannot be stored", code="moment_naive")
    return at.astimezone(UTC).isoformat(timespec="microseconds")
