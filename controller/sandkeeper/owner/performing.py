"""What a machine can have done to the world: the Protocol of its runner.

Owns the Protocol. `runner.EngineRunner` is the real one.
"""

from __future__ import annotations

from typing import Protocol

from sandkeeper.core import commands as cmd
from sandkeeper.core import events as ev
from sandkeeper.core.observation import RuntimeObservation
from sandkeeper.core.record import SandboxRecord
from sandkeeper.core.recovery import Correction


class Runner(Protocol):
    """Performs commands and looks at runtimes; the only thing a machine can do to the world."""

    async def perform(self, record: SandboxRecord, command: cmd.Command) -> ev.Reply:
        """Perform one command; ends in exactly one reply, failures included. Idempotent by names."""
        ...

    async def observe(self, record: SandboxRecord) -> RuntimeObservation | None:
        """Look at the claimed runtime.

        Raises:
            Unavailable: The engine cannot be asked now.
        """
        ...

    async def correct(self, record: SandboxRecord, correction: Correction) -> None:
        """Bring a live container back to what the record says.

        Raises:
            SandkeeperError: It could not be done; the next check tries again.
        """
        ...

    async def wait_lost(self, record: SandboxRecord) -> ev.RuntimeLost:
        """Return when the runtime of the record's generation has ended."""
        ...
