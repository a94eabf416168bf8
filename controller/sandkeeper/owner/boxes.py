"""The boxes of one owner: for each birth id its boot socket and its link to boxd.

Owns which listeners and links are open. Never touches an engine, and never decides what a silent box means.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from sandkeeper.boxd import BootListener, BoxdLink, boot_folder, control_socket, remove_folders
from sandkeeper.boxd.answers import Vitals
from sandkeeper.core.errors import Aborted, NotFound
from sandkeeper.core.ids import BirthId
from sandkeeper.core.record import SandboxRecord
from sandkeeper.core.sizes import Size
from sandkeeper.owner.readiness import StartCommand
from sandkeeper.owner.tending import Look
from sandkeeper.ports import Ports

HAND_OVER_S = 30.0
LOOK_S = 2.0
METADATA_S = 8.0
"""A drain ends by itself after ten seconds."""

OnImpostor = Callable[[BirthId, int, int], None]


class Boxes(Protocol):
    """What the runner needs of the inside of runtimes; the simulation has a twin of it."""

    def prepare(self, birth_id: BirthId, *, is_fresh: bool) -> None:
        """Make the folders and listen for boxd, unless that is so already.

        Args:
            birth_id: Whose folders.
            is_fresh: A new process 1 will come: a listener left from an earlier one is replaced.
        """
        ...

    async def hand_over(self, birth_id: BirthId, *, pid: int) -> None:
        """Give the container's process 1 its listener, unless it has it.

        Raises:
            SandkeeperError: It did not come in time, or speaks another protocol.
        """
        ...

    async def go(self, record: SandboxRecord) -> None:
        """Let the box work as the record's generation under this owner's epoch; a repeat adopts it.

        Raises:
            SandkeeperError: It does not answer, or refuses.
        """
        ...

    async def bring_up(self, record: SandboxRecord) -> None:
        """Run the sandbox's start command and wait until it is ready; a repeat waits for the same run.

        Raises:
            SandkeeperError: It could not be started, or ended before it was ready.
        """
        ...

    async def look(self, record: SandboxRecord) -> Look:
        """Look at a box that works: how long it has been idle, and what ails it.

        Raises:
            SandkeeperError: It does not answer.
        """
        ...

    async def quiesce_if_idle(self, record: SandboxRecord) -> bool:
        """Have the box take no new work unless some is going on; return whether it is at rest.

        Raises:
            SandkeeperError: It does not answer, or refuses.
        """
        ...

    async def quiesce(self, record: SandboxRecord, *, reason: str) -> None:
        """Have the box take no new work.

        Raises:
            SandkeeperError: It does not answer, or refuses.
        """
        ...

    async def resume(self, record: SandboxRecord) -> None:
        """Have the box take work again.

        Raises:
            SandkeeperError: It does not answer, or refuses.
        """
        ...

    async def save_metadata(self, record: SandboxRecord) -> str | None:
        """Have a drained box write down what a commit loses; return why not all of it was, or None.

        Raises:
            SandkeeperError: It does not answer, or refuses.
        """
        ...

    async def read_head(self, record: SandboxRecord, path: str, *, max_bytes: int) -> bytes | None:
        """Return the beginning of a file of a running box, or None when there is none.

        Raises:
            SandkeeperError: It is no regular file, or the box does not answer.
        """
        ...

    async def overwrite(self, record: SandboxRecord, path: str, content: bytes) -> None:
        """Replace a file's content; its owner and mode stay.

        Raises:
            SandkeeperError: It could not be written, or the box does not answer.
        """
        ...

    async def discard(self, birth_id: BirthId) -> None:
        """Close and remove what belongs to a container that is gone. Repeating is safe."""
        ...


class RealBoxes:
    """Boxes on this machine, in the folders of a state folder."""

    def __init__(self, state_dir: Path, *, epoch: int, ports: Ports, on_impostor: OnImpostor) -> None:
        self._state_dir = state_dir
        self._epoch = epoch
        self._ports = ports
        self._on_impostor = on_impostor
        self._listeners: dict[BirthId, BootListener] = {}
        self._links: dict[tuple[BirthId, int], BoxdLink] = {}

    def prepare(self, birth_id: BirthId, *, is_fresh: bool) -> None:
        """See `Boxes.prepare`."""
        known = self._listeners.get(birth_id)
        if known is not None and not is_fresh:
            return
        if known is not None:
            known.close()
        listener = BootListener(
            self._state_dir,
            birth_id=birth_id,
            ports=self._ports,
            on_impostor=lambda pid, count: self._on_impostor(birth_id, pid, count),
        )
        listener.open()
        self._listeners[birth_id] = listener

    async def hand_over(self, birth_id: BirthId, *, pid: int) -> None:
        """See `Boxes.hand_over`."""
        await self._listeners[birth_id].hand_over(pid=pid, timeout_s=HAND_OVER_S)

    async def go(self, record: SandboxRecord) -> None:
        """See `Boxes.go`."""
        link = self._link(record)
        await link.go(
            birth_id=_birth(record),
            user=record.spec.user,
            workdir=record.spec.workdir,
            env=record.spec.env,
            env_defaults=environment_of(record.spec.size),
            disk_limit_bytes=record.spec.disk_limit_bytes,
        )

    async def bring_up(self, record: SandboxRecord) -> None:
        """See `Boxes.bring_up`."""
        await StartCommand(record, link=self._link(record), ports=self._ports).bring_up()

    async def look(self, record: SandboxRecord) -> Look:
        """See `Boxes.look`."""
        link = self._link(record)
        hello = await link.hello(timeout_s=LOOK_S)
        try:
            vitals = await link.vitals(timeout_s=LOOK_S)
        except NotFound:
            # A runtime started before its boxd knew the route: it answers, more is not known.
            return Look(hello.idle_ms / 1000)
        code, message = ailment_of(vitals)
        return Look(hello.idle_ms / 1000, code, message)

    async def quiesce_if_idle(self, record: SandboxRecord) -> bool:
        """See `Boxes.quiesce_if_idle`."""
        quiesced = await self._link(record).quiesce(reason="idle", force=False)
        return quiesced.state == "drained"

    async def quiesce(self, record: SandboxRecord, *, reason: str) -> None:
        """See `Boxes.quiesce`."""
        quiesced = await self._link(record).quiesce(reason=reason, force=True)
        if quiesced.state != "drained":
            raise Aborted(
                f"the box answered {quiesced.state} to a forced quiesce", code="box_busy", admitted="no"
            )

    async def resume(self, record: SandboxRecord) -> None:
        """See `Boxes.resume`."""
        await self._link(record).resume()

    async def save_metadata(self, record: SandboxRecord) -> str | None:
        """See `Boxes.save_metadata`."""
        saved = await self._link(record).save_metadata(timeout_s=METADATA_S)
        return "too_many_files" if saved.is_truncated else None

    async def read_head(self, record: SandboxRecord, path: str, *, max_bytes: int) -> bytes | None:
        """See `Boxes.read_head`."""
        try:
            return await self._link(record).files.read(path, length=max_bytes, user="root")
        except NotFound:
            return None

    async def overwrite(self, record: SandboxRecord, path: str, content: bytes) -> None:
        """See `Boxes.overwrite`."""
        files = self._link(record).files
        entry = await files.stat(path, user="root")
        await files.write(entry.path, data=content, user=entry.owner or "root")

    async def discard(self, birth_id: BirthId) -> None:
        """See `Boxes.discard`."""
        listener = self._listeners.pop(birth_id, None)
        if listener is not None:
            listener.close()
        for key in [key for key in self._links if key[0] == birth_id]:
            await self._links.pop(key).aclose()
        remove_folders(self._state_dir, birth_id=birth_id)

    async def close(self) -> None:
        """Close every listener and link; boxes go on, and the next owner finds them. Repeating is safe."""
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()
        while self._links:
            await self._links.popitem()[1].aclose()

    def control_path(self, birth_id: BirthId) -> Path:
        """Return the socket on which that box's boxd answers."""
        return control_socket(self._state_dir, birth_id=birth_id)

    def run_folder(self, birth_id: BirthId) -> Path:
        """Return the host folder mounted read-only at `/run/sandkeeper`."""
        return boot_folder(self._state_dir, birth_id=birth_id)

    def _link(self, record: SandboxRecord) -> BoxdLink:
        key = (_birth(record), record.generation)
        if key not in self._links:
            self._links[key] = BoxdLink(
                self.control_path(key[0]), generation=record.generation, epoch=self._epoch, ports=self._ports
            )
        return self._links[key]


def environment_of(size: Size) -> dict[str, str]:
    """Return the variables that tell tools how much processor a sandbox has; the kernel shows them the machine's."""
    return {"SANDKEEPER_VCPU": f"{size.vcpu:g}", "OMP_NUM_THREADS": str(max(1, math.ceil(size.vcpu)))}


def ailment_of(vitals: Vitals) -> tuple[str | None, str]:
    """Return the code and the evidence of what makes ordinary commands impossible in a box, if anything does."""
    if vitals.state == "disk_exceeded":
        return "disk_exceeded", f"{vitals.disk_used_bytes} bytes written, above the sandbox's disk limit"
    if not vitals.can_fork:
        return "pids_exhausted", f"{vitals.pids.current} of {vitals.pids.max} processes exist"
    if not vitals.shell:
        return "sandbox_unhealthy", "/bin/sh is not there or cannot be executed"
    return None, ""


def _birth(record: SandboxRecord) -> BirthId:
    if record.birth_id is None:
        raise AssertionError(f"{record.sandbox_id} claims no runtime")
    return record.birth_id
