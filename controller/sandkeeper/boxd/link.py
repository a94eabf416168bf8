"""The link to one boxd: its control verbs, and the rooms for runs and files built on the same connections.

Owns the meaning of hello, go, quiesce and resume. Never binds sockets (`boot.py`) and never decides what a
lost runtime means: it raises, the owner decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from sandkeeper.boxd import errors
from sandkeeper.boxd.answers import Hello, MetadataSaved, Quiesced, Vitals, checked
from sandkeeper.boxd.box_ports import BoxPorts
from sandkeeper.boxd.files import Files
from sandkeeper.boxd.runs import Runs
from sandkeeper.boxd.transport import Deadlines, Transport
from sandkeeper.boxd.vitals import read_vitals
from sandkeeper.core.ids import BirthId
from sandkeeper.ports import Ports

PROTOCOL = 1
CONTROL_ANSWER_LIMIT_BYTES = 1024 * 1024


class BoxControl(Protocol):
    """The owner's side of boxd; `BoxdLink` and the fake in tests both have it."""

    async def hello(self, *, timeout_s: float = 1.0) -> Hello:
        """Return who answers. A paused runtime accepts and is silent: `runtime_silent` after `timeout_s`."""
        ...

    async def go(
        self,
        *,
        birth_id: BirthId,
        user: str | None = None,
        workdir: str | None = None,
        env: Mapping[str, str] | None = None,
        env_defaults: Mapping[str, str] | None = None,
        disk_limit_bytes: int | None = None,
    ) -> Hello:
        """Let the box work, or adopt it with this link's epoch. Repeating is safe."""
        ...

    async def quiesce(self, *, reason: str, force: bool = False, wait_s: float = 0.0) -> Quiesced:
        """Ask boxd to take no new work. Repeating is safe."""
        ...

    async def resume(self) -> Hello:
        """Let boxd take work again. Repeating is safe."""
        ...

    async def aclose(self) -> None:
        """Close the connections. Repeating is safe."""
        ...


