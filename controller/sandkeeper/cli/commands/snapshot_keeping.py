"""`snapshot pin|unpin|gc|export|import`: how long snapshots stay, and their way off the engine and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sandkeeper.cli.options import Json, StateDir
from sandkeeper.cli.speech import run_async, say, say_json, say_table, size_text, speaking

app = typer.Typer()
SnapshotRef = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="Its id.")]


@app.command("pin")
def pin(
    snapshot: SnapshotRef,
    *,
    keep_s: Annotated[
        float | None, typer.Option(help="Seconds after its last use; default: for ever.")
    ] = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Keep a snapshot for ever, or for a time after its last use."""
    _say_kept(state_dir, lambda snapshots: snapshots.pin(snapshot, keep_s=keep_s), is_json=json)


@app.command("unpin")
def unpin(snapshot: SnapshotRef, *, state_dir: StateDir = None, json: Json = False) -> None:
    """Keep a snapshot for the policy's time after its last use."""
    _say_kept(state_dir, lambda snapshots: snapshots.unpin(snapshot), is_json=json)


@app.command("gc")
def gc(
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would go and why; remove nothing.")
    ] = False,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Remove expired snapshots and what no record claims at the engine."""
    with speaking(is_json=json):
        report = _asked(state_dir, lambda snapshots: snapshots.collect(dry_run=dry_run))
        if json:
            say_json(report.model_dump(mode="json"))
            return
        rows = [
            (item.kind, item.name, size_text(item.size_bytes) if item.size_bytes else "-", item.why)
            for item in report.items
        ]
        say_table(("KIND", "NAME", "SIZE", "WHY"), rows)


@app.command("export")
def export(
    snapshot: SnapshotRef,
    path: Annotated[Path, typer.Argument(help="File to write.")],
    *,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Write a snapshot into one file and print its hash."""
    with speaking(is_json=json):
        done = _asked(state_dir, lambda snapshots: snapshots.export(snapshot, path, overwrite=overwrite))
        if json:
            say_json(done.model_dump(mode="json"))
        else:
            say(f"{done.sha256}  {done.path}")


@app.command("import")
def import_(
    path: Annotated[Path, typer.Argument(help="File that `snapshot export` wrote.")],
    *,
    name: Annotated[str | None, typer.Option(help="A name for it; default: the one it had.")] = None,
    keep_s: Annotated[float | None, typer.Option(help="Seconds to keep it; default: the policy's.")] = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Make a snapshot of an exported file and print its id."""
    with speaking(is_json=json):
        made = _asked(state_dir, lambda snapshots: snapshots.import_(path, name=name, keep_s=keep_s))
        if json:
            say_json(made.model_dump(mode="json"))
        else:
            say(made.id)


def _say_kept(state_dir: Path | None, ask: Any, *, is_json: bool) -> None:
    with speaking(is_json=is_json):
        kept = _asked(state_dir, ask)
        if is_json:
            say_json(kept.model_dump(mode="json"))
        else:
            say("kept for ever" if kept.expires_at is None else f"kept until {kept.expires_at:%F %T} UTC")


def _asked(state_dir: Path | None, ask: Any) -> Any:
    from sandkeeper.client.keeper import Keeper

    async def work() -> Any:
        async with Keeper.join(state_dir) as keeper:
            return await ask(keeper.snapshots)

    return run_async(work())
