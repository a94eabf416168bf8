"""What can be done to a run that is there: signal, kill, feed, resize, list.

Owns the unary calls of boxd's process routes. Starting and following runs is `runs`.
"""

from __future__ import annotations

from base64 import b64encode

from sandkeeper.boxd import errors
from sandkeeper.boxd.event_reader import not_stopped_in, runs_in
from sandkeeper.boxd.events import RunListing, TerminalSize
from sandkeeper.boxd.run_documents import STDIN_LIMIT_BYTES, pty_document, selector
from sandkeeper.boxd.transport import Transport
from sandkeeper.boxd.wire import BadFrame
from sandkeeper.core.errors import InvalidArgument
from sandkeeper.core.ids import RunId

KILL_WAIT_S = 15.0
INPUT_WAIT_S = 75.0
"""boxd waits up to 60 s for a process that does not read."""


class RunControls:
    """Controls of the runs of one box, over its link's transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def resize(self, run_id: RunId, size: TerminalSize) -> None:
        """Change the size of a run's terminal; every viewer sees the program's answer.

        Raises:
            NotFound: No such run, or it has ended.
            InvalidArgument: `terminal_size_invalid`.
            FailedPrecondition: The run has no terminal.
        """
        document = {"process": selector(run_id), "pty": pty_document(size)}
        await self._transport.unary("POST", "/process.Process/Update", document, step=f"resize {run_id}")

    async def signal(self, run_id: RunId, *, signum: int) -> None:
        """Send `signum` to the run's process group.

        Raises:
            NotFound: No such run, or it has ended.
        """
        await self._transport.unary(
            "POST",
            "/process.Process/SendSignal",
            {"process": selector(run_id), "signal": signum},
            step=f"signal run {run_id}",
        )

    async def kill_tree(self, run_id: RunId) -> tuple[int, ...]:
        """Kill the run's whole tree; return the pids that could not be stopped (empty = all are gone).

        Repeating is safe.

        Raises:
            NotFound: No such run.
        """
        step = f"kill run {run_id}"
        answer = await self._transport.unary(
            "POST",
            "/process.Process/SendSignal",
            {"process": selector(run_id), "signal": "SIGNAL_SIGKILL", "sandkeeper": {"tree": True}},
            step=step,
            wait_s=KILL_WAIT_S,
        )
        try:
            return not_stopped_in(answer)
        except BadFrame as error:
            raise errors.invalid_answer(str(error), step=step, admitted="yes") from error

    async def send_stdin(self, run_id: RunId, *, data: bytes) -> None:
        """Write `data` to the stdin of a run started with `stdin_open`. Not safe to repeat.

        Raises:
            Aborted: `stdin_full`: the process does not read; it has `written_bytes` (details) of `data`.
            FailedPrecondition: `stdin_closed`.
            NotFound: No such run, or it has ended.
        """
        await self._send(run_id, kind="stdin", data=data)

    async def send_keys(self, run_id: RunId, *, data: bytes) -> None:
        """Write `data` to the terminal of a run, as if typed. Not safe to repeat."""
        await self._send(run_id, kind="pty", data=data)

    async def close_stdin(self, run_id: RunId) -> None:
        """End the stdin of a run. Repeating is safe."""
        await self._transport.unary(
            "POST",
            "/process.Process/CloseStdin",
            {"process": selector(run_id)},
            step=f"close stdin of run {run_id}",
        )

    async def list(self) -> tuple[RunListing, ...]:
        """Return the running commands, those of other clients included."""
        answer = await self._transport.unary("POST", "/process.Process/List", {}, step="list runs")
        try:
            return runs_in(answer)
        except BadFrame as error:
            raise errors.invalid_answer(str(error), step="list runs", admitted="yes") from error

    async def _send(self, run_id: RunId, *, kind: str, data: bytes) -> None:
        if len(data) > STDIN_LIMIT_BYTES:
            raise InvalidArgument(f"{len(data)} bytes of input at once", code="stdin_too_large")
        await self._transport.unary(
            "POST",
            "/process.Process/SendInput",
            {"process": selector(run_id), "input": {kind: b64encode(data).decode()}},
            step=f"{kind} of run {run_id}",
            wait_s=INPUT_WAIT_S,
        )
