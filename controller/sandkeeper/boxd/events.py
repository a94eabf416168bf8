"""What boxd says about runs, typed: the events of a stream, a finished run, a listing. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sandkeeper.core.ids import RunId

Stream = Literal["stdout", "stderr", "pty"]
Outcome = Literal["exited", "signaled", "timeout"]
TimeoutReason = Literal["", "deadline", "quiet", "cpu"]


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """A terminal's columns and rows."""

    cols: int
    rows: int


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Limits of a run beside its timeout; None means none.

    Attributes:
        quiet_timeout_ms: Longest time without any output.
        cpu_limit_ms: CPU time of the whole tree.
    """

    quiet_timeout_ms: int | None = None
    cpu_limit_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RunUsage:
    """What the run's processes used, as the kernel says (getrusage(2)): CPU times, and the largest RSS."""

    user_ms: int = 0
    system_ms: int = 0
    max_rss_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The command runs (or ran): it was admitted. `attached` = the run id was known already."""

    pid: int
    run_id: RunId | None
    generation: int
    attached: bool


@dataclass(frozen=True, slots=True)
class RunOutput:
    """Output bytes; `offset` is the place of the first of them in the whole stream."""

    stream: Stream
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class RunLost:
    """Output that is kept no more: `lost_bytes` from `offset` on."""

    stream: Stream
    offset: int
    lost_bytes: int


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The wait status of the command.

    Attributes:
        outcome: `exited`, `signaled`, or `timeout` (boxd killed the tree at the deadline).
        exit_code: None unless exited.
        signal: Number of the signal that ended it, else 0.
        oom_killed: Whether the kernel killed it for memory.
        stdout_size_bytes: True size, whatever was sent.
        stderr_size_bytes: True size, whatever was sent.
        duration_ms: As boxd measured it, frozen time left out.
        not_stopped: Pids of the tree that a kill could not stop.
        reason: Which limit a `timeout` hit: `deadline`, `quiet` (no output) or `cpu`; else empty.
        oom_kills: Processes of the box that the memory limit killed while it ran.
        usage: CPU time and memory.
        pty_size_bytes: True size of the terminal's output, for a run that has one.
    """

    outcome: Outcome
    exit_code: int | None
    signal: int
    oom_killed: bool
    stdout_size_bytes: int
    stderr_size_bytes: int
    duration_ms: int
    not_stopped: tuple[int, ...]
    reason: TimeoutReason = ""
    oom_kills: int = 0
    usage: RunUsage = RunUsage()
    pty_size_bytes: int = 0


RunEvent = RunStarted | RunOutput | RunLost | RunEnded


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """A finished run with its collected output.

    Attributes:
        run_id: Its id.
        generation: The runtime it ran in.
        pid: Its pid inside.
        attached: Whether this call found it already started.
        exit_code: None unless `outcome` is `exited`.
        outcome: `exited`, `signaled` or `timeout`.
        signal: Number of the ending signal, else 0.
        oom_killed: Whether the kernel killed it for memory.
        stdout_bytes: The first bytes of stdout, up to the cap.
        stderr_bytes: The first bytes of stderr, up to the cap.
        truncated: Whether either holds less than was written.
        stdout_size_bytes: True size of stdout.
        stderr_size_bytes: True size of stderr.
        duration_ms: As boxd measured it.
        not_stopped: Pids of the tree that a kill could not stop.
        reason: Which limit a `timeout` hit, else empty.
        oom_kills: Processes of the box that the memory limit killed while it ran.
        usage: CPU time and memory.
    """

    run_id: RunId
    generation: int
    pid: int
    attached: bool
    exit_code: int | None
    outcome: Outcome
    signal: int
    oom_killed: bool
    stdout_bytes: bytes
    stderr_bytes: bytes
    truncated: bool
    stdout_size_bytes: int
    stderr_size_bytes: int
    duration_ms: int
    not_stopped: tuple[int, ...]
    reason: TimeoutReason = ""
    oom_kills: int = 0
    usage: RunUsage = RunUsage()

    @property
    def stdout(self) -> str:
        """Stdout as text; bytes that are no UTF-8 become U+FFFD."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Stderr as text; bytes that are no UTF-8 become U+FFFD."""
        return self.stderr_bytes.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class RunListing:
    """A running command. `run_id` is None for one started by a plain envd client."""

    pid: int
    run_id: RunId | None
    argv: tuple[str, ...]
    cwd: str | None
    tag: str | None
    has_terminal: bool = False
    detached: bool = False
