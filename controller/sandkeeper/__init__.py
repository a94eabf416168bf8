"""Sandkeeper: durable owners for replaceable sandboxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sandkeeper.client.attempt import Attempt, AttemptReport, Step
    from sandkeeper.client.keeper import Keeper
    from sandkeeper.client.results import RunResult, Snapshot
    from sandkeeper.client.sandbox import Sandbox
    from sandkeeper.core.errors import SandkeeperError

__all__ = [
    "Attempt",
    "AttemptReport",
    "Keeper",
    "RunResult",
    "Sandbox",
    "SandkeeperError",
    "Snapshot",
    "Step",
]

_HOMES = {
    "Attempt": "sandkeeper.client.attempt",
    "AttemptReport": "sandkeeper.client.attempt",
    "Keeper": "sandkeeper.client.keeper",
    "RunResult": "sandkeeper.client.results",
    "Sandbox": "sandkeeper.client.sandbox",
    "SandkeeperError": "sandkeeper.core.errors",
    "Snapshot": "sandkeeper.client.results",
    "Step": "sandkeeper.client.attempt",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: the command line must start without the whole SDK."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)
