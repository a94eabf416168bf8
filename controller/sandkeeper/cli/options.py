"""Options that many commands share, under one name each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON; errors are JSON on stderr.")]
StateDir = Annotated[
    Path | None,
    typer.Option(
        "--state-dir", envvar="SANDKEEPER_STATE_DIR", help="The installation's folder.", show_default=False
    ),
]
SandboxRef = Annotated[str, typer.Argument(metavar="SANDBOX", help="Its id or its name.")]
Image = Annotated[str | None, typer.Option("--image", help="Catalogue image; default: the policy's.")]
FromSnapshot = Annotated[str | None, typer.Option("--snapshot", help="Start from this snapshot.")]
SizeName = Annotated[str | None, typer.Option("--size", help="basic, lite, standard-1 ... standard-4.")]
Vcpu = Annotated[float | None, typer.Option("--vcpu", help="Custom size: processors, 0.25 is a quarter.")]
MemoryMib = Annotated[int | None, typer.Option("--memory-mib", help="Custom size: memory in MiB.")]
Pids = Annotated[int | None, typer.Option("--pids", help="Custom size: processes and threads.")]
Env = Annotated[list[str] | None, typer.Option("--env", "-e", help="KEY=VALUE; may be repeated.")]
User = Annotated[str | None, typer.Option("--user", "-u", help="User inside; default: the image's.")]
Labels = Annotated[list[str] | None, typer.Option("--label", "-l", help="KEY=VALUE; may be repeated.")]
Command = Annotated[list[str], typer.Argument(metavar="COMMAND [ARGS]...", help="Program and arguments.")]


def chosen_size(
    name: str | None, *, vcpu: float | None, memory_mib: int | None, pids: int | None = None
) -> str | dict[str, float | int] | None:
    """Return the size asked for by name or by numbers; what is missing of a custom one is `basic`'s.

    Raises:
        InvalidArgument: `size_invalid`: a name and numbers at once.
    """
    given = {"vcpu": vcpu, "memory_mib": memory_mib, "pids": pids}
    custom = {key: value for key, value in given.items() if value is not None}
    if not custom:
        return name
    if name is not None:
        from sandkeeper.core.errors import InvalidArgument

        raise InvalidArgument("give --size, or --vcpu and --memory-mib, not both", code="size_invalid")
    return {"vcpu": 2, "memory_mib": 512} | custom
