"""JSON documents that callers have kept: what is one, how large it may be, and its stored form.

Pure. Never looks at what a document means.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sandkeeper.core.errors import InvalidArgument

MAX_DEPTH = 64
"""Nesting of a stored document: deeper ones cannot be read back by every JSON reader."""


@dataclass(frozen=True, slots=True)
class DocumentRule:
    """What a kind of document may be.

    Attributes:
        name: What it is called in errors.
        limit_bytes: Most bytes of its stored form.
        not_json_code: Code of the error for what is no JSON document.
        too_large_code: Code of the error for one that is too large.
    """

    name: str
    limit_bytes: int
    not_json_code: str
    too_large_code: str


def document_text(value: Any, rule: DocumentRule) -> str:
    """Return the stored form of a JSON document: compact, as UTF-8 text.

    Args:
        value: None, a boolean, number, text, list, or mapping with text keys; nested at most MAX_DEPTH.
        rule: What it may be.

    Raises:
        InvalidArgument: It is no JSON document, or too large.
    """
    _check_json(value, rule)
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        raise _not_json(rule, "a text with half a surrogate pair") from error
    if size_bytes > rule.limit_bytes:
        raise InvalidArgument(
            f"{rule.name}: the document has {size_bytes} bytes, more than {rule.limit_bytes}",
            code=rule.too_large_code,
            advice="keep large things in files or snapshots, and their names here",
            details={"size_bytes": size_bytes, "limit_bytes": rule.limit_bytes},
        )
    return text


def _check_json(value: Any, rule: DocumentRule) -> None:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise _not_json(rule, f"nested deeper than {MAX_DEPTH}")
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
                        raise _not_json(rule, "a mapping whose keys are not all text")
                    below += item.values()
                case _:
                    raise _not_json(rule, f"a {type(item).__name__} that JSON has no form for")
        level = below


def _not_json(rule: DocumentRule, problem: str) -> InvalidArgument:
    return InvalidArgument(f"{rule.name}: {problem} is no JSON document", code=rule.not_json_code)
