"""Each foreign error becomes one of ours, with what the caller must know of it."""

import pytest
import requests
from docker.errors import APIError, DockerException
from urllib3.exceptions import ProtocolError

from sandkeeper.containers.errors import mapped
from sandkeeper.core import errors


def refusal(status: int, message: str) -> APIError:
    response = requests.Response()
    response.status_code = status
    return APIError("refused", response=response, explanation=message)


@pytest.mark.parametrize(
    ("status", "message", "kind", "code"),
    [
        (404, "No such container: sk-1", errors.NotFound, "runtime_missing"),
        (404, "No such image: sha256:1", errors.DataLoss, "image_missing"),
        (409, 'The container name "/sk-1" is already in use by container "x"', errors.AlreadyExists, "name_conflict"),
        (409, "Container x is not running", errors.FailedPrecondition, "runtime_state"),
        (
            409,
            "conflict: unable to remove repository reference (must force) - container 1 is using its referenced image",
            errors.FailedPrecondition,
            "image_in_use",
        ),
        (
            500,
            "Error processing tar file(exit status 1): write /big: no space left on device",
            errors.ResourceExhausted,
            "disk_full",
        ),
        (500, "write /x: Disk quota exceeded", errors.ResourceExhausted, "disk_full"),
        (
            500,
            "runc did not terminate successfully: unable to set memory limit to 5 (current usage: 9, peak usage: 9)",
            errors.FailedPrecondition,
            "size_below_usage",
        ),
        (500, "transport is closing: unavailable", errors.Unavailable, "engine_unavailable"),
        (500, "Cannot pause container sk-1: unable to freeze", errors.FailedPrecondition, "runtime_unfreezable"),
        (500, "something else", errors.Internal, "engine_error"),
    ],
)  # fmt: skip
def test_what_the_engine_refuses(
    status: int, message: str, kind: type[errors.SandkeeperError], code: str
) -> None:
    error = mapped(refusal(status, message), step="create sk-1")
    assert (type(error), error.code) == (kind, code)
    assert error.message.startswith("create sk-1: ")


@pytest.mark.parametrize(
    ("error", "admitted"),
    [
        (requests.ConnectionError(ProtocolError("aborted", FileNotFoundError(2, "none"))), "no"),
        (requests.ConnectionError(ProtocolError("aborted", ConnectionRefusedError(111, "none"))), "no"),
        (requests.ConnectionError(ProtocolError("aborted", PermissionError(13, "none"))), "no"),
        (requests.ConnectionError(ProtocolError("aborted", ConnectionResetError(104, "reset"))), "unknown"),
        (requests.ReadTimeout("60 s"), "unknown"),
        (BrokenPipeError(32, "pipe"), "unknown"),
        (DockerException("strange"), "unknown"),
    ],
)
def test_an_engine_that_does_not_answer_was_asked_or_not(error: Exception, admitted: str) -> None:
    found = mapped(error, step="commit sk-1")
    assert (type(found), found.code, found.admitted) == (errors.Unavailable, "engine_unavailable", admitted)


def test_our_own_errors_pass_unchanged() -> None:
    ours = errors.NotFound("none", code="runtime_missing")
    assert mapped(ours, step="x") is ours


def test_a_long_message_is_bounded() -> None:
    assert len(mapped(refusal(500, "x" * 100_000), step="x").message) < 1000


def test_an_error_that_is_its_own_cause_ends() -> None:
    error = requests.ConnectionError("loop")
    error.__context__ = requests.ConnectionError(error)
    assert mapped(error, step="x").code == "engine_unavailable"
