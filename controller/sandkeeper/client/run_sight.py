"""What has been seen of a run so far, and the result it makes.

Pure: events in, facts out. The wait status is boxd's; nothing here invents one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sandkeeper.boxd.events import RunEnded, RunEvent, RunLost, RunOutput, RunStarted, Stream
from sandkeeper.client.run_order import RunOrder
from sandkeeper.client.run_result import RunResult
from sandkeeper.core.errors import Admitted

OnOutput = Callable[[Stream, bytes], None]


@dataclass(slots=True)
class Seen:
    """What is known of a run so far."""

    began_s: float
    heard_s: float
    admitted: Admitted = "no"
    generation: int = 0
    paused_s: float = 0.0
    has_loss: bool = False
    kept: dict[Stream, bytearray] = field(
        default_factory=lambda: {"stdout": bytearray(), "stderr": bytearray()}
    )
    offsets: dict[Stream, int] = field(default_factory=lambda: {"stdout": 0, "stderr": 0})


def take(event: RunEvent, order: RunOrder, seen: Seen, on_output: OnOutput | None) -> RunEnded | None:
    """Take one event in; return it when it is the end."""
    match event:
        case RunOutput():
            kept = seen.kept[event.stream]
            kept += event.data[: max(0, order.keep_bytes - len(kept))]
            seen.offsets[event.stream] = event.offset + len(event.data)
            if on_output is not None:
                on_output(event.stream, event.data)
        case RunStarted():
            seen.admitted = "yes"
            seen.generation = event.generation
        case RunLost():
            seen.has_loss = True
            seen.offsets[event.stream] = event.offset + event.lost_bytes
        case RunEnded():
            return event
    return None


def result_of(order: RunOrder, seen: Seen, ended: RunEnded) -> RunResult:
    """Return the result of a run whose end was seen."""
    stdout, stderr = bytes(seen.kept["stdout"]), bytes(seen.kept["stderr"])
    return RunResult(
        exit_code=ended.exit_code,
        outcome=ended.outcome,
        signal=ended.signal,
        oom_killed=ended.oom_killed,
        stdout_bytes=stdout,
        stderr_bytes=stderr,
        truncated=seen.has_loss
        or ended.stdout_size_bytes > len(stdout)
        or ended.stderr_size_bytes > len(stderr),
        stdout_size_bytes=ended.stdout_size_bytes,
        stderr_size_bytes=ended.stderr_size_bytes,
        duration_ms=ended.duration_ms,
        generation=seen.generation,
        run_id=order.run_id,
        not_stopped=ended.not_stopped,
    )
