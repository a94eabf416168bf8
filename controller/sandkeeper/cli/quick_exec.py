"""The shortest way from a shell to a command in a sandbox.

Owns nothing but the choice of what not to import: `sandkeeper exec` has 0.3 s for everything, and the SDK's models
alone would take a third of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sandkeeper.client.boxes import Boxes
from sandkeeper.client.installation import Installation, default_state_dir
from sandkeeper.client.routing import Router
from sandkeeper.client.runs import MAX_OUTPUT_BYTES, OnOutput, Runner, RunOrder, checked_timeout_s
from sandkeeper.core.ids import RunId
from sandkeeper.ports import real_ports

if TYPE_CHECKING:
    from sandkeeper.client.run_result import RunResult


async def run_in(
    sandbox: str,
    argv: tuple[str, ...],
    *,
    state_dir: Path | None,
    run_id: str | None,
    cwd: str | None,
    env: Mapping[str, str],
    user: str | None,
    stdin: bytes | None,
    timeout_s: float,
    on_output: OnOutput | None,
) -> RunResult:
    """Run `argv` in the sandbox with this id or name; as `Sandbox.run`.

    Raises:
        SandkeeperError: As `Sandbox.run`, and NotFound when there is no such sandbox.
    """
    ports = real_ports()
    router = Router(Installation((state_dir or default_state_dir()).absolute()), ports=ports)
    boxes = Boxes(router)
    try:
        order = RunOrder(
            argv=argv,
            run_id=RunId(run_id or f"r{ports.new_token()}"),
            cwd=cwd,
            env=env,
            user=user,
            stdin=stdin,
            timeout_s=checked_timeout_s(timeout_s),
            send_bytes=None if on_output is not None else MAX_OUTPUT_BYTES,
        )
        sandbox_id = await router.locate_any(sandbox)
        return await Runner(boxes, ports=ports).run(sandbox_id, order, on_output=on_output)
    finally:
        await boxes.close()
        await router.close()
