"""`sandkeeper exec`: the shortest way from a shell to a command in a sandbox.

Owns its own words (argparse) and the choice of what not to import: it has 0.3 s for everything, and the SDK's models
or a larger command-line library would take most of it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sandkeeper.cli.exit_status import NOT_KNOWN, conclude, pass_on
from sandkeeper.cli.speech import pairs, run_async, speaking
from sandkeeper.client.boxes import Boxes
from sandkeeper.client.installation import STATE_DIR_VARIABLE, Installation, default_state_dir
from sandkeeper.client.routing import Router
from sandkeeper.client.run_order import MAX_OUTPUT_BYTES, RunOrder, checked_timeout_s
from sandkeeper.client.run_sight import OnOutput
from sandkeeper.client.runs import Runner
from sandkeeper.core.ids import RunId
from sandkeeper.ports import real_ports

if TYPE_CHECKING:
    from sandkeeper.client.run_result import RunResult


def main(words: Sequence[str]) -> None:
    """Run `exec` with these words; ends the process with its exit status."""
    given = _parser().parse_args(words)
    state_dir = given.state_dir or os.environ.get(STATE_DIR_VARIABLE) or None
    with speaking(is_json=given.json, failed=NOT_KNOWN):
        result = run_async(
            run_in(
                given.sandbox,
                (given.program, *given.args),
                state_dir=Path(state_dir) if state_dir else None,
                run_id=given.request_id,
                cwd=given.cwd,
                env=pairs(given.env, option="--env"),
                user=given.user,
                stdin=sys.stdin.buffer.read() if given.stdin else None,
                timeout_s=given.timeout,
                on_output=None if given.json else pass_on,
            )
        )
        conclude(result, is_json=given.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sandkeeper exec",
        description="Run a command in a sandbox, pass on its output as it comes, and exit with its code.",
        epilog="Exit status: the command's; 124 on a timeout; 128+n when signal n ended it; 125 when Sandkeeper "
        "refused or cannot say; 2 on wrong usage.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-w", "--cwd", help="folder inside")
    add("-e", "--env", action="append", default=[], metavar="KEY=VALUE", help="may be repeated")
    add("-u", "--user", help="user inside; default: the image's")
    add(
        "--timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="the process tree is killed after (300)",
    )
    add("-i", "--stdin", action="store_true", help="give this command's standard input to it")
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
