"""One command in a sandbox of its own: made, filled, used and destroyed.

Owns that nothing is left of it, and that what is no result of the command is no result at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from sandkeeper.client.run_result import RunResult
from sandkeeper.client.sandbox import Sandbox
from sandkeeper.core.errors import Aborted
from sandkeeper.ports import Ports


async def run_once(
    creating: Awaitable[Sandbox],
    *,
    files: Mapping[str, bytes | str],
    working: Callable[[Sandbox], Awaitable[RunResult]],
    destroying: Callable[[Sandbox], Coroutine[Any, Any, None]],
    ports: Ports,
) -> RunResult:
    """Return what `working` makes of the sandbox; whatever happens, `destroying` has ended before this does."""
    sandbox = await creating
    try:
        for path, content in files.items():
            await sandbox.files.write(path, content)
        return certain(await working(sandbox), sandbox=sandbox)
    finally:
        ending = ports.spawn(destroying(sandbox), name=f"destroy {sandbox.id}")
        cancelled: asyncio.CancelledError | None = None
        while not ending.done():
            try:
                await asyncio.wait((ending,))
            except asyncio.CancelledError as cancel:
                cancelled = cancel
        failure = ending.exception()
        if cancelled is not None:
            raise cancelled from failure
        if failure is not None:
            raise failure


def certain(result: RunResult, *, sandbox: Sandbox) -> RunResult:
    """Return a result that is the command's own.

    Raises:
        Aborted: `run_interrupted`: the runtime was lost, or did not answer when the time was over.
    """
    is_lost = result.outcome in ("interrupted", "unknown") or result.reason == "host_deadline"
    if not is_lost:
        return result
    raise Aborted(
        f"what became of the command is not known: {result.reason or result.outcome} {result.message}".rstrip(),
        code="run_interrupted",
        advice="nothing of its sandbox is left: run it again if it changes nothing outside",
        admitted=result.admitted,
        sandbox_id=sandbox.id,
        details={"result": result.to_json()},
    )
