"""`up`, `down`, `status`: the supervisor of this machine's installation."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sandkeeper.cli.options import Json, StateDir
from sandkeeper.cli.speech import leave, note, run_async, say, say_json, say_table, speaking


def up(
    *,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay in the foreground.")] = False,
    owners: Annotated[int | None, typer.Option(help="Owner processes; at least two.")] = None,
    sandboxes_per_owner: Annotated[int | None, typer.Option(help="Sandboxes an owner takes.")] = None,
    engine: Annotated[str | None, typer.Option(help="`docker`, or unix:///path of an engine.")] = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Start the supervisor and return when it is ready; does nothing when it runs already."""
    from sandkeeper.client.installation import Installation, default_state_dir
    from sandkeeper.client.local import ensure_up, server_config, server_module
    from sandkeeper.ports import real_ports

    given = {"owners": owners, "sandboxes_per_owner": sandboxes_per_owner, "engine": engine}
    config = {key: value for key, value in given.items() if value is not None}
    installation = Installation((state_dir or default_state_dir()).absolute())
    with speaking(is_json=json):
        if foreground:
            server_module("sandkeeper.owner.supervisor").run_up(server_config(installation, config=config))
            return
        was_up = installation.is_up()
        run_async(ensure_up(installation, config=config, ports=real_ports()))
        if json:
            say_json({"state_dir": str(installation.state_dir), "was_up": was_up})
        else:
            say(f"{'already up' if was_up else 'up'}: {installation.state_dir}")


def down(*, state_dir: StateDir = None, json: Json = False) -> None:
    """Stop the supervisor, the owners and Ray; sandboxes go on running and are adopted by the next `up`."""
    from sandkeeper.client.installation import Installation, default_state_dir
    from sandkeeper.client.local import end_up
    from sandkeeper.ports import real_ports

    installation = Installation((state_dir or default_state_dir()).absolute())
    with speaking(is_json=json):
        was_up = run_async(end_up(installation, ports=real_ports()))
        if json:
            say_json({"state_dir": str(installation.state_dir), "was_up": was_up})
        else:
            say(f"{'down' if was_up else 'was not up'}: {installation.state_dir}")


def status(*, state_dir: StateDir = None, json: Json = False) -> None:
    """Say what runs: the directory, the owners with their epochs, the images. 1 when nothing does."""
    from sandkeeper.client.installation import Installation, default_state_dir
    from sandkeeper.client.keeper import Keeper

    async def ask() -> Any:
        async with Keeper.join(state_dir) as keeper:
            return await keeper.status()

    with speaking(is_json=json):
        seen = run_async(ask())
        if json:
            say_json(seen.model_dump(mode="json"))
            return
        say(f"installation {seen.installation_id} on machine {seen.machine_id}")
        say(f"engine       {seen.engine}")
        say(f"directory    pid {seen.directory_pid}")
        say(f"images       {', '.join(seen.images) or 'none'}")
        say(f"sandboxes    {seen.sandbox_count}")
        rows = [
            (owner.owner_id, str(owner.epoch), str(owner.pid or "-"), str(owner.sandbox_count))
            for owner in seen.owners
        ]
        say_table(("OWNER", "EPOCH", "PID", "SANDBOXES"), rows)
        if any(owner.pid is None for owner in seen.owners):
            is_up = Installation((state_dir or default_state_dir()).absolute()).is_up()
            note(
                "an owner is away; it is being brought back"
                if is_up
                else "an owner is away and no supervisor runs: `sandkeeper up`"
            )
            leave(1)
