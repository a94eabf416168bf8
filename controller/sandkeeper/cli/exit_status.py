"""How a command's result becomes this process' output and exit status.

Exit status: the command's own; 128 + n when signal n ended it (137 for a memory kill); 124 when its time was over;
125 when Sandkeeper refused, cannot say what came of it, or has lost some of its output.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from sandkeeper.cli.speech import SIGNALED, leave, note, say_json

if TYPE_CHECKING:
    from sandkeeper.client.run_result import RunResult

TIMED_OUT = 124
NOT_KNOWN = 125

_TIMEOUTS = {
    "": "timeout: killed after {after_s:.1f} s",
    "deadline": "timeout: killed after {after_s:.1f} s",
    "quiet": "timeout: killed after {after_s:.1f} s, at the limit of time without output",
    "cpu": "timeout: killed after {after_s:.1f} s, at the limit of CPU time",
}
"""What is said of a timeout, by its reason; of any other, the result's own message."""


def pass_on(stream: str, data: bytes) -> None:
    """Write a piece of output where it belongs, at once."""
    out: Any = sys.stdout.buffer if stream == "stdout" else sys.stderr.buffer
    out.write(data)
    out.flush()


def conclude(result: RunResult, *, is_json: bool) -> None:
    """Print what is left to say and exit with the status that the result stands for."""
    if is_json:
        say_json(result.to_json())
    elif result.outcome == "timeout":
        note(
            _TIMEOUTS.get(result.reason, "timeout: {message}").format(
                after_s=result.duration_ms / 1000, message=result.message
            )
        )
    elif result.outcome in ("interrupted", "unknown"):
        note(f"{result.outcome}: no exit code is known (admitted: {result.admitted}): {result.message}")
    elif result.oom_killed:
        note("killed: it went over the memory limit")
    if result.not_stopped and not is_json:
        note(f"still going, could not be stopped: {', '.join(map(str, result.not_stopped))}")
    if result.lost_bytes and not is_json:
        note(
            f"output lost: {result.lost_bytes} bytes came faster than they could be taken; "
            "write large output to a file inside and copy that"
        )
    leave(exit_status(result))


def exit_status(result: RunResult) -> int:
    """Return the exit status that stands for a result."""
    match result.outcome:
        case "exited" if result.lost_bytes:
            return NOT_KNOWN
        case "exited":
            return NOT_KNOWN if result.exit_code is None else result.exit_code
        case "signaled":
            return SIGNALED + result.signal
        case "timeout":
            return TIMED_OUT
        case _:
            return NOT_KNOWN
