"""`get_or_create`: one sandbox under a name, and what "the same parameters" means.

Pure: compares what is asked for with what the named sandbox was asked to be. Later changes of the sandbox, as a
resize, do not count: who asks again for what was asked first gets it.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from sandkeeper.core.admission import CreateRequest, Policy
from sandkeeper.core.errors import AlreadyExists
from sandkeeper.core.ids import Name, SandboxId
from sandkeeper.core.sizes import NAMED_SIZES
from sandkeeper.core.views import SandboxView

_OF_THE_CALLER = frozenset({"request_id", "name", "client_id", "client_ttl_s"})
"""Fields that say who asks, not what for."""


class GetOrCreate(CreateRequest):
    """A create that is content with the sandbox that has the name, if it was asked for with the same parameters."""

    name: Name


class GotOrCreated(BaseModel):
    """The sandbox that has the name, running, and whether this request created it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    sandbox: SandboxView
    is_new: bool


def parameters_of(request: CreateRequest) -> dict[str, Any]:
    """Return what a create asks for, JSON-safe, to be compared later."""
    return request.model_dump(mode="json", exclude=set(_OF_THE_CALLER))


def check_same(
    request: GetOrCreate, *, known: dict[str, Any] | None, sandbox_id: SandboxId, policy: Policy
) -> None:
    """Refuse when the sandbox that has the name was asked for with other parameters.

    Args:
        request: What is asked for now.
        known: `parameters_of` its create, as stored; fields it does not have yet count as their defaults.
        sandbox_id: That sandbox.
        policy: Says which image is meant when none is named.

    Raises:
        AlreadyExists: `name_taken`, with the first field that differs in its details; values are not shown.
    """
    field = _difference(request, known, policy=policy)
    if field is None:
        return
    raise AlreadyExists(
        f"the name {request.name} is taken by sandbox {sandbox_id}, whose {field} differs",
        code="name_taken",
        advice="ask with the parameters it was created with, choose another name, or destroy it",
        sandbox_id=sandbox_id,
        request_id=request.request_id,
        details={"field": field, "sandbox_id": sandbox_id},
    )


def _difference(request: GetOrCreate, known: dict[str, Any] | None, *, policy: Policy) -> str | None:
    if known is None:
        return "parameters"
    fields = {name: value for name, value in known.items() if name in CreateRequest.model_fields}
    before = CreateRequest.model_validate({**fields, "request_id": request.request_id})
    for name in CreateRequest.model_fields:
        is_same = _meant(request, name, policy=policy) == _meant(before, name, policy=policy)
        if name not in _OF_THE_CALLER and not is_same:
            return name
    return None


def _meant(request: BaseModel, name: str, *, policy: Policy) -> Any:
    """Return a field's value with the defaults that admission would choose."""
    value = getattr(request, name)
    if name == "size" and value is None:
        return NAMED_SIZES["basic"]
    if name == "image" and value is None and getattr(request, "snapshot", None) is None:
        return policy.default_image
    return value
