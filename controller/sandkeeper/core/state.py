"""Durable key-value state beside a sandbox: what may be stored, and what compare-and-set means.

Owns keys, sizes and versions. Never stores: the owner's journal does. The state belongs to the sandbox, not to a
runtime: rebuilds, restores and snapshots do not touch it, and it stays readable after the sandbox is destroyed.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from sandkeeper.core.errors import FailedPrecondition, InvalidArgument, ResourceExhausted

MAX_VALUE_BYTES = 64 * 1024
MAX_STATE_BYTES = 1024 * 1024
"""Of all keys and values of one sandbox together, as UTF-8."""
MAX_STATE_KEYS = 4096
MAX_DEPTH = 64
"""Nesting of a stored document: deeper ones cannot be read back by every JSON reader."""

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


def document_text(value: Any, *, limit_bytes: int, what: str) -> str:
    """Return the stored form of a JSON document.

    Args:
        value: None, a boolean, number, text, list, or mapping with text keys; nested at most MAX_DEPTH.
        limit_bytes: Most bytes the form may have.
        what: Names the document in errors: their codes are `<what>_not_json` and `<what>_too_large`.

    Raises:
        InvalidArgument: It is no JSON document, or too large.
    """
    _check_json(value, what=what)
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        raise _not_json(what, "a text with half a surrogate pair") from error
    if size_bytes > limit_bytes:
        raise InvalidArgument(
            f"{what}: the document has {size_bytes} bytes, more than {limit_bytes}",
            code=f"{what}_too_large",
            advice="keep large things in files or snapshots, and their names here",
            details={"size_bytes": size_bytes, "limit_bytes": limit_bytes},
        )
    return text


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


def _check_json(value: Any, *, what: str) -> None:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise _not_json(what, f"nested deeper than {MAX_DEPTH}")
        below: list[Any] = []
        for item in level:
            match item:
                case None | bool() | int() | str():
                    continue
                case float() if item - item == 0.0:
                    continue
                case list() | tuple():
                    below += item
                case dict():
                    if not all(isinstance(key, str) for key in item):
                        raise _not_json(what, "a mapping whose keys are not all text")
                    below += item.values()
                case _:
                    raise _not_json(what, f"a {type(item).__name__} that JSON has no form for")
        level = below


def _not_json(what: str, problem: str) -> InvalidArgument:
    return InvalidArgument(f"{what}: {problem} is no JSON document", code=f"{what}_not_json")
