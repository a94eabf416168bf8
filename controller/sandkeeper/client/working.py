"""What is done in a sandbox beside running one command to its end: processes, a shell session, ports.

Owns how those parts are put together for a handle. The work itself is theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sandkeeper.client.boxes import Boxes
from sandkeeper.client.ports import SandboxPorts
from sandkeeper.client.process import Process
from sandkeeper.client.processes import SandboxProcesses
from sandkeeper.client.runs import Runner
from sandkeeper.client.session import Session
from sandkeeper.core.ids import SandboxId
from sandkeeper.ports import Ports


class Working:
    """Base of `Sandbox`.

    Attributes:
        processes: What runs in it.
        ports: Its TCP ports.
    """

    def __init__(self, sandbox_id: SandboxId, *, boxes: Boxes, ports: Ports) -> None:
        self._work_in = sandbox_id
        self._work_ports = ports
        self._runner = Runner(boxes, ports=ports)
        self.processes = SandboxProcesses(sandbox_id, boxes=boxes, ports=ports)
        self.ports = SandboxPorts(sandbox_id, boxes=boxes, ports=ports)

    async def spawn(self, command: str | Sequence[str], **options: Any) -> Process:
        """Start a command and leave it going; as `processes.spawn`."""
        return await self.processes.spawn(command, **options)

    async def shell(
        self,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        shell: str = "/bin/sh",
    ) -> Session:
        """Open a shell session: folder and exported variables stay from one command to the next.

        Args:
            cwd: Folder to begin in; None = the sandbox's default.
            env: Variables to begin with, beside the sandbox's.
            user: User of all its commands; None = the sandbox's default.
            shell: A POSIX shell in the sandbox.
        """
        session = Session(
            self._work_in,
            state_path=f"/tmp/.sandkeeper-session-{self._work_ports.new_token()}",
            order={"cwd": cwd, "env": dict(env or {}), "user": user},
            shell=shell,
            runner=self._runner,
            ports=self._work_ports,
        )
        return await session.open()
