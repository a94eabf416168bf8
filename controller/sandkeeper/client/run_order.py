"""What is to be run: one command, completely said, and checked before anything is sent.

Pure and light to import.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sandkeeper.core.errors import InvalidArgument
from sandkeeper.core.ids import RunId

DEFAULT_TIMEOUT_S = 300.0
MAX_OUTPUT_BYTES = 1024 * 1024
LONGEST_TIMEOUT_S = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class RunOrder:
    """What is to be run.

    Attributes:
        argv: Program and arguments.
        run_id: Names the run inside the box; a repeat with the same id attaches to it.
        cwd: Folder; None = the sandbox's default.
        env: Variables beside the sandbox's.
        user: User name; None = the sandbox's default.
        stdin: Bytes to feed; None = no input.
        timeout_s: boxd kills the tree after this much of the box's time.
        keep_bytes: Output kept per stream.
        send_bytes: Output boxd sends per stream; None = all.
    """

    argv: tuple[str, ...]
    run_id: RunId
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    stdin: bytes | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S
    keep_bytes: int = MAX_OUTPUT_BYTES
    send_bytes: int | None = MAX_OUTPUT_BYTES


def argv_of(command: str | Sequence[str]) -> tuple[str, ...]:
    """Return the argv of a command: a list as it is, a text as a line for `/bin/sh -c`."""
    if isinstance(command, str):
        return ("/bin/sh", "-c", command)
    words = tuple(command)
    if not words or not all(isinstance(word, str) for word in words):
        raise InvalidArgument("a command is a text or a list of texts, and not empty", code="argv_invalid")
    return words


def checked_timeout_s(timeout_s: float) -> float:
    """Return `timeout_s` if it is a time a command may have.

    Raises:
        InvalidArgument: `timeout_invalid`.
    """
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if not is_number or not math.isfinite(timeout_s) or not 0 < timeout_s <= LONGEST_TIMEOUT_S:
        raise InvalidArgument(
            f"timeout_s must be above 0 and at most {LONGEST_TIMEOUT_S:.0f}, not {timeout_s!r:.40}",
            code="timeout_invalid",
            details={"field": "timeout_s"},
        )
    return float(timeout_s)
