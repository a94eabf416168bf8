"""The one place where the engine's errors become ours.

Owns the reading of docker's and its transport's exceptions. Never decides what to do about an error.
"""

from __future__ import annotations

from collections.abc import Iterator

import requests
from docker.errors import APIError, DockerException

from sandkeeper.core.errors import (
    AlreadyExists,
    DataLoss,
    FailedPrecondition,
    Internal,
    NotFound,
    ResourceExhausted,
    SandkeeperError,
    Unavailable,
)

FOREIGN_ERRORS = (DockerException, requests.RequestException, OSError)
"""What a call through the docker library may raise."""

_MESSAGE_CHARS = 500
_FULL = ("no space left on device", "disk quota exceeded")
_GOING_DOWN = (
    "transport is closing",
    "client connection is closing",
    "error while dialing",
    "context canceled",
    "containerd.sock",
    "server closed",
    "error reading from server: eof",
    "ttrpc: closed",
)
_BELOW_USAGE = ("unable to set memory limit", "memory.limit_in_bytes: device or resource busy")
_IMAGE_IN_USE = (
    "image is being used",
    "is using its referenced image",
    "image has dependent child",
    "referenced in multiple repositories",
)


def mapped(error: BaseException, *, step: str) -> SandkeeperError:
    """Return our error for one that came out of the docker library.

    Args:
        error: What was raised.
        step: The call that failed, with the name it was about, for the message.
    """
    if isinstance(error, SandkeeperError):
        return error
    if isinstance(error, APIError):
        return _refused(error, step=step)
    causes = list(_causes(error))
    if any(
        isinstance(cause, FileNotFoundError | ConnectionRefusedError | PermissionError) for cause in causes
    ):
        return _unreachable(error, step=step, is_sent=False)
    if isinstance(error, DockerException | requests.RequestException | OSError):
        return _unreachable(error, step=step, is_sent=True)
    return Internal(f"{step}: {type(error).__name__}: {error}", code="engine_error", admitted="unknown")


def _refused(error: APIError, *, step: str) -> SandkeeperError:
    """Read an answer of the engine that is not a success."""
    explanation = str(error.explanation or error)[:_MESSAGE_CHARS]
    text = explanation.lower()
    message = f"{step}: {explanation}"
    status = error.status_code
    if any(phrase in text for phrase in _FULL):
        return ResourceExhausted(message, code="disk_full", advice="free space on the engine's disk")
    if any(phrase in text for phrase in _GOING_DOWN):
        return Unavailable(message, code="engine_unavailable", admitted="unknown")
    if status == 404 and "no such container" in text:
        return NotFound(message, code="runtime_missing")
    if status == 404 and ("no such image" in text or "manifest unknown" in text):
        return DataLoss(message, code="image_missing")
    if any(phrase in text for phrase in _BELOW_USAGE):
        return FailedPrecondition(
            message, code="size_below_usage", advice="stop processes, or choose a larger size"
        )
    if status == 409 and "already in use by container" in text:
        return AlreadyExists(message, code="name_conflict")
    if status == 409 and any(phrase in text for phrase in _IMAGE_IN_USE):
        return FailedPrecondition(
            message, code="image_in_use", advice="remove the containers made from it first"
        )
    if "unable to freeze" in text:
        return FailedPrecondition(
            message,
            code="runtime_unfreezable",
            advice="something inside keeps its processes from standing still, such as a fork bomb; end it first",
        )
    if status == 409:
        return FailedPrecondition(message, code="runtime_state")
    return Internal(message, code="engine_error", admitted="unknown", details={"status": status})


def _unreachable(error: BaseException, *, step: str, is_sent: bool) -> Unavailable:
    return Unavailable(
        f"{step}: the container engine does not answer: {str(error)[:_MESSAGE_CHARS]}",
        code="engine_unavailable",
        advice="is the engine running, and may this user open its socket?",
        admitted="unknown" if is_sent else "no",
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Walk an exception's causes, also those that urllib3 and requests carry as arguments."""
    waiting: list[BaseException] = [error]
    seen: set[int] = set()
    while waiting:
        current = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        inner = (current.__cause__, current.__context__, *current.args)
        waiting.extend(cause for cause in inner if isinstance(cause, BaseException))
