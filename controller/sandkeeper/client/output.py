"""One stream of a process' output, read from an offset on, across cuts and new owners.

Owns the place its reader has reached: iteration can end and go on, in this process or (with the offset) in another.
Pulled, never pushed: a slow reader costs no memory here and does not slow the command.
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncGenerator

from sandkeeper.boxd.events import RunEnded, RunEvent, RunLost, RunOutput, RunStarted, Stream
from sandkeeper.client.box_link import BoxLink
from sandkeeper.client.boxes import Boxes
from sandkeeper.client.following import Following, NoStatus
from sandkeeper.client.run_sight import STREAMS, Seen
from sandkeeper.core.errors import Aborted
from sandkeeper.core.ids import RunId, SandboxId
from sandkeeper.ports import Ports

NOWHERE = 2**52
"""An offset beyond any output: of a stream read from there nothing is sent."""


class Output:
    """An async iterator of `RunOutput(stream, offset, data)` and `RunLost(stream, offset, lost_bytes)`.

    The bytes are exact: each piece begins where the one before ended, and what is kept no more is told as a loss
    with its size. It ends when the process has ended and all was read. To stop early, `aclose` it; iterating again
    goes on at `offset`.

    Attributes:
        stream: `stdout`, `stderr` or `pty`.
        offset: Place of the next byte.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        offset: int,
        sandbox_id: SandboxId,
        run_id: RunId,
        generation: int,
        boxes: Boxes,
        ports: Ports,
    ) -> None:
        self.stream = stream
        self.offset = offset
        self._sandbox_id = sandbox_id
        self._run_id = run_id
        self._generation = generation
        self._boxes = boxes
        self._ports = ports
        self._reading: AsyncGenerator[RunOutput | RunLost, None] | None = None

    def __aiter__(self) -> Output:
        return self

    async def __anext__(self) -> RunOutput | RunLost:
        """Return the next piece.

        Raises:
            Aborted: `run_interrupted`: what comes after `offset` is lost with the runtime, or nobody can say.
            NotFound: Nothing is known of the process any more.
        """
        if self._reading is None:
            self._reading = self._read()
        try:
            piece = await anext(self._reading)
        except BaseException:
            self._reading = None
            raise
        self.offset = piece.offset + (len(piece.data) if isinstance(piece, RunOutput) else piece.lost_bytes)
        return piece

    async def aclose(self) -> None:
        """Stop reading; the process goes on. Repeating is safe."""
        if self._reading is not None:
            reading, self._reading = self._reading, None
            await reading.aclose()

    async def text(self) -> AsyncGenerator[str, None]:
        """Yield the output as UTF-8 text; characters cut between pieces are put together, losses shown as U+FFFD."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        async for piece in self:
            lost = isinstance(piece, RunLost)
            text = decoder.decode(b"", final=True) + "\ufffd" if lost else decoder.decode(_data(piece))
            if text:
                yield text
        if rest := decoder.decode(b"", final=True):
            yield rest

    async def _read(self) -> AsyncGenerator[RunOutput | RunLost, None]:
        offsets: dict[Stream, int] = dict.fromkeys(STREAMS, NOWHERE)
        offsets[self.stream] = self.offset
        following = attached(
            self._run_id,
            sandbox_id=self._sandbox_id,
            generation=self._generation,
            offsets=offsets,
            boxes=self._boxes,
            ports=self._ports,
        )
        sights = following.sights()
        try:
            async for sight in sights:
                match sight:
                    case RunOutput() | RunLost():
                        yield sight
                    case NoStatus():
                        raise Aborted(sight.message, code="run_interrupted", admitted="yes")
                    case RunStarted() | RunEnded():
                        pass
        finally:
            await sights.aclose()


def attached(
    run_id: RunId,
    *,
    sandbox_id: SandboxId,
    generation: int,
    offsets: dict[Stream, int],
    boxes: Boxes,
    ports: Ports,
    max_output_bytes: int | None = None,
) -> Following:
    """Return the following of a run that was started before; `generation` 0 = whichever runs."""

    def opening(link: BoxLink, seen: Seen) -> AsyncGenerator[RunEvent, None]:
        left = max_output_bytes
        if left is not None:
            # A limit is per stream; the one that was read least may want all that is left of it.
            left = max(0, left - min(seen.offsets[stream] - offsets[stream] for stream in STREAMS))
        return link.runs.attach(run_id, offsets=seen.offsets, max_output_bytes=left)

    now_s = ports.clock.monotonic_s()
    seen = Seen(began_s=now_s, heard_s=now_s, admitted="yes", generation=generation, offsets=dict(offsets))
    return Following(boxes, sandbox_id=sandbox_id, run_id=run_id, opening=opening, seen=seen, ports=ports)


def _data(piece: RunOutput | RunLost) -> bytes:
    return piece.data if isinstance(piece, RunOutput) else b""
