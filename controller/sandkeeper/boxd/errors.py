"""From boxd's error answers and broken connections to the errors of Sandkeeper.

Owns the one place where what boxd says, or fails to say, becomes a category, a code and an honest `admitted`.
What boxd says is not trusted: codes are checked, texts are cut and stripped of control characters.
Never retries and never logs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sandkeeper.core.errors import (
    Aborted,
    Admitted,
    AlreadyExists,
    DataLoss,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    SandkeeperError,
    Unavailable,
)

MESSAGE_LIMIT = 500
_CODE = re.compile(r"[a-z][a-z0-9_]{0,63}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")

_BY_CONNECT_CODE: Mapping[str, type[SandkeeperError]] = {
    "aborted": Aborted,
    "already_exists": AlreadyExists,
    "canceled": Aborted,
    "data_loss": DataLoss,
    "deadline_exceeded": Aborted,
    "failed_precondition": FailedPrecondition,
    "internal": Internal,
    "invalid_argument": InvalidArgument,
    "not_found": NotFound,
    "out_of_range": InvalidArgument,
    "permission_denied": PermissionDenied,
    "resource_exhausted": ResourceExhausted,
    "unauthenticated": PermissionDenied,
    "unavailable": Unavailable,
    "unimplemented": FailedPrecondition,
    "unknown": Internal,
}

_BY_STATUS: Mapping[int, type[SandkeeperError]] = {
    400: InvalidArgument,
    401: PermissionDenied,
    403: PermissionDenied,
    404: NotFound,
    405: FailedPrecondition,
    406: InvalidArgument,
    409: FailedPrecondition,
    413: ResourceExhausted,
    416: InvalidArgument,
    429: ResourceExhausted,
    500: Internal,
    501: FailedPrecondition,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
    507: ResourceExhausted,
}

_BY_OUR_CODE: Mapping[str, type[SandkeeperError]] = {
    "draining": Unavailable,
    "not_started": Unavailable,
    "port_closed": Unavailable,
    "port_timeout": Unavailable,
    "run_id_conflict": AlreadyExists,
    "stale_epoch": FailedPrecondition,
    "unknown_user": InvalidArgument,
    "wrong_generation": FailedPrecondition,
}
"""Codes of ours whose category does not depend on the protocol's word for them."""

_ADVICE: Mapping[str, str] = {
    "draining": "ask the owner: it is stopping, saving or waking this sandbox",
    "not_started": "ask the owner: the runtime has not been let go yet",
    "port_closed": "look whether the server runs, or wait for the port",
    "port_timeout": "look whether the server runs, or wait longer",
    "stale_epoch": "ask the owner for a fresh lease",
    "wrong_generation": "ask the owner for a fresh lease",
    "runtime_unreachable": "ask the owner what became of the runtime",
    "runtime_silent": "ask the owner what became of the runtime; repeat with the same run id",
    "connection_lost": "ask the owner; attach again with the same run id",
}


def refusal(
    document: Mapping[str, Any], *, step: str, status: int = 0, admitted: Admitted = "no"
) -> SandkeeperError:
    """Return the error that one error document of boxd stands for.

    Args:
        document: The JSON object: `code` (a Connect word or an HTTP number), `message`, `sandkeeper`.
        step: What was being done, for the message.
        status: The HTTP status it came with, 0 for an end-of-stream frame.
        admitted: `yes` once the start event was seen; a refusal before it admits nothing.
    """
    ours = document.get("sandkeeper")
    extra: Mapping[str, Any] = ours if isinstance(ours, dict) else {}
    named, word = _checked_code(extra.get("code")), _checked_code(document.get("code"))
    kind = _BY_OUR_CODE.get(named or "")
    if kind is None and word is not None:
        kind = _BY_CONNECT_CODE.get(word)
    if kind is None:
        kind = _BY_STATUS.get(status, Internal)
    if kind in (Internal, Aborted) and admitted == "no":
        admitted = "unknown"
    details: dict[str, Any] = {}
    if _is_number(extra.get("epoch")):
        details["epoch"] = extra["epoch"]
    if _is_number(extra.get("writtenBytes")):
        details["written_bytes"] = extra["writtenBytes"]
    code = named or ("disk_full" if status == 507 else word or kind.default_code)
    return kind(
        f"{step}: {_shown(document.get('message'))}",
        code=code,
        advice=_ADVICE.get(code, ""),
        admitted=admitted,
        details=details,
    )


def unreachable(error: OSError, *, step: str) -> SandkeeperError:
    """Return the error for a connection that could not be made: nothing was sent."""
    number = error.strerror or type(error).__name__
    return Unavailable(
        f"{step}: boxd cannot be reached ({number})",
        code="runtime_unreachable",
        advice=_ADVICE["runtime_unreachable"],
        admitted="no",
    )


def connection_lost(reason: str, *, step: str, admitted: Admitted) -> SandkeeperError:
    """Return the error for a connection that broke after something was sent."""
    return Aborted(
        f"{step}: the connection to boxd broke ({reason})",
        code="connection_lost",
        advice=_ADVICE["connection_lost"],
        admitted=admitted,
    )


def silent(waited_s: float, *, step: str, admitted: Admitted) -> SandkeeperError:
    """Return the error for an answer that did not come in time."""
    return Unavailable(
        f"{step}: no word from boxd in {waited_s:g} s",
        code="runtime_silent",
        advice=_ADVICE["runtime_silent"],
        admitted=admitted,
    )


def invalid_answer(reason: str, *, step: str, admitted: Admitted) -> SandkeeperError:
    """Return the error for an answer that breaks the contract or its bounds: the box is not to be believed."""
    return Aborted(
        f"{step}: boxd's answer is invalid: {_shown(reason)}",
        code="box_answer_invalid",
        advice="what runs as boxd in this sandbox is broken or hostile; rebuild the sandbox",
        admitted=admitted,
    )


def _checked_code(value: object) -> str | None:
    return value if isinstance(value, str) and _CODE.fullmatch(value) else None


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: object) -> str:
    text = value if isinstance(value, str) and value else "no reason given"
    cleaned = _CONTROL.sub(" ", text)
    return cleaned if len(cleaned) <= MESSAGE_LIMIT else cleaned[:MESSAGE_LIMIT] + "…"
