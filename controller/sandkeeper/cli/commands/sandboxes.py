"""Commands about whole sandboxes: create, look, and the verbs of their lifecycle."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from sandkeeper.cli import options
from sandkeeper.cli.options import Json, SandboxRef, StateDir
from sandkeeper.cli.speech import age, leave, pairs, run_async, say, say_error, say_json, say_table, speaking


def create(
    *,
    image: options.Image = None,
    snapshot: options.FromSnapshot = None,
    name: Annotated[str | None, typer.Option(help="A name of your own.")] = None,
    size: options.SizeName = None,
    vcpu: options.Vcpu = None,
    memory_mib: options.MemoryMib = None,
    pids: options.Pids = None,
    env: options.Env = None,
    user: options.User = None,
    workdir: Annotated[str | None, typer.Option(help="Default folder inside.")] = None,
    on_lost: Annotated[str, typer.Option(help="rebuild, stop or ask.")] = "rebuild",
    lifetime_s: Annotated[float | None, typer.Option(help="Destroyed after this many seconds.")] = None,
    label: options.Labels = None,
    request_id: Annotated[
        str | None, typer.Option(help="A repeat with the same id gets the same sandbox.")
    ] = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Create a sandbox and print its id when it runs. It stays until `rm` or the end of its lifetime."""
    from sandkeeper.client.keeper import Keeper

    async def make() -> Any:
        async with Keeper.join(state_dir) as keeper:
            sandbox = await keeper.create(
                image=image,
                snapshot=snapshot,
                name=name,
                size=options.chosen_size(size, vcpu=vcpu, memory_mib=memory_mib, pids=pids),
                env=pairs(env or [], option="--env"),
                user=user,
                workdir=workdir,
                on_lost=on_lost,
                lifetime_s=lifetime_s,
                labels=pairs(label or [], option="--label"),
                detached=True,
                request_id=request_id,
            )
            return await sandbox.describe()

    with speaking(is_json=json):
        seen = run_async(make())
        if json:
            say_json(seen.model_dump(mode="json"))
        else:
            say(seen.id)


def ps(
    *,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Destroyed ones too.")] = False,
    label: options.Labels = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Ids only.")] = False,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """List the sandboxes."""
    from sandkeeper.client.keeper import Keeper
    from sandkeeper.core.record import Phase

    async def look() -> Any:
        async with Keeper.join(state_dir) as keeper:
            wanted = [phase.value for phase in Phase] if all_ else None
            return await keeper.listed(wanted, labels=pairs(label or [], option="--label"))

    with speaking(is_json=json):
        found = run_async(look())
        if json:
            say_json([seen.model_dump(mode="json") for seen in found])
        elif quiet:
            for seen in found:
                say(seen.id)
        else:
            say_table(_TITLES, [_row(seen) for seen in found])


def describe(sandbox: SandboxRef, *, state_dir: StateDir = None, json: Json = False) -> None:
    """Say all that is recorded of a sandbox."""

    def show(seen: Any) -> None:
        for key, value in seen.model_dump(mode="json").items():
            say(f"{key:17} {value}")

    _with(sandbox, state_dir, json, lambda handle: handle.describe(), show)


def start(sandbox: SandboxRef, *, state_dir: StateDir = None, json: Json = False) -> None:
    """Start a stopped sandbox, with the files it had at the stop."""
    _with(sandbox, state_dir, json, lambda handle: handle.start())


def stop(
    sandbox: SandboxRef,
    *,
    keep: Annotated[str, typer.Option(help="snapshot, files or nothing.")] = "snapshot",
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Stop a sandbox, keeping a snapshot, its files, or nothing."""
    _with(sandbox, state_dir, json, lambda handle: handle.stop(keep=keep))


def pause(sandbox: SandboxRef, *, state_dir: StateDir = None, json: Json = False) -> None:
    """Freeze a sandbox's processes."""
    _with(sandbox, state_dir, json, lambda handle: handle.pause())


def resume(sandbox: SandboxRef, *, state_dir: StateDir = None, json: Json = False) -> None:
    """Let a frozen sandbox's processes go on."""
    _with(sandbox, state_dir, json, lambda handle: handle.resume())


def resize(
    sandbox: SandboxRef,
    *,
    size: options.SizeName = None,
    vcpu: options.Vcpu = None,
    memory_mib: options.MemoryMib = None,
    pids: options.Pids = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Change a sandbox's limits."""
    with speaking(is_json=json):
        wanted = options.chosen_size(size, vcpu=vcpu, memory_mib=memory_mib, pids=pids)
    _with(sandbox, state_dir, json, lambda handle: handle.resize(wanted))


def rm(
    sandboxes: Annotated[list[str], typer.Argument(metavar="SANDBOX...", help="Ids or names.")],
    *,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Destroy sandboxes for good; their snapshots stay. 1 when one could not be."""
    from sandkeeper.client.keeper import Keeper
    from sandkeeper.core.errors import SandkeeperError

    async def destroy() -> tuple[list[str], list[SandkeeperError]]:
        gone: list[str] = []
        failures: list[SandkeeperError] = []
        async with Keeper.join(state_dir) as keeper:
            for word in sandboxes:
                try:
                    handle = await keeper.get(word)
                    await handle.destroy()
                    gone.append(handle.id)
                except SandkeeperError as error:
                    failures.append(error)
        return gone, failures

    with speaking(is_json=json):
        gone, failures = run_async(destroy())
        if json:
            say_json({"destroyed": gone, "failed": [error.to_wire() for error in failures]})
        else:
            for sandbox_id in gone:
                say(sandbox_id)
        for error in failures:
            say_error(error, is_json=json)
        if failures:
            leave(1)


_TITLES = ("ID", "NAME", "PHASE", "GEN", "IMAGE", "SIZE", "AGE")


def _row(seen: Any) -> tuple[str, ...]:
    seconds = (datetime.now(UTC) - seen.created_at).total_seconds()
    size = f"{seen.size.name} ({seen.size.vcpu:g} vCPU, {seen.size.memory_mib} MiB)"
    return (seen.id, seen.name or "-", seen.phase.value, str(seen.generation), seen.image, size, age(seconds))


def _with(
    word: str,
    state_dir: Any,
    is_json: bool,
    act: Callable[[Any], Awaitable[Any]],
    show: Callable[[Any], None] | None = None,
) -> None:
    from sandkeeper.client.keeper import Keeper

    async def work() -> Any:
        async with Keeper.join(state_dir) as keeper:
            return await act(await keeper.get(word))

    with speaking(is_json=is_json):
        seen = run_async(work())
        if is_json:
            say_json(seen.model_dump(mode="json"))
        elif show is not None:
            show(seen)
        else:
            say(f"{seen.id}  {seen.phase.value}  generation {seen.generation}")
