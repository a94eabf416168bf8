"""Processes of a sandbox: start one and leave it going, list them, take one up again by its id.

Owns what a started process is asked to be. Foreground commands are `sandbox.run`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing

from sandkeeper.boxd.events import RunListing, RunStarted, TerminalSize
from sandkeeper.client.box_link import BoxLink
from sandkeeper.client.boxed import Boxed
from sandkeeper.client.output import NOWHERE
from sandkeeper.client.process import Process
from sandkeeper.client.run_order import RunOrder, argv_of, checked_timeout_s, limits_of
from sandkeeper.client.run_sight import STREAMS
from sandkeeper.client.runs import Runner
from sandkeeper.core.errors import InvalidArgument, NotFound
from sandkeeper.core.ids import RunId, is_run_id


class SandboxProcesses(Boxed):
    """`sandbox.processes`, and `sandbox.spawn`."""

    async def spawn(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | str | None = None,
        stdin_open: bool = False,
        terminal: tuple[int, int] | None = None,
        timeout_s: float | None = None,
        quiet_timeout_s: float | None = None,
        cpu_limit_s: float | None = None,
        detached: bool = False,
        request_id: str | None = None,
    ) -> Process:
        """Start a command and return once it runs; it goes on by itself, whatever becomes of this client.

        Args:
            command: Argv, or a line for `/bin/sh -c`.
            cwd: Folder; None = the sandbox's default.
            env: Variables beside the sandbox's.
            user: User name; None = the sandbox's default.
            stdin: Input; None = none: the command reads an end of file.
            stdin_open: Keep its input open for `write`, until `close_stdin`.
            terminal: Columns and rows of a terminal to run it on.
            timeout_s: The tree is killed after this time; None = never.
            quiet_timeout_s: The tree is killed after this long without any output.
            cpu_limit_s: The tree is killed when it has used this much CPU time.
            detached: A session of its own; it does not keep the sandbox awake.
            request_id: Its id: a repeat with the same one takes up the same process.

        Raises:
            SandkeeperError: As `sandbox.run`.
        """
        if terminal is not None and (stdin is not None or stdin_open):
            raise InvalidArgument("a terminal is written to; it has no other input", code="bad_stdin")
        if stdin is not None and stdin_open:
            raise InvalidArgument("give its input at once or leave it open, not both", code="bad_stdin")
        order = RunOrder(
            argv=argv_of(command),
            run_id=RunId(request_id or f"r{self._ports.new_token()}"),
            cwd=cwd,
            env=dict(env or {}),
            user=user,
            stdin=stdin.encode() if isinstance(stdin, str) else stdin,
            stdin_open=stdin_open,
            timeout_s=None if timeout_s is None else checked_timeout_s(timeout_s),
            limits=limits_of(quiet_timeout_s=quiet_timeout_s, cpu_limit_s=cpu_limit_s),
            terminal=None if terminal is None else TerminalSize(cols=terminal[0], rows=terminal[1]),
            detached=detached,
            send_bytes=0,
        )
        seen = await Runner(self._boxes, ports=self._ports).begin(self._sandbox_id, order)
        return self._process(order.run_id, generation=seen.generation, has_terminal=terminal is not None)

    async def list(self) -> tuple[RunListing, ...]:
        """Return what runs: pid, run_id, argv, cwd, has_terminal, detached; those of other clients too."""
        return await self._with_box(lambda link: link.runs.list())

    async def attach(self, process_id: str, *, offset: int = 0) -> Process:
        """Take a process up by its id: one that runs, or that ended not long ago.

        Args:
            process_id: Its id.
            offset: Where its output streams begin to be read.

        Raises:
            NotFound: No such process in this runtime, or it ended too long ago.
        """
        if not is_run_id(process_id):
            raise InvalidArgument(f"process id {process_id!r:.80}", code="run_id_invalid")
        run_id = RunId(process_id)

        async def look(link: BoxLink) -> RunStarted:
            events = link.runs.attach(run_id, offsets=dict.fromkeys(STREAMS, NOWHERE), max_output_bytes=0)
            async with aclosing(events):
                async for event in events:
                    if isinstance(event, RunStarted):
                        return event
            raise NotFound(f"process {run_id} has no beginning", code="no_such_run")

        started = await self._with_box(look)
        running = {listed.run_id: listed for listed in await self.list()}
        has_terminal = run_id in running and running[run_id].has_terminal
        return self._process(run_id, generation=started.generation, has_terminal=has_terminal, offset=offset)

    def _process(self, run_id: RunId, *, generation: int, has_terminal: bool, offset: int = 0) -> Process:
        return Process(
            self._sandbox_id,
            run_id,
            generation=generation,
            has_terminal=has_terminal,
            offset=offset,
            boxes=self._boxes,
            ports=self._ports,
        )
