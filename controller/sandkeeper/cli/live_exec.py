"""`exec` with input, on a terminal, or left going: the command is a process of its own, and talked with.

Owns what a Ctrl-C means then: the process is killed, as for a plain `exec`.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from sandkeeper.cli.exit_status import conclude
from sandkeeper.cli.interactive import converse, terminal_size
from sandkeeper.cli.quick_exec import reached
from sandkeeper.cli.speech import pairs, run_async, say, say_json
from sandkeeper.client.process import Process
from sandkeeper.client.processes import SandboxProcesses
from sandkeeper.client.run_result import RunResult
from sandkeeper.core.errors import InvalidArgument


def live(given: argparse.Namespace, *, state_dir: Path | None, timeout_s: float | None) -> None:
    """Start what `exec` was given; talk with it to its end, or print its id and leave it going."""
    if given.detach and (given.stdin or given.terminal):
        raise InvalidArgument("-d leaves it going: there is nobody to talk with it", code="option_invalid")
    done = run_async(_live(given, state_dir=state_dir, timeout_s=timeout_s))
    if isinstance(done, RunResult):
        conclude(done, is_json=given.json)
    elif given.json:
        say_json({"process_id": done})
    else:
        say(done)


async def _live(
    given: argparse.Namespace, *, state_dir: Path | None, timeout_s: float | None
) -> RunResult | str:
    async with reached(given.sandbox, state_dir=state_dir) as (sandbox_id, boxes, ports):
        process = await SandboxProcesses(sandbox_id, boxes=boxes, ports=ports).spawn(
            (given.program, *given.args),
            cwd=given.cwd,
            env=pairs(given.env, option="--env"),
            user=given.user,
            stdin_open=given.stdin and not given.terminal,
            terminal=terminal_size() if given.terminal else None,
            timeout_s=timeout_s,
            quiet_timeout_s=given.quiet_timeout,
            cpu_limit_s=given.cpu_limit,
            request_id=given.request_id,
        )
        if given.detach:
            return str(process.id)
        try:
            return await converse(
                process,
                has_stdin=given.stdin or given.terminal,
                has_terminal=given.terminal,
                is_shown=not given.json,
                ports=ports,
            )
        except asyncio.CancelledError:
            await asyncio.shield(_killed(process))
            raise


async def _killed(process: Process) -> None:
    await process.kill()
