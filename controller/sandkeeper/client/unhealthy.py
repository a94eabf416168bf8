"""A failed start that the box's health explains: not the caller's command is wrong, the sandbox is.

Owns that one question. Light to import, because the command line's `exec` is; asked only after a failure.
"""

from __future__ import annotations

from collections.abc import Sequence

from sandkeeper.client.boxes import Boxes
from sandkeeper.core.errors import FailedPrecondition, SandkeeperError
from sandkeeper.core.ids import SandboxId

ASKED_CODES = frozenset({"exec_not_found", "exec_denied", "exec_failed"})
LOOK_S = 2.0


async def explained(
    error: SandkeeperError, *, argv: Sequence[str], boxes: Boxes, sandbox_id: SandboxId
) -> SandkeeperError:
    """Return `sandbox_unhealthy` when the box has no shell or can make no process, else `error` itself."""
    if error.code not in ASKED_CODES or error.admitted == "yes":
        return error
    try:
        box = await boxes.take(sandbox_id)
        vitals = await box.link.vitals(timeout_s=LOOK_S)
    except SandkeeperError:
        return error  # what failed first is what is to be told
    if not vitals.shell:
        cause = "/bin/sh is not there or cannot be executed"
    elif not vitals.can_fork:
        cause = f"no process can be made: {vitals.pids.current} of {vitals.pids.max}"
    else:
        return error
    return FailedPrecondition(
        f"{argv[0]}: {cause}",
        code="sandbox_unhealthy",
        advice="rebuild the sandbox from a snapshot, or start a new one",
        sandbox_id=error.sandbox_id,
        request_id=error.request_id,
        details={"cause": cause, "refusal": error.code},
    )
