"""The accepting side of a container's start: boxd comes to the boot socket and is given its listener, once.

Owns `boot.sock` and `control.sock` of one birth id until the listener is handed over, and after that the
watch over `boot.sock`: whoever else comes there is an impostor, refused and counted. Never reads a byte of a
peer whose pid is not the container's process 1, and never believes what a peer says about itself.

Each peer is known by SO_PEERCRED, which the kernel fills at connect. Refusals are cheap (no task, no read)
and their rate is bounded: a flood fills the kernel's backlog, not this loop.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

from sandkeeper.boxd.boot_sockets import (
    Greeting,
    bind_listener,
    is_listening,
    peer_pid,
    read_greeting,
    send_answer,
)
from sandkeeper.boxd.paths import (
    BOOT_SOCKET,
    boot_folder,
    control_socket,
    make_private_folder,
)
from sandkeeper.core.errors import FailedPrecondition, SandkeeperError, Unavailable
from sandkeeper.core.ids import BirthId
from sandkeeper.ports import Ports

PROTOCOL = 1
CONTROL_BACKLOG = 4096
BOOT_BACKLOG = 64
GREETING_WAIT_S = 2.0
ACCEPTS_PER_TURN = 16
IMPOSTORS_PER_PAUSE = 64
"""After so many refusals the listener rests for `PAUSE_S`: a flood costs at most some percent of a core."""
PAUSE_S = 0.05
REPORT_EVERY_S = 1.0
"""Impostors are reported at the first and then at most this often, with the total."""

OnImpostor = Callable[[int, int], None]


class BootListener:
    """The boot socket of one birth id, for one event loop."""

    def __init__(
        self, state_dir: Path, *, birth_id: BirthId, ports: Ports, on_impostor: OnImpostor | None = None
    ) -> None:
        self.birth_id = birth_id
        self.boot_folder = boot_folder(state_dir, birth_id=birth_id)
        self.control_path = control_socket(state_dir, birth_id=birth_id)
        self.impostor_count = 0
        self._ports = ports
        self._on_impostor = on_impostor
        self._loop: asyncio.AbstractEventLoop | None = None
        self._boot: socket.socket | None = None
        self._control: socket.socket | None = None
        self._pid: int | None = None
        self._done: asyncio.Future[Greeting] | None = None
        self._early: list[socket.socket] = []
        self._greeting_task: asyncio.Task[None] | None = None
        self._pause_task: asyncio.Task[None] | None = None
        self._refused_since_pause = 0
        self._reported_at_s: float | None = None
        self._is_handed_over = False

    @property
    def is_handed_over(self) -> bool:
        """Whether boxd has the listener, given by us or by an owner before us."""
        return self._is_handed_over

    def open(self) -> bool:
        """Make the folders and bind both sockets; returns whether the listener was handed over before.

        Repeating after an owner's death is safe: sockets nobody listens on are replaced; a control socket
        somebody listens on is boxd's, and stays. Must be called before the container is started, with the
        loop running.

        Raises:
            FailedPrecondition: What lies at these paths is not ours (`state_folder_unsafe`).
            OSError: The folders cannot be made or the sockets cannot be bound.
        """
        make_private_folder(self.boot_folder)
        make_private_folder(self.control_path.parent)
        self._is_handed_over = is_listening(self.control_path)
        try:
            if not self._is_handed_over:
                self._control = bind_listener(self.control_path, backlog=CONTROL_BACKLOG)
            self._boot = bind_listener(self.boot_folder / BOOT_SOCKET, backlog=BOOT_BACKLOG)
        except BaseException:
            self.close()
            raise
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._boot.fileno(), self._accept)
        return self._is_handed_over

    async def hand_over(self, *, pid: int, timeout_s: float) -> Greeting | None:
        """Wait for process `pid` (as this host sees it) and give it the listener.

        Returns:
            What it said, or None if it has had the listener since before this object was made.

        Raises:
            Unavailable: It did not come in time (`boxd_not_booted`); a repeat waits on.
            FailedPrecondition: It speaks another version (`boxd_protocol`), or `open` was not called.
        """
        if self._pid is not None and self._pid != pid:
            raise FailedPrecondition(
                f"{self.birth_id}: waits for pid {self._pid} already", code="boot_pid_fixed"
            )
        self._pid = pid
        if self._is_handed_over and self._done is None:
            self._sort_early()
            return None
        if self._boot is None:
            raise FailedPrecondition(f"{self.birth_id}: the boot socket is not open", code="boot_not_open")
        if self._done is None:
            self._done = asyncio.get_running_loop().create_future()
        self._sort_early()
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(self._done)
        except TimeoutError as error:
            raise Unavailable(
                f"{self.birth_id}: boxd (pid {pid}) did not fetch its listener in {timeout_s:g} s",
                code="boxd_not_booted",
                admitted="yes",
                details={"impostors": self.impostor_count},
            ) from error

    def close(self) -> None:
        """Close the sockets; the files stay for `paths.remove_folders`. Repeating is safe.

        A listener that was handed over lives on in boxd.
        """
        for task in (self._greeting_task, self._pause_task):
            if task is not None:
                task.cancel()
        self._greeting_task = self._pause_task = None
        while self._early:
            self._early.pop().close()
        if self._boot is not None:
            if self._loop is not None:
                self._loop.remove_reader(self._boot.fileno())
            self._boot.close()
            self._boot = None
        if self._control is not None:
            self._control.close()
            self._control = None
        self._fail(
            Unavailable(f"{self.birth_id}: the boot socket was closed", code="boot_closed", admitted="yes")
        )

    # ------------------------------------------------------------ who comes

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            if self._boot is None or self._pause_task is not None:
                return
            try:
                peer, _ = self._boot.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                # No descriptors or no memory: the peer stays in the kernel's queue until the rest is over, and
                # a boxd that waits too long for it is reported by `hand_over`.
                self._pause()
                return
            peer.setblocking(False)
            if self._pid is not None:
                self._judge(peer)
            elif len(self._early) < ACCEPTS_PER_TURN:
                self._early.append(peer)
            else:
                peer.close()

    def _sort_early(self) -> None:
        """Judge those who came before the container's pid was known."""
        early, self._early = self._early, []
        for peer in early:
            self._judge(peer)

    def _judge(self, peer: socket.socket) -> None:
        pid = peer_pid(peer)
        if pid == self._pid and not self._is_handed_over:
            if self._greeting_task is not None:
                self._greeting_task.cancel()
            self._greeting_task = self._ports.spawn(self._greet(peer), name=f"boot {self.birth_id}")
            return
        peer.close()
        if pid != self._pid:
            self._count_impostor(pid)

    def _count_impostor(self, pid: int) -> None:
        self.impostor_count += 1
        self._refused_since_pause += 1
        if self._refused_since_pause >= IMPOSTORS_PER_PAUSE:
            self._pause()
        now_s = self._ports.clock.monotonic_s()
        is_due = self._reported_at_s is None or now_s - self._reported_at_s >= REPORT_EVERY_S
        if is_due and self._on_impostor is not None:
            self._reported_at_s = now_s
            self._on_impostor(pid, self.impostor_count)

    def _pause(self) -> None:
        """Take nobody for a moment; those who wait stay in the kernel's queue, in order."""
        if self._boot is not None and self._loop is not None and self._pause_task is None:
            self._loop.remove_reader(self._boot.fileno())
            self._pause_task = self._ports.spawn(self._rest(), name=f"boot pause {self.birth_id}")

    async def _rest(self) -> None:
        await self._ports.sleep(PAUSE_S)
        self._pause_task = None
        self._refused_since_pause = 0
        if self._boot is not None and self._loop is not None:
            self._loop.add_reader(self._boot.fileno(), self._accept)

    # ------------------------------------------------------------ the hand-over

    async def _greet(self, peer: socket.socket) -> None:
        """Read boxd's line and answer with the listener; a peer that says nothing useful is let go."""
        with peer:
            try:
                async with asyncio.timeout(GREETING_WAIT_S):
                    greeting = await read_greeting(peer)
            except (TimeoutError, OSError, ValueError):
                # Process 1 that is cut off or talks nonsense comes again by contract; until it does, the
                # waiting `hand_over` is what reports it.
                return
            if greeting.protocol != PROTOCOL:
                send_answer(peer, {"protocol": PROTOCOL, "ok": False, "error": "protocol"}, listener=None)
                self._refuse_version(greeting)
                return
            if self._control is None or self._is_handed_over:
                return
            try:
                send_answer(peer, {"protocol": PROTOCOL, "ok": True}, listener=self._control)
            except OSError:
                # It went away before the answer: nothing was given, it comes again.
                return
        self._is_handed_over = True
        self._control.close()
        self._control = None
        if self._done is not None and not self._done.done():
            self._done.set_result(greeting)

    def _refuse_version(self, greeting: Greeting) -> None:
        self._fail(
            FailedPrecondition(
                f"{self.birth_id}: boxd speaks protocol {greeting.protocol}, the owner {PROTOCOL}",
                code="boxd_protocol",
                admitted="yes",
            )
        )

    def _fail(self, error: SandkeeperError) -> None:
        """Tell whoever waits in `hand_over`, now or later."""
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
            self._done.exception()  # marks it as seen: it may be that nobody waits any more
