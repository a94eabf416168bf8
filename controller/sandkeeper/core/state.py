"""Durable key-value state beside a sandbox: what may be stored, and what compare-and-set means.

Owns keys, sizes and versions. Never stores: the owner's journal does. The state belongs to the sandbox, not to a
runtime: rebuilds, restores and snapshots do not touch it, and it stays readable after the sandbox is destroyed.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from sandkeeper.core.documents import DocumentRule
from sandkeeper.core.errors import FailedPrecondition, ResourceExhausted

MAX_VALUE_BYTES = 64 * 1024
STATE_VALUE = DocumentRule(
    name="state",
    limit_bytes=MAX_VALUE_BYTES,
    not_json_code="state_not_json",
    too_large_code="state_too_large",
)
MAX_STATE_BYTES = 1024 * 1024
"""Of all keys and values of one sandbox together, as UTF-8."""
MAX_STATE_KEYS = 4096

StateKey = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""1-256 characters, none of them a control character."""


class StateItem(BaseModel):
    """What is known of a key without its value.

    Attributes:
        key: Its name.
        version: Number of the write; a later write of any key of the sandbox has a higher one.
        size_bytes: Of key and value, as they count against the sandbox's limit.
        updated_at: When it was written.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    key: StateKey
    version: int
    size_bytes: int
    updated_at: AwareDatetime


class StateEntry(StateItem):
    """A key and its value, a JSON document."""

    value: Any


def size_of(key: str, text: str) -> int:
    """Return what a key and its stored value count against the sandbox's limit."""
    return len(key.encode()) + len(text.encode())


def check_version(key: str, *, wanted: int | None, found: int) -> None:
    """Refuse a write that was made for another version of the key; `found` is 0 where there is none.

    Raises:
        FailedPrecondition: `state_version_conflict`, with the present version in its details.
    """
    if wanted is None or wanted == found:
        return
    raise FailedPrecondition(
        f"the key has version {found}, not {wanted}",
        code="state_version_conflict",
        advice="read it again and decide anew",
        details={"key": key, "version": found, "wanted": wanted},
    )


def check_room(*, size_bytes: int, others_bytes: int, others_count: int) -> None:
    """Refuse what does not fit beside the sandbox's other keys.

    Raises:
        ResourceExhausted: `state_full`.
    """
    if others_bytes + size_bytes <= MAX_STATE_BYTES and others_count < MAX_STATE_KEYS:
        return
    raise ResourceExhausted(
        f"{others_count} other keys hold {others_bytes} bytes; {size_bytes} more do not fit into "
        f"{MAX_STATE_BYTES} bytes and {MAX_STATE_KEYS} keys",
        code="state_full",
        advice="delete keys that are not needed",
        details={"used_bytes": others_bytes, "limit_bytes": MAX_STATE_BYTES},
    )
