"""`events`: a sandbox's journal."""

from __future__ import annotations

import json as jsonlib
import sys
from typing import Annotated, Any

import typer

from sandkeeper.cli.options import Json, SandboxRef, StateDir
from sandkeeper.cli.speech import run_async, say, speaking


def events(
    sandbox: SandboxRef,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for what is still to come.")] = False,
    after: Annotated[int, typer.Option(help="Only those after this sequence number.", min=0)] = 0,
    state_dir: StateDir = None,
    json: Json = False,
) -> None:
    """Print a sandbox's journal; with --json one object a line."""
    from sandkeeper.client.keeper import Keeper

    async def work() -> None:
        async with Keeper.join(state_dir) as keeper:
            handle = await keeper.get(sandbox)
            async for event in handle.events(after=after, follow=follow):
                _show(event, is_json=json)

    with speaking(is_json=json):
        run_async(work())


def _show(event: Any, *, is_json: bool) -> None:
    if is_json:
        say(jsonlib.dumps(event.model_dump(mode="json"), ensure_ascii=False))
    else:
        facts = " ".join(
            f"{key}={_word(value)}" for key, value in event.details.items() if value not in (None, "")
        )
        say(
            f"{event.seq:>6}  {event.at:%F %T}.{event.at.microsecond // 1000:03d}  {event.kind:20} {facts}".rstrip()
        )
    sys.stdout.flush()


def _word(value: Any) -> str:
    text = value if isinstance(value, str) else jsonlib.dumps(value, ensure_ascii=False, default=str)
    flat = " ".join(text.split())
    return flat if len(flat) <= 80 else flat[:79] + "…"
