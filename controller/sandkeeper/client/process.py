"""A process in a sandbox that is left going: its output, its input, its end.

Owns no state of the process but its id and generation: everything else is asked. A handle may be dropped and made
again by `processes.attach`, in another client too.
"""

from __future__ import annotations

import signal as signals

from sandkeeper.boxd.events import Stream, TerminalSize
from sandkeeper.boxd.run_documents import STDIN_LIMIT_BYTES
from sandkeeper.client.box_link import BoxLink
from sandkeeper.client.boxed import Boxed
from sandkeeper.client.boxes import Boxes
from sandkeeper.client.output import Output, attached
from sandkeeper.client.run_order import MAX_OUTPUT_BYTES
from sandkeeper.client.run_result import RunResult
from sandkeeper.client.run_sight import STREAMS, Kept
from sandkeeper.client.runs import Runner
from sandkeeper.core.errors import InvalidArgument, SandkeeperError
from sandkeeper.core.ids import RunId, SandboxId
from sandkeeper.ports import Ports


class Process(Boxed):
    """A process by its id. Nothing here starts anything.

    Attributes:
        id: Its id; `processes.attach` takes it.
        generation: The runtime it runs in; it ends with it.
        has_terminal: Whether it runs on a terminal.
        stdout: Its standard output (`Output`); on a terminal it is empty.
        stderr: Its standard error (`Output`); on a terminal it is empty.
        pty: Its terminal's output (`Output`); empty without a terminal.
    """

    def __init__(
        self,
        sandbox_id: SandboxId,
        run_id: RunId,
        *,
        generation: int,
        has_terminal: bool,
        boxes: Boxes,
        ports: Ports,
        offset: int = 0,
    ) -> None:
        super().__init__(sandbox_id, boxes=boxes, ports=ports)
        self.id = run_id
        self.generation = generation
        self.has_terminal = has_terminal
        self.stdout = self.output("stdout", offset=offset)
        self.stderr = self.output("stderr", offset=offset)
        self.pty = self.output("pty", offset=offset)

    def __repr__(self) -> str:
        return f"Process(id={self.id!r}, generation={self.generation})"

    def output(self, stream: Stream, *, offset: int = 0) -> Output:
        """Return a reader of its own of one stream, from `offset` on."""
        return Output(
            stream,
            offset=offset,
            sandbox_id=self._sandbox_id,
            run_id=self.id,
            generation=self.generation,
            boxes=self._boxes,
            ports=self._ports,
        )

    async def wait(self, *, max_output_bytes: int = MAX_OUTPUT_BYTES) -> RunResult:
        """Wait for its end; return its result with the output from its beginning. May be repeated.

        A terminal's output counts as stdout. Cancelling leaves the process going.

        Raises:
            NotFound: It ended so long ago that its result is kept no more.
        """
        following = attached(
            self.id,
            sandbox_id=self._sandbox_id,
            generation=self.generation,
            offsets=dict.fromkeys(STREAMS, 0),
            boxes=self._boxes,
            ports=self._ports,
            max_output_bytes=max_output_bytes,
        )
        runner = Runner(self._boxes, ports=self._ports)
        return await runner.finish(following, self.id, kept=Kept(limit_bytes=max_output_bytes))

    async def write(self, data: bytes | str) -> None:
        """Write to its standard input, or to its terminal as if typed; waits while it does not read.

        Not repeated by us once begun.

        Raises:
            FailedPrecondition: `stdin_closed`.
            NotFound: It has ended.
        """
        content = data.encode() if isinstance(data, str) else bytes(data)
        while content:
            try:
                await self._write(content[:STDIN_LIMIT_BYTES])
            except SandkeeperError as error:
                written = error.details.get("written_bytes")
                if error.code != "stdin_full" or not isinstance(written, int):
                    raise
                content = content[written:]
            else:
                content = content[STDIN_LIMIT_BYTES:]

    async def _write(self, piece: bytes) -> None:
        async def send(link: BoxLink) -> None:
            sending = link.runs.send_keys if self.has_terminal else link.runs.send_stdin
            await sending(self.id, data=piece)

        await self._with_box(send, is_repeatable=False, generation=self.generation)

    async def close_stdin(self) -> None:
        """End its standard input. May be repeated; on a terminal write a Ctrl-D (byte 4) instead."""
        await self._with_box(lambda link: link.runs.close_stdin(self.id), generation=self.generation)

    async def resize(self, *, cols: int, rows: int) -> None:
        """Change the size of its terminal. May be repeated."""
        size = TerminalSize(cols=cols, rows=rows)
        await self._with_box(lambda link: link.runs.resize(self.id, size), generation=self.generation)

    async def signal(self, signal: int | str) -> None:
        """Send a signal (number, or name as `TERM`) to its process group. Not repeated by us once begun.

        Raises:
            InvalidArgument: `signal_invalid`.
            NotFound: It has ended.
        """
        signum = _signum(signal)
        await self._with_box(
            lambda link: link.runs.signal(self.id, signum=signum),
            is_repeatable=False,
            generation=self.generation,
        )

    async def kill(self) -> tuple[int, ...]:
        """Kill its whole tree; return the pids that could not be stopped: none, as a rule. May be repeated."""
        return await self._with_box(lambda link: link.runs.kill_tree(self.id), generation=self.generation)


def _signum(signal: int | str) -> int:
    try:
        if isinstance(signal, str):
            return signals.Signals["SIG" + signal.upper().removeprefix("SIG")].value
        return signals.Signals(signal).value
    except (KeyError, ValueError) as error:
        raise InvalidArgument(f"no signal {signal!r:.40}", code="signal_invalid") from error
