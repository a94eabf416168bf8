"""`sandkeeper exec`: the shortest way from a shell to a command in a sandbox.

Owns its own words (argparse) and the choice of what not to import: it has 0.3 s for everything, and the SDK's models
or a larger command-line library would take most of it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sandkeeper.boxd.events import RunLimits
from sandkeeper.cli.exit_status import NOT_KNOWN, conclude, pass_on
from sandkeeper.cli.speech import pairs, run_async, speaking
from sandkeeper.client.boxes import Boxes
from sandkeeper.client.installation import STATE_DIR_VARIABLE, Installation, default_state_dir
from sandkeeper.client.routing import Router
from sandkeeper.client.run_order import MAX_OUTPUT_BYTES, RunOrder, checked_timeout_s, limits_of
from sandkeeper.client.run_sight import OnOutput
from sandkeeper.client.runs import Runner
from sandkeeper.core.ids import RunId, SandboxId
from sandkeeper.ports import Ports, real_ports

if TYPE_CHECKING:
    from sandkeeper.client.run_result import RunResult

TIMEOUT_S = 300.0


def main(words: Sequence[str]) -> None:
    """Run `exec` with these words; ends the process with its exit status."""
    given = _parser().parse_args(words)
    state_dir = given.state_dir or os.environ.get(STATE_DIR_VARIABLE) or None
    with speaking(is_json=given.json, failed=NOT_KNOWN):
        timeout_s: float = TIMEOUT_S if given.timeout is None else given.timeout
        if given.stdin or given.terminal or given.detach:
            from sandkeeper.cli.live_exec import live

            is_endless = given.timeout is None and (given.terminal or given.detach)
            live(
                given,
                state_dir=Path(state_dir) if state_dir else None,
                timeout_s=None if is_endless else timeout_s,
            )
            return
        result = run_async(
            run_in(
                given.sandbox,
                (given.program, *given.args),
                state_dir=Path(state_dir) if state_dir else None,
                run_id=given.request_id,
                cwd=given.cwd,
                env=pairs(given.env, option="--env"),
                user=given.user,
                timeout_s=timeout_s,
                limits=limits_of(quiet_timeout_s=given.quiet_timeout, cpu_limit_s=given.cpu_limit),
                on_output=None if given.json else pass_on,
            )
        )
        conclude(result, is_json=given.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sandkeeper exec",
        description="Run a command in a sandbox, pass on its output as it comes, and exit with its code.",
        epilog="Exit status: the command's; 124 on a timeout; 128+n when signal n ended it; 125 when Sandkeeper "
        "refused, cannot say, or lost output; 2 on wrong usage.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-w", "--cwd", help="folder inside")
    add("-e", "--env", action="append", default=[], metavar="KEY=VALUE", help="may be repeated")
    add("-u", "--user", help="user inside; default: the image's")
    add(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="the process tree is killed after (300; with -t or -d never)",
    )
    add("--quiet-timeout", type=float, metavar="SECONDS", help="killed after so long without any output")
    add("--cpu-limit", type=float, metavar="SECONDS", help="killed when the tree has used so much CPU time")
    add("-i", "--stdin", action="store_true", help="pass this command's standard input on to it")
    add("-t", "--terminal", action="store_true", help="run it on a terminal, with the keys typed here")
    add("-d", "--detach", action="store_true", help="leave it going and print its id for `attach` and `kill`")
    add("--request-id", metavar="ID", help="the same id attaches to the same run")
    add("--state-dir", metavar="FOLDER", help=f"the installation's folder ({STATE_DIR_VARIABLE})")
    add("--json", action="store_true", help="print the result as JSON; errors are JSON on stderr")
    add("sandbox", metavar="SANDBOX", help="its id or its name")
    add("program", metavar="COMMAND", help="the program to run")
    add("args", nargs=argparse.REMAINDER, metavar="ARGS", help="its arguments, options too")
    return parser


async def run_in(
    sandbox: str,
    argv: tuple[str, ...],
    *,
    state_dir: Path | None,
    run_id: str | None,
    cwd: str | None,
    env: Mapping[str, str],
    user: str | None,
    timeout_s: float,
    limits: RunLimits | None,
    on_output: OnOutput | None,
) -> RunResult:
    """Run `argv` in the sandbox with this id or name; as `Sandbox.run`.

    Raises:
        SandkeeperError: As `Sandbox.run`, and NotFound when there is no such sandbox.
    """
    async with reached(sandbox, state_dir=state_dir) as (sandbox_id, boxes, ports):
        order = RunOrder(
            argv=argv,
            run_id=RunId(run_id or f"r{ports.new_token()}"),
            cwd=cwd,
            env=env,
            user=user,
            timeout_s=checked_timeout_s(timeout_s),
            limits=limits,
            send_bytes=None if on_output is not None else MAX_OUTPUT_BYTES,
        )
        return await Runner(boxes, ports=ports).run(sandbox_id, order, on_output=on_output)


@asynccontextmanager
async def reached(sandbox: str, *, state_dir: Path | None) -> AsyncIterator[tuple[SandboxId, Boxes, Ports]]:
    """Find a sandbox by its id or name, and give all connections up afterwards.

    Raises:
        NotFound: There is none.
    """
    ports = real_ports()
    router = Router(Installation((state_dir or default_state_dir()).absolute()), ports=ports)
    boxes = Boxes(router)
    try:
        yield await router.locate_any(sandbox), boxes, ports
    finally:
        await boxes.close()
        await router.close()
