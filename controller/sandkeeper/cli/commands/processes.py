"""Processes that were left going in a sandbox: list them, talk with one again, kill one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sandkeeper.cli.exit_status import NOT_KNOWN, conclude
from sandkeeper.cli.options import Json, SandboxRef, StateDir
from sandkeeper.cli.speech import leave, note, run_async, say_json, say_table, speaking

if TYPE_CHECKING:
    from sandkeeper.boxd.events import RunListing
    from sandkeeper.client.run_result import RunResult

ProcessRef = Annotated[str, typer.Argument(metavar="PROCESS", help="Its id, as `processes` shows it.")]


def processes(sandbox: SandboxRef, *, state_dir: StateDir = None, json: Json = False) -> None:
    """List what runs in a sandbox."""
    from sandkeeper.client.keeper import Keeper

    async def work() -> tuple[RunListing, ...]:
        async with Keeper.join(state_dir) as keeper:
            return await (await keeper.get(sandbox)).processes.list()

    with speaking(is_json=json):
        found = run_async(work())
        if json:
            say_json(
                [
                    {"id": each.run_id, "pid": each.pid, "argv": each.argv, "has_terminal": each.has_terminal}
                    for each in found
                ]
            )
        else:
            rows = [(each.run_id or "-", str(each.pid), " ".join(each.argv)) for each in found]
            say_table(("ID", "PID", "COMMAND"), rows)


def attach(
    sandbox: SandboxRef,
    process: ProcessRef,
    *,
    offset: Annotated[int, typer.Option(help="First byte of its output wanted.", min=0)] = 0,
    stdin: Annotated[bool, typer.Option("--stdin", "-i", help="Pass standard input on to it.")] = False,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Show a process' output from an offset on, to its end; exit with its code. Ctrl-C leaves it going."""
    from sandkeeper.cli.interactive import converse
    from sandkeeper.client.keeper import Keeper
    from sandkeeper.ports import real_ports

    async def work() -> RunResult:
        async with Keeper.join(state_dir) as keeper:
            found = await (await keeper.get(sandbox)).processes.attach(process, offset=offset)
            return await converse(
                found,
                has_stdin=stdin,
                has_terminal=found.has_terminal,
                is_shown=not json,
                ports=real_ports(),
            )

    with speaking(is_json=json, failed=NOT_KNOWN):
        conclude(run_async(work()), is_json=json)


def kill(
    sandbox: SandboxRef,
    process: ProcessRef,
    *,
    signal: Annotated[
        str | None, typer.Option("--signal", "-s", help="Send this to its group instead of killing its tree.")
    ] = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Kill a process and all that it started; exit status 1 if some of it could not be stopped."""
    from sandkeeper.client.keeper import Keeper

    async def work() -> tuple[int, ...]:
        async with Keeper.join(state_dir) as keeper:
            found = await (await keeper.get(sandbox)).processes.attach(process)
            if signal is None:
                return await found.kill()
            await found.signal(int(signal) if signal.isdecimal() else signal)
            return ()

    with speaking(is_json=json):
        left = run_async(work())
        if json:
            say_json({"not_stopped": list(left)})
        elif left:
            note(f"still going, could not be stopped: {', '.join(map(str, left))}")
        leave(1 if left else 0)
