"""`demo`: the main job on real input, with things killed under it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sandkeeper.cli.options import Json, StateDir
from sandkeeper.cli.speech import leave, speaking


def demo(
    *,
    patch_dir: Annotated[
        Path | None, typer.Option(help="Folder for the winner's patch; default: the demo's own.")
    ] = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Mend a real package by attempts in parallel while things are killed; 0 only if every step happened."""
    from sandkeeper.client.local import server_module

    with speaking(is_json=json):
        server_module("ray", is_loaded=False)
        server_module("docker", is_loaded=False)
        from sandkeeper.cli.demo.story import tell

        leave(tell(state_dir=state_dir, patch_dir=patch_dir, is_json=json))
