"""`exec` in a sandbox that is there, `run` in one made for the command. Their exit status: see `exit_status.py`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from sandkeeper.cli import options
from sandkeeper.cli.exit_status import NOT_KNOWN, conclude, pass_on
from sandkeeper.cli.options import Json, StateDir
from sandkeeper.cli.speech import pairs, run_async, speaking

if TYPE_CHECKING:
    from sandkeeper.client.run_result import RunResult

Cwd = Annotated[str | None, typer.Option("--cwd", "-w", help="Folder inside.")]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds; the whole process tree is killed after.")]
Stdin = Annotated[bool, typer.Option("--stdin", "-i", help="Give this command's standard input to it.")]


def exec_(context: typer.Context) -> None:
    """Run a command in a sandbox, pass on its output as it comes, and exit with its code."""
    from sandkeeper.cli.quick_exec import main

    main(context.args)


def run(
    command: options.Command,
    *,
    image: options.Image = None,
    snapshot: options.FromSnapshot = None,
    size: options.SizeName = None,
    vcpu: options.Vcpu = None,
    memory_mib: options.MemoryMib = None,
    cwd: Cwd = None,
    env: options.Env = None,
    user: options.User = None,
    timeout: Timeout = 300.0,
    stdin: Stdin = False,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Run a command in a sandbox made for it and destroyed after it; exit with its code."""
    from sandkeeper.client.keeper import Keeper

    async def once() -> RunResult:
        async with Keeper.join(state_dir) as keeper:
            sandbox = await keeper.create(
                image=image,
                snapshot=snapshot,
                size=options.chosen_size(size, vcpu=vcpu, memory_mib=memory_mib),
                on_lost="stop",
            )
            return await sandbox.run(
                command,
                cwd=cwd,
                env=pairs(env or [], option="--env"),
                user=user,
                stdin=sys.stdin.buffer.read() if stdin else None,
                timeout_s=timeout,
                on_output=None if json else pass_on,
            )

    with speaking(is_json=json, failed=NOT_KNOWN):
        conclude(run_async(once()), is_json=json)