class BoxdLink:
    """A client of the boxd behind `control_path`, for one event loop.

    Constructing opens nothing. Connections are made when needed and kept; `aclose` ends them. All verbs have
    deadlines on this side.

    Attributes:
        runs: Commands.
        files: Files and archives.
    """

    def __init__(
        self,
        control_path: Path,
        *,
        generation: int,
        epoch: int,
        ports: Ports,
        deadlines: Deadlines | None = None,
    ) -> None:
        self._ports = ports
        self._transport = Transport(
            control_path, generation=generation, epoch=epoch, ports=ports, deadlines=deadlines or Deadlines()
        )
        self.runs = Runs(self._transport, ports=ports)
        self.files = Files(self._transport)
        self.ports = BoxPorts(self._transport)

    @property
    def generation(self) -> int:
        """The runtime's number that every call is stamped with."""
        return self._transport.generation

    @property
    def epoch(self) -> int:
        """The owner's epoch that every call is stamped with."""
        return self._transport.epoch

    async def hello(self, *, timeout_s: float = 1.0) -> Hello:
        """Return who answers.

        Raises:
            Unavailable: `runtime_unreachable` (nobody has the listener) or `runtime_silent` (accepts, does
                not answer: perhaps paused).
            Aborted: `box_answer_invalid`, `connection_lost`.
        """
        return await self._hello("GET", "hello", None, step="hello", wait_s=timeout_s)

    async def go(
        self,
        *,
        birth_id: BirthId,
        user: str | None = None,
        workdir: str | None = None,
        env: Mapping[str, str] | None = None,
        env_defaults: Mapping[str, str] | None = None,
        disk_limit_bytes: int | None = None,
    ) -> Hello:
        """Let the box work as this link's generation and epoch. A repeat, or a higher epoch, adopts it.

        Args:
            birth_id: Must equal the container's host name.
            user: Default user of commands; None = the image's.
            workdir: Default folder; None = the user's home.
            env: Variables of every command; only the first go sets them.
            env_defaults: Variables where neither the image nor `env` sets them; only the first go sets them.
            disk_limit_bytes: What may be written to the root filesystem; None = no limit of boxd's.

        Raises:
            FailedPrecondition: `stale_epoch` (details: epoch), `wrong_generation`.
        """
        document = {
            "birthId": birth_id,
            "generation": self.generation,
            "epoch": self.epoch,
            "user": user,
            "workdir": workdir,
            "env": dict(env or {}),
        }
        if env_defaults:
            document["envDefaults"] = dict(env_defaults)
        if disk_limit_bytes is not None:
            document["diskLimitBytes"] = disk_limit_bytes
        hello = await self._hello("POST", "go", document, step="go")
        if hello.birth_id != birth_id:
            raise errors.invalid_answer(f"birth id {hello.birth_id!r}", step="go", admitted="yes")
        return hello

    async def quiesce(self, *, reason: str, force: bool = False, wait_s: float = 0.0) -> Quiesced:
        """Ask boxd to take no new work.

        Args:
            reason: Why, for boxd's answers to others.
            force: Also while commands run; they go on.
            wait_s: How long boxd may wait for running commands before it answers `busy`.

        Raises:
            FailedPrecondition: `stale_epoch`.
        """
        document = {"epoch": self.epoch, "reason": reason, "force": force, "waitMs": round(wait_s * 1000)}
        answer = await self._transport.unary(
            "POST",
            "/sandkeeper/v1/quiesce",
            document,
            step="quiesce",
            wait_s=wait_s + self._transport.deadlines.answer_s,
            limit_bytes=CONTROL_ANSWER_LIMIT_BYTES,
        )
        return checked(Quiesced, answer, step="quiesce")

    async def resume(self) -> Hello:
        """Let boxd take work again after quiesce."""
        return await self._hello("POST", "resume", {"epoch": self.epoch}, step="resume")

    async def health(self, *, timeout_s: float = 1.0) -> None:
        """Return if boxd answers at all.

        Raises:
            Unavailable: `runtime_unreachable` or `runtime_silent`.
        """
        exchange = await self._transport.begin("GET", "/health", step="health")
        try:
            await exchange.expect(204, wait_s=timeout_s)
        finally:
            exchange.close()

    async def vitals(self, *, timeout_s: float = 2.0) -> Vitals:
        """Return what boxd says of the box's health.

        Raises:
            Unavailable: `runtime_unreachable` or `runtime_silent`.
            Aborted: `box_answer_invalid`, `connection_lost`.
        """
        return await read_vitals(self._transport, timeout_s=timeout_s)

    async def save_metadata(self, *, timeout_s: float) -> MetadataSaved:
        """Have boxd write user attributes and nanosecond times into its side file, for a restore to bring back.

        Raises:
            Unavailable: `runtime_unreachable` or `runtime_silent`.
            FailedPrecondition: `stale_epoch`.
        """
        answer = await self._transport.unary(
            "POST",
            "/sandkeeper/v1/metadata/save",
            {"epoch": self.epoch},
            step="metadata.save",
            wait_s=timeout_s,
            limit_bytes=CONTROL_ANSWER_LIMIT_BYTES,
        )
        return checked(MetadataSaved, answer, step="metadata.save")

    async def aclose(self) -> None:
        """Close the connections and wait for the kills that cancelled calls left. Repeating is safe."""
        await self.runs.settle()
        self._transport.close()
        await self._ports.sleep(0)  # one turn of the loop, in which the sockets are really closed

    async def _hello(
        self,
        method: str,
        verb: str,
        document: dict[str, Any] | None,
        *,
        step: str,
        wait_s: float | None = None,
    ) -> Hello:
        answer = await self._transport.unary(
            method,
            f"/sandkeeper/v1/{verb}",
            document,
            step=step,
            wait_s=wait_s,
            limit_bytes=CONTROL_ANSWER_LIMIT_BYTES,
        )
        hello = checked(Hello, answer, step=step)
        if hello.protocol != PROTOCOL:
            raise errors.invalid_answer(
                f"protocol {hello.protocol}, ours is {PROTOCOL}", step=step, admitted="yes"
            )
        return hello
