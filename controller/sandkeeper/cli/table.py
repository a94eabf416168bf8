"""The table of commands.

Owns which commands there are. A command's file imports what it needs when it is called; Ray and docker are never
imported at start-up.
"""

from __future__ import annotations

from collections.abc import Callable

import typer

from sandkeeper.cli.commands import (
    copy,
    demo,
    events,
    images,
    inside,
    machine,
    processes,
    run,
    sandboxes,
    snapshots,
    up,
)

PASS_ON = {"allow_interspersed_args": False}
"""What follows the command's first word is the command's, options too."""

EVERYTHING = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
"""`exec` reads its words itself (see `quick_exec`)."""

app = typer.Typer(
    name="sandkeeper",
    help="Sandboxes for agents: durable owners, replaceable containers.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS: tuple[Callable[..., None], ...] = (
    up.up,
    up.down,
    up.status,
    machine.doctor,
    machine.setup,
    demo.demo,
    sandboxes.create,
    sandboxes.ps,
    sandboxes.describe,
    sandboxes.rm,
    sandboxes.start,
    sandboxes.stop,
    sandboxes.pause,
    sandboxes.resume,
    sandboxes.resize,
    snapshots.fork,
    copy.cp,
    events.events,
    processes.processes,
    processes.attach,
    processes.kill,
    inside.diff,
    inside.watch,
    inside.forward,
)
for command in COMMANDS:
    app.command()(command)
app.command("run", context_settings=PASS_ON)(run.run)
app.command("exec", context_settings=EVERYTHING, add_help_option=False)(run.exec_)
app.add_typer(images.app, name="images")
app.add_typer(snapshots.app, name="snapshot")
