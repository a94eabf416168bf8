"""`cp`: files and folders between this machine and a sandbox."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from sandkeeper.cli import options
from sandkeeper.cli.options import Json, StateDir
from sandkeeper.cli.progress import bytes_bar
from sandkeeper.cli.speech import run_async, say, say_json, size_text, speaking
from sandkeeper.core.errors import InvalidArgument


def cp(
    source: Annotated[str, typer.Argument(help="A path, or SANDBOX:PATH.")],
    target: Annotated[str, typer.Argument(help="A path, or SANDBOX:PATH.")],
    *,
    user: options.User = None,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Copy a file, or a folder's content, into or out of a sandbox."""
    from sandkeeper.client.keeper import Keeper

    async def copy() -> dict[str, Any]:
        there, here, is_upload = _ends(source, target)
        sandbox_word, path = there
        async with Keeper.join(state_dir) as keeper:
            sandbox = await keeper.get(sandbox_word)
            total = _tree_bytes(here) if is_upload else None
            with bytes_bar(f"{source} -> {target}", total_bytes=total, is_json=json) as told:
                if is_upload:
                    loaded = await sandbox.files.upload(here, path, user=user, on_bytes=told)
                    return {"files": loaded.files, "bytes": loaded.size_bytes}
                left_out: list[str] = []
                size = await sandbox.files.download(
                    path, here, user=user, on_bytes=told, on_left_out=left_out.append
                )
                return {"bytes": size, "left_out": left_out}

    with speaking(is_json=json):
        done = run_async(copy())
        if json:
            say_json(done)
        else:
            say(f"{size_text(done['bytes'])} copied")
            for name in done.get("left_out", ()):
                say(f"left out: {name}, a link that leads outside the folder")


def _ends(source: str, target: str) -> tuple[tuple[str, str], Path, bool]:
    """Return the sandbox's end, this machine's end, and whether it goes in."""
    from_box, to_box = _box_end(source), _box_end(target)
    if to_box is not None and from_box is None:
        return to_box, Path(source), True
    if from_box is not None and to_box is None:
        return from_box, Path(target), False
    raise InvalidArgument(
        "one of the two must be SANDBOX:PATH, the other a path of this machine",
        code="usage",
        advice="sandkeeper cp ./folder SANDBOX:/home/user/folder",
    )


def _box_end(word: str) -> tuple[str, str] | None:
    """`name:path` is a sandbox's, unless the text before the colon holds a slash; as scp reads it."""
    name, colon, path = word.partition(":")
    return (name, path or ".") if colon and name and "/" not in name else None


def _tree_bytes(source: Path) -> int:
    if source.is_file():
        return source.stat().st_size
    total = 0
    for folder, _, names in os.walk(source):
        total += sum(os.lstat(os.path.join(folder, name)).st_size for name in names)
    return total
