"""The one family of errors every room raises.

A class is a *category*: it says what the caller does next. A `code` gives the detail. Errors survive
pickling (Ray) and a JSON round trip (control sockets) unchanged. This module never maps foreign
exceptions: each adapter room does that once, at its edge.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

Admitted = Literal["yes", "no", "unknown"]
"""Whether the refused or broken request was admitted: its work may have begun (`yes`), not (`no`), or unknown."""


class SandkeeperError(Exception):
    """Base of all errors of Sandkeeper.

    Attributes:
        category: Name of the class; what the caller may do.
        code: Stable machine-readable detail, snake_case.
        message: What happened and in which step; ids and numbers, never secrets.
        advice: What to do about it; may be empty.
        sandbox_id: The sandbox concerned, if one is.
        request_id: The request concerned, if it had one.
        admitted: Whether the request's work was begun.
        retry_after_s: Seconds to wait before a repeat, where that is known.
        details: JSON-safe facts beside the message (numbers, ids, lists of them).
    """

    category: ClassVar[str] = "Internal"
    default_code: ClassVar[str] = "internal"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        advice: str = "",
        sandbox_id: str | None = None,
        request_id: str | None = None,
        admitted: Admitted = "no",
        retry_after_s: float | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.advice = advice
        self.sandbox_id = sandbox_id
        self.request_id = request_id
        self.admitted: Admitted = admitted
        self.retry_after_s = retry_after_s
        self.details: dict[str, Any] = details or {}

    def __str__(self) -> str:
        text = f"{self.code}: {self.message}"
        return f"{text} ({self.advice})" if self.advice else text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SandkeeperError) and self.to_wire() == other.to_wire()

    def __hash__(self) -> int:
        return hash((self.category, self.code, self.message))

    def __reduce__(self) -> tuple[Any, ...]:
        return (error_from_wire, (self.to_wire(),))

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON-safe form that `error_from_wire` turns back into an equal error."""
        return {
            "category": self.category,
            "code": self.code,
            "message": self.message,
            "advice": self.advice,
            "sandbox_id": self.sandbox_id,
            "request_id": self.request_id,
            "admitted": self.admitted,
            "retry_after_s": self.retry_after_s,
            "details": self.details,
        }


class InvalidArgument(SandkeeperError):
    """The request itself is wrong; repeating it unchanged cannot succeed."""

    category = "InvalidArgument"
    default_code = "invalid_argument"


class NotFound(SandkeeperError):
    """What the request names does not exist (or is not visible to the caller)."""

    category = "NotFound"
    default_code = "not_found"


class AlreadyExists(SandkeeperError):
    """The name or request id is taken by something else."""

    category = "AlreadyExists"
    default_code = "already_exists"


class FailedPrecondition(SandkeeperError):
    """The state does not allow it; change the state first."""

    category = "FailedPrecondition"
    default_code = "failed_precondition"


class PermissionDenied(SandkeeperError):
    """Policy refuses it; nothing was created or changed."""

    category = "PermissionDenied"
    default_code = "permission_denied"


class ResourceExhausted(SandkeeperError):
    """A limit is reached; retry after `retry_after_s` or free something."""

    category = "ResourceExhausted"
    default_code = "resource_exhausted"


class Unavailable(SandkeeperError):
    """A process or engine cannot be reached now; repeat with the same request id."""

    category = "Unavailable"
    default_code = "unavailable"


class Aborted(SandkeeperError):
    """It was begun and did not finish; `admitted` says whether its work may have run."""

    category = "Aborted"
    default_code = "aborted"

    def __init__(self, message: str, *, admitted: Admitted = "unknown", **fields: Any) -> None:
        super().__init__(message, admitted=admitted, **fields)


class DataLoss(SandkeeperError):
    """State is gone or damaged; never repeat blindly."""

    category = "DataLoss"
    default_code = "data_loss"


class Internal(SandkeeperError):
    """A defect of Sandkeeper."""


CATEGORIES: dict[str, type[SandkeeperError]] = {
    kind.category: kind
    for kind in (
        InvalidArgument,
        NotFound,
        AlreadyExists,
        FailedPrecondition,
        PermissionDenied,
        ResourceExhausted,
        Unavailable,
        Aborted,
        DataLoss,
        Internal,
    )
}


def error_from_wire(document: dict[str, Any]) -> SandkeeperError:
    """Rebuild an error from `SandkeeperError.to_wire`; an unknown category becomes `Internal`."""
    kind = CATEGORIES.get(str(document.get("category")), Internal)
    return kind(
        str(document.get("message", "")),
        code=document.get("code"),
        advice=document.get("advice", ""),
        sandbox_id=document.get("sandbox_id"),
        request_id=document.get("request_id"),
        admitted=document.get("admitted", "unknown"),
        retry_after_s=document.get("retry_after_s"),
        details=document.get("details"),
    )
