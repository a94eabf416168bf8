"""What has been seen of a run so far, what was kept of its output, and the result both make.

Pure: events in, facts out. The wait status is boxd's; nothing here invents one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sandkeeper.boxd.events import RunEnded, RunEvent, RunLost, RunOutput, RunStarted, Stream
from sandkeeper.client.run_result import RunResult, RunResultOutcome
from sandkeeper.core.errors import Admitted
from sandkeeper.core.ids import RunId

OnOutput = Callable[[Stream, bytes], None]
STREAMS: tuple[Stream, ...] = ("stdout", "stderr", "pty")


@dataclass(slots=True)
class Seen:
    """What is known of a run so far. Offsets are where its reader is in each stream."""

    began_s: float
    heard_s: float
    admitted: Admitted = "no"
    generation: int = 0
    paused_s: float = 0.0
    offsets: dict[Stream, int] = field(default_factory=lambda: dict.fromkeys(STREAMS, 0))

    def note(self, event: RunEvent) -> None:
        """Take one event in."""
        match event:
            case RunOutput():
                self.offsets[event.stream] = event.offset + len(event.data)
            case RunStarted():
                self.admitted = "yes"
                self.generation = event.generation
            case RunLost():
                self.offsets[event.stream] = event.offset + event.lost_bytes
            case RunEnded():
                self.admitted = "yes"


class Kept:
    """The first bytes of each stream, and the result they go into. A terminal's output counts as stdout."""

    def __init__(self, *, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lost_bytes = 0
        self._bytes: dict[Stream, bytearray] = {stream: bytearray() for stream in STREAMS}

    def take(self, event: RunEvent) -> None:
        """Keep what there is room for."""
        if isinstance(event, RunOutput):
            kept = self._bytes[event.stream]
            kept += event.data[: max(0, self._limit_bytes - len(kept))]
        elif isinstance(event, RunLost):
            self._lost_bytes += event.lost_bytes

    def result(self, run_id: RunId, *, seen: Seen, ended: RunEnded) -> RunResult:
        """Return the result of a run whose end was seen."""
        stdout, stderr = self._output()
        stdout_size_bytes = ended.stdout_size_bytes + ended.pty_size_bytes
        return RunResult(
            exit_code=ended.exit_code,
            outcome=ended.outcome,
            signal=ended.signal,
            oom_killed=ended.oom_killed,
            stdout_bytes=stdout,
            stderr_bytes=stderr,
            truncated=self._lost_bytes > 0
            or stdout_size_bytes > len(stdout)
            or ended.stderr_size_bytes > len(stderr),
            stdout_size_bytes=stdout_size_bytes,
            stderr_size_bytes=ended.stderr_size_bytes,
            duration_ms=ended.duration_ms,
            generation=seen.generation,
            run_id=run_id,
            not_stopped=ended.not_stopped,
            reason=ended.reason,
            usage=ended.usage,
            lost_bytes=self._lost_bytes,
        )

    def statusless(
        self, run_id: RunId, *, seen: Seen, outcome: RunResultOutcome, message: str, waited_s: float
    ) -> RunResult:
        """Return the result of a run of which no wait status is to be had."""
        stdout, stderr = self._output()
        return RunResult(
            exit_code=None,
            outcome=outcome,
            signal=0,
            oom_killed=False,
            stdout_bytes=stdout,
            stderr_bytes=stderr,
            truncated=True,
            stdout_size_bytes=seen.offsets["stdout"] + seen.offsets["pty"],
            stderr_size_bytes=seen.offsets["stderr"],
            duration_ms=round(waited_s * 1000, 3),
            generation=seen.generation,
            run_id=run_id,
            admitted=seen.admitted,
            message=message,
            reason="host_deadline" if outcome == "timeout" else "",
            lost_bytes=self._lost_bytes,
        )

    def _output(self) -> tuple[bytes, bytes]:
        return bytes(self._bytes["stdout"] + self._bytes["pty"]), bytes(self._bytes["stderr"])
