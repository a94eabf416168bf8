"""`exec` in a sandbox that is there, `run` in one made for the command.

Exit status: the command's own; 128 + n when signal n ended it (137 for a memory kill); 124 when its time was over;
125 when Sandkeeper refused or cannot say what came of it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandkeeper.cli import options
from sandkeeper.cli.options import Json, SandboxRef, StateDir
from sandkeeper.cli.speech import leave, note, pairs, run_async, say_json, speaking

if TYPE_CHECKING:
    from sandkeeper.client.run_result import RunResult

TIMED_OUT = 124
NOT_KNOWN = 125
SIGNALED = 128

Cwd = Annotated[str | None, typer.Option("--cwd", "-w", help="Folder inside.")]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds; the whole process tree is killed after.")]
Stdin = Annotated[bool, typer.Option("--stdin", "-i", help="Give this command's standard input to it.")]
RequestId = Annotated[str | None, typer.Option(help="The same id attaches to the same run.")]


def exec_(
    sandbox: SandboxRef,
    command: options.Command,
    *,
    cwd: Cwd = None,
    env: options.Env = None,
    user: options.User = None,
    timeout: Timeout = 300.0,
    stdin: Stdin = False,
    request_id: RequestId = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Run a command in a sandbox, pass on its output as it comes, and exit with its code."""
    from sandkeeper.cli.quick_exec import run_in

    with speaking(is_json=json, failed=NOT_KNOWN):
        result = run_async(
            run_in(
                sandbox,
                tuple(command),
                state_dir=state_dir,
                run_id=request_id,
                cwd=cwd,
                env=pairs(env or [], option="--env"),
                user=user,
                stdin=sys.stdin.buffer.read() if stdin else None,
                timeout_s=timeout,
                on_output=None if json else pass_on,
            )
        )
        conclude(result, is_json=json)


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


def pass_on(stream: str, data: bytes) -> None:
    """Write a piece of output where it belongs, at once."""
    out: Any = sys.stdout.buffer if stream == "stdout" else sys.stderr.buffer
    out.write(data)
    out.flush()


def conclude(result: RunResult, *, is_json: bool) -> None:
    """Print what is left to say and exit with the status that the result stands for."""
    if is_json:
        say_json(result.to_json())
    elif result.outcome == "timeout":
        note(f"timeout: killed after {result.duration_ms / 1000:.1f} s")
    elif result.outcome in ("interrupted", "unknown"):
        note(f"{result.outcome}: no exit code is known (admitted: {result.admitted}): {result.message}")
    elif result.oom_killed:
        note("killed: it went over the memory limit")
    if result.not_stopped and not is_json:
        note(f"still going, could not be stopped: {', '.join(map(str, result.not_stopped))}")
    leave(exit_status(result))


def exit_status(result: RunResult) -> int:
    """Return the exit status that stands for a result."""
    match result.outcome:
        case "exited":
            return NOT_KNOWN if result.exit_code is None else result.exit_code
        case "signaled":
            return SIGNALED + result.signal
        case "timeout":
            return TIMED_OUT
        case _:
            return NOT_KNOWN
