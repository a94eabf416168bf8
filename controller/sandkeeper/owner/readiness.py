"""The start command of a sandbox: run in every new runtime, and waited for until it is ready.

Owns what counts as ready. The command is a detached run named by the generation, so a repeat after an owner's
crash attaches to it instead of starting it twice.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import assert_never

from sandkeeper.boxd import BoxdLink, RunEnded, RunOutput, RunStarted
from sandkeeper.core.errors import Aborted, Internal, SandkeeperError, Unavailable
from sandkeeper.core.ids import RunId
from sandkeeper.core.record import SandboxRecord
from sandkeeper.core.spec import CommandReady, HttpReady, LogReady, Ready, TcpReady
from sandkeeper.ports import Ports

TAIL_BYTES = 4096
POLL_S = 0.2
PORT_WAIT_S = 1.0
PROBE_TIMEOUT_S = 10.0
KEPT_OUTPUT_BYTES = 16 * 1024 * 1024


class StartCommand:
    """Runs one generation's start command and waits until it is ready."""

    def __init__(self, record: SandboxRecord, *, link: BoxdLink, ports: Ports) -> None:
        self._spec = record.spec
        self._generation = record.generation
        self._link = link
        self._ports = ports
        self._started = asyncio.Event()
        self._log_seen = asyncio.Event()
        self._tail = b""

    async def bring_up(self) -> None:
        """Start the command and return when it is ready. Bounded by the caller.

        Raises:
            Aborted: `start_command_ended` before it was ready, with exit code and last output.
            SandkeeperError: It could not be started.
        """
        if self._spec.start is None:
            return
        follow = self._ports.spawn(self._follow(self._spec.start), name="start command")
        probe = self._ports.spawn(self._probe(self._spec.ready), name="readiness")
        try:
            await asyncio.wait((follow, probe), return_when=asyncio.FIRST_COMPLETED)
            if probe.done():
                probe.result()
                return
            follow.result()
            raise Internal("the start command's stream ended without an end")
        finally:
            follow.cancel()
            probe.cancel()
            await asyncio.gather(follow, probe, return_exceptions=True)

    async def _follow(self, argv: tuple[str, ...]) -> None:
        """Read the command's stream; ends only by its end."""
        run_id = RunId(f"start-{self._generation}")
        stream = self._link.runs.start(argv, run_id=run_id, detached=True, max_output_bytes=KEPT_OUTPUT_BYTES)
        async with aclosing(stream) as events:
            async for event in events:
                match event:
                    case RunStarted():
                        self._started.set()
                    case RunOutput():
                        self._note(event.data)
                    case RunEnded():
                        raise _ended_early(event, tail=self._tail)
                    case _:
                        continue

    def _note(self, data: bytes) -> None:
        """Look for the awaited text; a text cut by two pieces of output is found too."""
        ready = self._spec.ready
        self._tail += data
        if isinstance(ready, LogReady) and ready.text.encode() in self._tail:
            self._log_seen.set()
        self._tail = self._tail[-TAIL_BYTES:]

    async def _probe(self, ready: Ready | None) -> None:
        await self._started.wait()
        match ready:
            case None:
                return
            case LogReady():
                await self._log_seen.wait()
            case TcpReady():
                await self._wait_port(ready.port)
            case HttpReady():
                await self._wait_http(ready)
            case CommandReady():
                await self._wait_command(ready)
            case _:
                assert_never(ready)

    async def _wait_port(self, port: int) -> None:
        while True:
            try:
                await self._link.ports.wait(port, timeout_s=PORT_WAIT_S)
                return
            except Unavailable:
                await self._ports.sleep(POLL_S)

    async def _wait_http(self, ready: HttpReady) -> None:
        while True:
            await self._wait_port(ready.port)
            try:
                if await self._http_status(ready) == ready.status:
                    return
            except (SandkeeperError, OSError, TimeoutError, asyncio.IncompleteReadError, ValueError):
                # Not ready yet, whatever it is: the launch's own deadline bounds the waiting.
                pass
            await self._ports.sleep(POLL_S)

    async def _http_status(self, ready: HttpReady) -> int:
        reader, writer = await self._link.ports.dial(ready.port)
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                request = f"GET {ready.path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                writer.write(request.encode())
                await writer.drain()
                status_line = await reader.readuntil(b"\r\n")
            return int(status_line.split(b" ", 2)[1])
        finally:
            writer.close()

    async def _wait_command(self, ready: CommandReady) -> None:
        number = 0
        while True:
            number += 1
            outcome = await self._link.runs.collect(
                ready.argv,
                run_id=RunId(f"ready-{self._generation}-{number}-{self._ports.new_token()}"),
                timeout_ms=round(PROBE_TIMEOUT_S * 1000),
                max_output_bytes=TAIL_BYTES,
            )
            if outcome.outcome == "exited" and outcome.exit_code == 0:
                return
            await self._ports.sleep(POLL_S)


def _ended_early(event: RunEnded, *, tail: bytes) -> Aborted:
    exit_code = event.exit_code if event.outcome == "exited" else None
    output = tail.decode(errors="replace")
    return Aborted(
        f"the start command ended before it was ready: {event.outcome}, exit code {exit_code}; "
        f"last output: {output[-500:]!r}",
        code="start_command_ended",
        admitted="yes",
        details={"exit_code": exit_code, "output_tail": output},
    )
