"""The error map: one row each, and nothing the box says gets through unchecked."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from sandkeeper.boxd import errors

ROWS: list[tuple[dict[str, Any], int, str, str, str]] = [
    ({"code": "unavailable", "sandkeeper": {"code": "draining"}}, 503, "Unavailable", "draining", "no"),
    ({"code": "unavailable", "sandkeeper": {"code": "not_started"}}, 503, "Unavailable", "not_started", "no"),
    (
        {"code": "failed_precondition", "sandkeeper": {"code": "stale_epoch"}},
        409,
        "FailedPrecondition",
        "stale_epoch",
        "no",
    ),
    (
        {"code": "failed_precondition", "sandkeeper": {"code": "wrong_generation"}},
        409,
        "FailedPrecondition",
        "wrong_generation",
        "no",
    ),
    (
        {"code": "already_exists", "sandkeeper": {"code": "run_id_conflict"}},
        409,
        "AlreadyExists",
        "run_id_conflict",
        "no",
    ),
    (
        {"code": "unauthenticated", "sandkeeper": {"code": "unknown_user"}},
        401,
        "InvalidArgument",
        "unknown_user",
        "no",
    ),
    (
        {"code": "invalid_argument", "sandkeeper": {"code": "exec_not_found"}},
        400,
        "InvalidArgument",
        "exec_not_found",
        "no",
    ),
    (
        {"code": "resource_exhausted", "sandkeeper": {"code": "pids_exhausted"}},
        429,
        "ResourceExhausted",
        "pids_exhausted",
        "no",
    ),
    ({"code": "not_found", "message": "no /x"}, 404, "NotFound", "not_found", "no"),
    ({"code": "permission_denied"}, 403, "PermissionDenied", "permission_denied", "no"),
    ({"code": "unimplemented"}, 501, "FailedPrecondition", "unimplemented", "no"),
    ({"code": "data_loss"}, 500, "DataLoss", "data_loss", "no"),
    ({"code": "canceled"}, 499, "Aborted", "canceled", "unknown"),
    ({"code": "internal"}, 500, "Internal", "internal", "unknown"),
    ({"code": 404, "message": "missing"}, 404, "NotFound", "not_found", "no"),
    ({"code": 507, "message": "full"}, 507, "ResourceExhausted", "disk_full", "no"),
    ({"code": 401, "message": "who"}, 401, "PermissionDenied", "permission_denied", "no"),
    ({}, 418, "Internal", "internal", "unknown"),
    ({"code": "made_up"}, 0, "Internal", "made_up", "unknown"),
    ({"code": ["x"], "sandkeeper": "x"}, 400, "InvalidArgument", "invalid_argument", "no"),
    (
        {"code": "BAD CODE\n", "sandkeeper": {"code": "x" * 100}},
        400,
        "InvalidArgument",
        "invalid_argument",
        "no",
    ),
]


@pytest.mark.parametrize(("document", "status", "category", "code", "admitted"), ROWS)
def test_each_document_has_its_error(
    document: dict[str, Any], status: int, category: str, code: str, admitted: str
) -> None:
    error = errors.refusal(document, step="run r", status=status)
    assert (error.category, error.code, error.admitted) == (category, code, admitted)
    assert error.message.startswith("run r: ")
    assert pickle.loads(pickle.dumps(error)).to_wire() == error.to_wire()


def test_a_refusal_after_the_start_event_is_admitted() -> None:
    assert errors.refusal({"code": "unavailable"}, step="run r", admitted="yes").admitted == "yes"


def test_the_epoch_seen_comes_along() -> None:
    document = {"code": "failed_precondition", "sandkeeper": {"code": "stale_epoch", "epoch": 12}}
    assert errors.refusal(document, step="go").details == {"epoch": 12}


def test_what_the_box_says_is_cut_and_cleaned() -> None:
    error = errors.refusal({"code": "not_found", "message": "a\x1b[31m\r\nb" + "x" * 9000}, step="s")
    assert "\x1b" not in error.message
    assert "\n" not in error.message
    assert len(error.message) < 600


def test_broken_connections_say_what_they_know() -> None:
    assert errors.unreachable(ConnectionRefusedError(111, "refused"), step="s").admitted == "no"
    assert errors.connection_lost("reset", step="s", admitted="unknown").code == "connection_lost"
    assert errors.silent(1.0, step="s", admitted="unknown").category == "Unavailable"
    assert errors.invalid_answer("junk", step="s", admitted="yes").category == "Aborted"
