"""`images list` and `images build`: the shipped images at the engine."""

from __future__ import annotations

from typing import Annotated

import typer

from sandkeeper.cli.options import Json, StateDir
from sandkeeper.cli.speech import say, say_json, say_table, speaking

app = typer.Typer(no_args_is_help=True, help="The shipped images.")


@app.command("list")
def list_images(*, json: Json = False) -> None:
    """Say which shipped images are at the engine."""
    from sandkeeper.client.local import server_module

    with speaking(is_json=json):
        server_module("docker", is_loaded=False)
        import os

        from sandkeeper.containers.endpoint import connect, find_endpoint
        from sandkeeper.containers.images import shipped_tags

        client = connect(find_endpoint(os.environ))
        try:
            tags = shipped_tags(client)
        finally:
            client.close()
        if json:
            say_json({name: list(found) for name, found in tags.items()})
        else:
            say_table(
                ("IMAGE", "TAG"), [(name, ", ".join(found) or "missing") for name, found in tags.items()]
            )


@app.command("build")
def build(
    names: Annotated[list[str] | None, typer.Argument(help="Which; default: all shipped ones.")] = None,
    *,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Build the images that are missing or out of date; a repeat is quick."""
    from sandkeeper.cli.progress import steps_shown
    from sandkeeper.client.local import server_module

    with speaking(is_json=json):
        server_module("docker", is_loaded=False)
        from sandkeeper.cli.setup import run_setup
        from sandkeeper.containers.recipes import DEFAULT_IMAGES

        with steps_shown(is_json=json) as show:
            done = run_setup(
                lambda report: show(report.step, report.message),
                state_dir=state_dir.absolute() if state_dir else None,
                images=tuple(names) if names else DEFAULT_IMAGES,
            )
        if json:
            say_json(dict(done.images))
        else:
            for name, image_id in done.images.items():
                say(f"{name}  {image_id}")
