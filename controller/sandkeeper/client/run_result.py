"""What a command came to: the shape of an honest result.

Pure, and light to import: the command line needs it within milliseconds. What a result means is decided where it is
made.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from sandkeeper.boxd.events import RunUsage
from sandkeeper.core.errors import Admitted
from sandkeeper.core.ids import RunId

RunResultOutcome = Literal["exited", "signaled", "timeout", "interrupted", "unknown"]


@dataclass(frozen=True, slots=True)
class RunResult:
    """What came of a command. Only `outcome == "exited"` carries an exit code.

    Attributes:
        exit_code: The wait status' exit code as boxd reported it; None unless exited.
        outcome: `exited`; `signaled`; `timeout` (the tree was killed at a limit, see `reason`); `interrupted` (the
            runtime was lost: the command may have done any part of its work); `unknown` (no word to be had).
        signal: Number of the signal that ended it, else 0.
        oom_killed: Whether the memory limit killed it.
        stdout_bytes: The first bytes of stdout, up to the cap.
        stderr_bytes: The first bytes of stderr, up to the cap.
        truncated: Whether either holds less than was written.
        stdout_size_bytes: True size of stdout, as far as it was seen.
        stderr_size_bytes: True size of stderr, as far as it was seen.
        duration_ms: As boxd measured it, frozen time left out; for `interrupted` and `unknown`, the wait here.
        generation: The runtime it ran in.
        run_id: Its id inside the box.
        admitted: Whether the command was begun; `unknown` only with `interrupted` and `unknown`.
        message: Why there is no wait status; empty when there is one.
        not_stopped: Pids of its tree that a kill could not stop.
        lost_bytes: Output that came faster than it could be taken and is kept no more: what was received has a hole.
        reason: Which limit a `timeout` hit: `deadline`, `quiet`, `cpu`, or `host_deadline` when the box did not
            answer at its deadline and nobody knows whether the tree was stopped; else empty.
        usage: CPU time and memory of the command and the children it waited for; None without a wait status.
    """

    exit_code: int | None
    outcome: RunResultOutcome
    signal: int
    oom_killed: bool
    stdout_bytes: bytes
    stderr_bytes: bytes
    truncated: bool
    stdout_size_bytes: int
    stderr_size_bytes: int
    duration_ms: float
    generation: int
    run_id: RunId
    admitted: Admitted = "yes"
    message: str = ""
    not_stopped: tuple[int, ...] = ()
    lost_bytes: int = 0
    reason: str = ""
    usage: RunUsage | None = None

    @property
    def stdout(self) -> str:
        """Stdout as UTF-8 text; bytes that are none become U+FFFD."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Stderr as UTF-8 text; bytes that are none become U+FFFD."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def is_success(self) -> bool:
        """Whether the command exited, with 0."""
        return self.outcome == "exited" and self.exit_code == 0

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-safe form: text instead of bytes, everything else as named."""
        fields = asdict(self)
        del fields["stdout_bytes"], fields["stderr_bytes"]
        return fields | {"stdout": self.stdout, "stderr": self.stderr, "not_stopped": list(self.not_stopped)}
