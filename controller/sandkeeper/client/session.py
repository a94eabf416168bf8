"""A shell session: commands one after the other that find the folder and the variables the last one left.

Owns the small script around each command. There is no shell that stays: each command is a run of its own with its
own exit status and timeout, and hands its folder and exported variables on through a file in the sandbox. So `exit`
ends one command, a stuck one holds up nobody, and a new owner or client changes nothing. Not handed on: functions,
aliases, unexported variables, and what a killed or `exec`ed command would have left.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from sandkeeper.client.run_order import RunOrder, checked_timeout_s
from sandkeeper.client.run_result import RunResult
from sandkeeper.client.run_sight import OnOutput
from sandkeeper.client.runs import Runner
from sandkeeper.core.errors import FailedPrecondition, SandkeeperError
from sandkeeper.core.ids import RunId, SandboxId
from sandkeeper.ports import Ports

ENDED_STATUS = 97
SHELL_LIMIT_S = 30.0

_LOAD = """
sandkeeper_id=${SANDKEEPER_RUN_ID-}
[ -r "$0" ] && . "$0" && SANDKEEPER_RUN_ID=$sandkeeper_id && cd -- "$PWD" || {
  printf '%s\\n' "$1" >&2
  exit 97
}
"""
_SAVE = """
sandkeeper_save() {
  PWD=$(pwd) && export PWD && umask 077 && export -p >"$0.new" && mv -f -- "$0.new" "$0"
}
"""
OPENING = f'{_SAVE}sandkeeper_save "$0"'
COMMAND = f"""{_LOAD}{_SAVE}
sandkeeper_line=$2
set --
trap sandkeeper_save EXIT
eval "$sandkeeper_line"
"""


class Session:
    """A session; `async with` closes it. Commands may also run at once: the last to end leaves its state.

    Raises (all of its commands):
        FailedPrecondition: `session_ended`: its folder or its kept state is gone; open another.
    """

    def __init__(
        self,
        sandbox_id: SandboxId,
        *,
        state_path: str,
        order: dict[str, Any],
        shell: str,
        runner: Runner,
        ports: Ports,
    ) -> None:
        self._sandbox_id = sandbox_id
        self._state_path = state_path
        self._order = order
        self._shell = shell
        self._runner = runner
        self._ports = ports
        self._lost = f"sandkeeper: session state is gone {ports.new_token()}"

    async def open(self) -> Self:
        """Keep the first state: folder and variables of a fresh shell."""
        made = await self._run(OPENING, timeout_s=SHELL_LIMIT_S)
        if not made.is_success:
            raise FailedPrecondition(
                f"no session: {made.outcome} {made.exit_code}: {made.stderr[-300:]}", code="session_ended"
            )
        return self

    async def run(
        self,
        line: str,
        *,
        timeout_s: float = 300.0,
        on_output: OnOutput | None = None,
        request_id: str | None = None,
    ) -> RunResult:
        """Run a line of shell where the last one left off. `exit 3` is a result with 3, and the session goes on."""
        result = await self._run(
            COMMAND, self._lost, line, timeout_s=timeout_s, on_output=on_output, request_id=request_id
        )
        if result.exit_code == ENDED_STATUS and self._lost in result.stderr:
            raise FailedPrecondition(
                f"session of sandbox {self._sandbox_id}: its folder or its kept state is gone",
                code="session_ended",
                advice="open another session",
                sandbox_id=self._sandbox_id,
            )
        return result

    async def close(self) -> None:
        """Remove what is kept of it. Repeating is safe."""
        await self._run('rm -f -- "$0" "$0.new"', timeout_s=SHELL_LIMIT_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except SandkeeperError as left:
            if error is None:
                raise
            error.add_note(f"the session's state was not removed: {left}")

    async def _run(
        self,
        script: str,
        *words: str,
        timeout_s: float,
        on_output: OnOutput | None = None,
        request_id: str | None = None,
    ) -> RunResult:
        order = RunOrder(
            argv=(self._shell, "-c", script, self._state_path, *words),
            run_id=RunId(request_id or f"r{self._ports.new_token()}"),
            timeout_s=checked_timeout_s(timeout_s),
            **self._order,
        )
        return await self._runner.run(self._sandbox_id, order, on_output=on_output)
