"""How the command line speaks: results on stdout, errors and progress on stderr, each also as JSON.

Owns the words an error gets and the exit statuses: 0 done, 1 refused or failed, 2 wrong usage, 130 interrupted,
128 + n ended by signal n (141 when the reader of its output has gone).
`exec` and `run` have their own, in `exit_status.py`.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from sandkeeper.core.errors import InvalidArgument, SandkeeperError

FAILED = 1
USAGE = 2
INTERRUPTED = 130
SIGNALED = 128
TAIL_LINES = 12

_T = TypeVar("_T")


def say_json(document: Any) -> None:
    """Print one JSON document on stdout."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False, default=str) + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """Print one line on stdout."""
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """Print one line of news on stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def say_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows in columns; plain text, so that it can be cut and searched."""
    lines = [tuple(titles), *(tuple(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    for line in lines:
        say("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip())


def say_error(error: SandkeeperError, *, is_json: bool) -> None:
    """Print a typed error on stderr: one readable line and its advice, or one JSON object."""
    if is_json:
        note(json.dumps({"error": error.to_wire()}, ensure_ascii=False, default=str))
        return
    about = f" [{error.code}]" if error.sandbox_id is None else f" [{error.code}, {error.sandbox_id}]"
    note(f"error: {error.message}{about}")
    if error.admitted != "no":
        note(f"admitted: {error.admitted}")
    for line in str(error.details.get("output_tail", "")).splitlines()[-TAIL_LINES:]:
        note(f"  | {line}")
    if error.advice:
        note(f"advice: {error.advice}")


@contextmanager
def speaking(*, is_json: bool, failed: int = FAILED) -> Iterator[None]:
    """Turn errors inside into words and exit statuses; everything else passes."""
    try:
        yield
    except SandkeeperError as error:
        say_error(error, is_json=is_json)
        leave(failed)
    except ExceptionGroup as group:
        told, rest = group.split(SandkeeperError)
        if rest is not None:
            raise
        for failure in told.exceptions if told is not None else ():
            if isinstance(failure, SandkeeperError):
                say_error(failure, is_json=is_json)
        leave(failed)
    except KeyboardInterrupt:
        note("interrupted")
        leave(INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has gone; there is nobody to tell.
        sys.stderr.close()
        leave(SIGNALED + signal.SIGPIPE)


def leave(status: int) -> NoReturn:
    """End the command with an exit status."""
    sys.stdout.flush()
    raise SystemExit(status)


def run_async(work: Coroutine[Any, Any, _T]) -> _T:
    """Run `work` on a loop of its own; Ctrl-C, SIGTERM and SIGHUP cancel it and wait for its clean-up.

    After SIGTERM or SIGHUP the process ends with 128 + n.
    """
    ended_by: list[int] = []

    async def bounded() -> _T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def end(number: int) -> None:
            ended_by.append(number)
            if task is not None:
                task.cancel()

        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, end, number)
        return await work

    try:
        return asyncio.run(bounded())
    except asyncio.CancelledError:
        if not ended_by:
            raise
    note(f"ended by {signal.Signals(ended_by[0]).name}")
    leave(SIGNALED + ended_by[0])


def pairs(entries: Sequence[str], *, option: str) -> dict[str, str]:
    """Turn KEY=VALUE words into a mapping.

    Raises:
        InvalidArgument: `option_invalid`.
    """
    found: dict[str, str] = {}
    for entry in entries:
        key, sign, value = entry.partition("=")
        if not sign or not key:
            raise InvalidArgument(f"{option} takes KEY=VALUE, not {entry!r:.80}", code="option_invalid")
        found[key] = value
    return found


def age(seconds: float) -> str:
    """Return a duration in one short word."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(max(0.0, seconds))}s"


def size_text(count: float) -> str:
    """Return a number of bytes in one short word."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
