"""Talking with a process in a sandbox from a shell: its output here, what is typed or piped here to it.

Owns this terminal while it is lent: raw mode and size, given back in every case. Light to import, as `exec -i` is
called in loops too.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import aclosing, contextmanager

from sandkeeper.boxd.events import RunLost
from sandkeeper.cli.exit_status import pass_on
from sandkeeper.cli.speech import note
from sandkeeper.client.output import Output
from sandkeeper.client.process import Process
from sandkeeper.client.run_result import RunResult
from sandkeeper.core.errors import SandkeeperError
from sandkeeper.ports import Ports

PIECE_BYTES = 64 * 1024
END_OF_FILE = b"\x04"
_ENDED = ("run_ended", "no_such_run", "stdin_closed", "run_interrupted")


def terminal_size() -> tuple[int, int]:
    """Return columns and rows of this terminal, or of a usual one."""
    try:
        size = os.get_terminal_size(sys.stdin.fileno())
    except OSError:
        return 80, 24
    return max(1, size.columns), max(1, size.lines)


async def converse(
    process: Process, *, has_stdin: bool, has_terminal: bool, is_shown: bool, ports: Ports
) -> RunResult:
    """Pass everything on in both directions until the process ends; return its result."""
    typing = None
    with _lent_terminal(process, ports=ports, is_wanted=has_terminal and has_stdin):
        if has_stdin:
            typing = ports.spawn(_type(process, has_terminal=has_terminal), name="stdin")
        try:
            if is_shown:
                streams = (process.pty,) if has_terminal else (process.stdout, process.stderr)
                async with asyncio.TaskGroup() as group:
                    for stream in streams:
                        group.create_task(_show(stream))
            return await process.wait(**({"max_output_bytes": 0} if is_shown else {}))
        except* SandkeeperError as failures:
            raise _first(failures) from failures
        finally:
            if typing is not None:
                typing.cancel()
                await asyncio.wait((typing,))


async def _show(stream: Output) -> None:
    name = "stdout" if stream.stream == "pty" else stream.stream
    async with aclosing(stream):
        async for piece in stream:
            if isinstance(piece, RunLost):
                note(f"lost: {piece.lost_bytes} bytes of {stream.stream} are kept no more")
            else:
                pass_on(name, piece.data)


async def _type(process: Process, *, has_terminal: bool) -> None:
    """Pass standard input on to its end, or to the end of the process."""
    fd = sys.stdin.fileno()
    try:
        while data := await _read(fd):
            await process.write(data)
        if has_terminal:
            await process.write(END_OF_FILE)
        else:
            await process.close_stdin()
    except SandkeeperError as error:
        if error.code not in _ENDED:
            note(f"standard input is not passed on any more: {error}")


async def _read(fd: int) -> bytes:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    try:
        loop.add_reader(fd, _wake, ready)
    except PermissionError:
        return os.read(fd, PIECE_BYTES)  # a regular file never keeps one waiting
    try:
        await ready
    finally:
        loop.remove_reader(fd)
    return os.read(fd, PIECE_BYTES)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


@contextmanager
def _lent_terminal(process: Process, *, ports: Ports, is_wanted: bool) -> Iterator[None]:
    """Keys go to the process as they are typed, its terminal has the size of this one."""
    if not is_wanted or not sys.stdin.isatty():
        yield
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    resizing: set[asyncio.Task[None]] = set()

    async def resize() -> None:
        cols, rows = terminal_size()
        try:
            await process.resize(cols=cols, rows=rows)
        except SandkeeperError as error:
            if error.code not in _ENDED:
                note(f"the size of the terminal is not passed on: {error}\r")

    def resized() -> None:
        task = ports.spawn(resize(), name="resize")
        resizing.add(task)
        task.add_done_callback(resizing.discard)

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, resized)
    tty.setraw(fd, termios.TCSADRAIN)  # what was typed ahead is kept
    try:
        resized()
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
        loop.remove_signal_handler(signal.SIGWINCH)


def _first(failures: BaseExceptionGroup[SandkeeperError]) -> BaseException:
    found: BaseException = failures
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
