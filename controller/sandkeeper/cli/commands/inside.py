"""Looking into a sandbox from outside: what changed, what changes now, and a port of it on this machine."""

from __future__ import annotations

import asyncio
import json as jsonlib
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from sandkeeper.cli import options
from sandkeeper.cli.options import Json, SandboxRef, StateDir
from sandkeeper.cli.speech import run_async, say, say_json, speaking

if TYPE_CHECKING:
    from sandkeeper.client.diff import Diff

_SIGNS = {"added": "A", "removed": "D", "modified": "M", "metadata": "m"}


def diff(
    sandbox: SandboxRef,
    *,
    since: Annotated[str | None, typer.Option(help="A snapshot; default: its last one.")] = None,
    patch: Annotated[bool, typer.Option("--patch", "-p", help="Print a patch for `git apply`.")] = False,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Say what changed in a sandbox since a snapshot: Added, Deleted, Modified, m = mode or owner only."""
    from sandkeeper.client.keeper import Keeper

    async def work() -> Diff:
        async with Keeper.join(state_dir) as keeper:
            return await (await keeper.get(sandbox)).diff(since)

    with speaking(is_json=json):
        found = run_async(work())
        if json:
            changes = [{"path": change.path, "kind": change.kind} for change in found.changes]
            say_json({"since": found.since, "changes": changes, "patch": found.patch() if patch else None})
        elif patch:
            sys.stdout.write(found.patch())
        else:
            for change in found.changes:
                say(f"{_SIGNS[change.kind]} {change.path}")


def watch(
    sandbox: SandboxRef,
    path: Annotated[str, typer.Argument(help="A folder inside.")],
    *,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Folders below it too.")] = False,
    user: options.User = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Print what happens in a folder, until Ctrl-C; `overflow` says that some of it is missing."""
    from sandkeeper.client.keeper import Keeper

    async def work() -> None:
        async with Keeper.join(state_dir) as keeper:
            files = (await keeper.get(sandbox)).files
            async with aclosing(files.watch(path, recursive=recursive, user=user)) as events:
                async for event in events:
                    told = {"change": event.change, "name": event.name}
                    say(jsonlib.dumps(told) if json else f"{event.change:9} {event.name}".rstrip())
                    sys.stdout.flush()

    with speaking(is_json=json):
        run_async(work())


def forward(
    sandbox: SandboxRef,
    port: Annotated[int, typer.Argument(help="The port inside.")],
    *,
    local_port: Annotated[int, typer.Option("--local-port", "-p", help="Port here; 0 = any.", min=0)] = 0,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Pass connections to a port on this machine's loopback on to one inside, until Ctrl-C."""
    from sandkeeper.client.keeper import Keeper

    async def work() -> None:
        async with Keeper.join(state_dir) as keeper:
            found = await (await keeper.get(sandbox)).ports.forward(port, local_port=local_port)
            async with found:
                say(jsonlib.dumps({"host": found.host, "port": found.port}) if json else found.address)
                sys.stdout.flush()
                await asyncio.Event().wait()

    with speaking(is_json=json):
        run_async(work())
