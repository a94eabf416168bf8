"""`snapshot take|list|delete` and `fork`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sandkeeper.cli import options
from sandkeeper.cli.commands import snapshot_keeping
from sandkeeper.cli.options import Json, SandboxRef, StateDir
from sandkeeper.cli.progress import count_bar
from sandkeeper.cli.speech import pairs, run_async, say, say_json, say_table, size_text, speaking

app = typer.Typer(no_args_is_help=True, help="Snapshots: immutable images of a sandbox's files.")
app.add_typer(snapshot_keeping.app)
SnapshotRef = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="Its id.")]


@app.command("take")
def take(
    sandbox: SandboxRef,
    *,
    name: Annotated[str | None, typer.Option(help="A name for it.")] = None,
    keep_s: Annotated[float | None, typer.Option(help="Seconds to keep it; default: the policy's.")] = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Take a snapshot and print its id."""
    from sandkeeper.client.keeper import Keeper

    async def work() -> Any:
        async with Keeper.join(state_dir) as keeper:
            return await (await keeper.get(sandbox)).snapshot(name, keep_s=keep_s)

    with speaking(is_json=json):
        taken = run_async(work())
        if json:
            say_json(taken.model_dump(mode="json"))
        else:
            say(taken.id)


@app.command("list")
def list_snapshots(*, state_dir: StateDir = None, json: Json = False) -> None:
    """List the snapshots."""
    from sandkeeper.client.keeper import Keeper

    async def work() -> Any:
        async with Keeper.join(state_dir) as keeper:
            return await keeper.snapshots.list()

    with speaking(is_json=json):
        found = run_async(work())
        if json:
            say_json([snapshot.model_dump(mode="json") for snapshot in found])
            return
        rows = [
            (
                one.id,
                one.name or "-",
                one.sandbox_id,
                size_text(one.delta_bytes),
                f"{one.created_at:%F %T}",
                one.state,
                "never" if one.expires_at is None else f"{one.expires_at:%F %T}",
            )
            for one in found
        ]
        say_table(("ID", "NAME", "SANDBOX", "DELTA", "CREATED (UTC)", "STATE", "EXPIRES (UTC)"), rows)


@app.command("delete")
def delete(snapshot: SnapshotRef, *, state_dir: StateDir = None, json: Json = False) -> None:
    """Delete a snapshot; refused while something starts from it."""
    from sandkeeper.client.keeper import Keeper

    async def work() -> None:
        async with Keeper.join(state_dir) as keeper:
            await keeper.snapshots.delete(snapshot)

    with speaking(is_json=json):
        run_async(work())
        if json:
            say_json({"deleted": snapshot})
        else:
            say(snapshot)


def fork(
    snapshot: SnapshotRef,
    *,
    count: Annotated[int, typer.Option("--count", "-n", help="How many.")] = 1,
    size: options.SizeName = None,
    vcpu: options.Vcpu = None,
    memory_mib: options.MemoryMib = None,
    label: options.Labels = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Create sandboxes from a snapshot, all or none, and print their ids."""
    from sandkeeper.client.keeper import Keeper

    async def work() -> Any:
        chosen = options.chosen_size(size, vcpu=vcpu, memory_mib=memory_mib)
        labels = pairs(label or [], option="--label")
        async with Keeper.join(state_dir) as keeper:
            with count_bar("forking", total=count, is_json=json) as advance:
                return await keeper.fork(
                    snapshot,
                    count,
                    size=chosen,
                    labels=labels,
                    detached=True,
                    on_made=lambda _made: advance(),
                )

    with speaking(is_json=json):
        made = run_async(work())
        if json:
            say_json([sandbox.id for sandbox in made])
        else:
            for sandbox in made:
                say(sandbox.id)
