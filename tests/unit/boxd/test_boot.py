"""The hand-over between real processes: who is believed, who is refused, and what an owner's death leaves."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sandkeeper.boxd import BootListener, BoxdLink, is_listening, remove_folders
from sandkeeper.boxd.boot import IMPOSTORS_PER_PAUSE
from sandkeeper.boxd.paths import SOCKET_ADDRESS_BYTES, SocketAddress
from sandkeeper.core.errors import FailedPrecondition, Unavailable
from sandkeeper.core.ids import BirthId
from sandkeeper.ports import real_ports

BIRTH = BirthId("sk-0123456789abcdef")

BOXD = """
import array, json, os, socket, sys
os.chdir(sys.argv[1])
protocol = int(sys.argv[2])
boot = socket.socket(socket.AF_UNIX)
boot.connect("boot.sock")
try:
    boot.sendall(json.dumps({"protocol": protocol, "build": "test", "pid1": True}).encode() + b"\\n")
    line, rights, _, _ = boot.recvmsg(4096, socket.CMSG_SPACE(4))
except ConnectionError:
    line, rights = b"", []
print(line.decode().strip() or "closed", flush=True)
if rights:
    fd = array.array("i", rights[0][2])[0]
    listener = socket.socket(fileno=fd)
    listener.setblocking(True)
    body = b'{"protocol":1,"birthId":"%b","state":"waiting"}' % sys.argv[3].encode()
    while True:
        peer, _ = listener.accept()
        if peer.recv(4096):
            peer.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body)
        peer.close()
"""

FLOOD = """
import os, socket, sys
os.chdir(sys.argv[1])
for _ in range(int(sys.argv[2])):
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect("boot.sock")
print("done", flush=True)
sys.stdin.read()
"""


class Watched(BootListener):
    """A listener that keeps what it reports."""

    def __init__(self, state_dir: Path) -> None:
        self.reports: list[tuple[int, int]] = []
        super().__init__(state_dir, birth_id=BIRTH, ports=real_ports(), on_impostor=self._keep)

    def _keep(self, pid: int, count: int) -> None:
        self.reports.append((pid, count))


class Children:
    """Real processes of a test; all are ended with it."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[str]] = []

    def python(self, code: str, *arguments: object) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._started.append(child)
        return child

    def boxd(self, boot: BootListener, *, protocol: int = 1) -> subprocess.Popen[str]:
        return self.python(BOXD, boot.boot_folder, protocol, boot.birth_id)

    def end(self) -> None:
        for child in self._started:
            child.kill()
            child.communicate()


@pytest.fixture
def children() -> Iterator[Children]:
    made = Children()
    yield made
    made.end()


@pytest.fixture
async def boot(tmp_path: Path) -> AsyncIterator[Watched]:
    listener = Watched(tmp_path)
    listener.open()
    yield listener
    listener.close()


async def line_of(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return (await asyncio.to_thread(child.stdout.readline)).strip()


async def test_process_one_gets_the_listener_and_hosts_reach_it(
    boot: BootListener, children: Children, tmp_path: Path
) -> None:
    assert is_listening(boot.control_path)
    box = children.boxd(boot)
    greeting = await boot.hand_over(pid=box.pid, timeout_s=20)
    assert greeting is not None
    assert (greeting.protocol, greeting.build) == (1, "test")
    assert await line_of(box) == '{"protocol":1,"ok":true}'
    link = BoxdLink(boot.control_path, generation=1, epoch=1, ports=real_ports())
    assert (await link.hello(timeout_s=20)).birth_id == BIRTH
    await link.aclose()
    box.kill()
    box.wait()
    assert not is_listening(boot.control_path)
    with pytest.raises(Unavailable) as caught:
        await link.hello()
    assert caught.value.code == "runtime_unreachable"


async def test_process_one_may_come_before_its_pid_is_known(boot: Watched, children: Children) -> None:
    box = children.boxd(boot)
    while not boot._early:
        await asyncio.sleep(0.001)
    assert await boot.hand_over(pid=box.pid, timeout_s=20) is not None
    assert boot.impostor_count == 0


async def test_an_impostor_gets_nothing_and_is_counted(boot: Watched, children: Children) -> None:
    impostor = children.boxd(boot)
    while not boot._early:
        await asyncio.sleep(0.001)
    box = children.boxd(boot)
    assert await boot.hand_over(pid=box.pid, timeout_s=20) is not None
    assert await line_of(impostor) == "closed"
    assert boot.reports == [(impostor.pid, 1)]


async def test_an_impostor_after_the_hand_over_is_refused_too(boot: Watched, children: Children) -> None:
    box = children.boxd(boot)
    await boot.hand_over(pid=box.pid, timeout_s=20)
    impostor = children.boxd(boot)
    assert await line_of(impostor) == "closed"
    assert boot.impostor_count == 1


async def test_a_second_fetch_by_process_one_itself_is_refused(boot: BootListener) -> None:
    assert await fetch(boot) != b""
    assert boot.is_handed_over
    assert await fetch(boot) == b""
    assert boot.impostor_count == 0


async def fetch(boot: BootListener) -> bytes:
    """Play boxd in this very process, whose pid is the awaited one."""
    waiting = asyncio.get_running_loop().create_task(boot.hand_over(pid=os.getpid(), timeout_s=20))
    with socket.socket(socket.AF_UNIX) as peer:
        peer.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(peer, str(boot.boot_folder / "boot.sock"))
        await loop.sock_sendall(peer, b'{"protocol":1,"build":"b","pid1":true}\n')
        data = await answer_to(peer)
    await waiting
    return data


async def answer_to(peer: socket.socket) -> bytes:
    """Return what the listener says; b"" when it hangs up, with or without a reset."""
    try:
        return await asyncio.get_running_loop().sock_recv(peer, 100)
    except ConnectionResetError:
        return b""


async def test_a_flood_does_not_keep_process_one_out(boot: Watched, children: Children) -> None:
    flood = children.python(FLOOD, boot.boot_folder, IMPOSTORS_PER_PAUSE * 10)
    box = children.boxd(boot)
    assert await boot.hand_over(pid=box.pid, timeout_s=60) is not None
    assert await line_of(flood) == "done"
    assert await line_of(box) == '{"protocol":1,"ok":true}'
    assert len(boot.reports) <= boot.impostor_count


async def test_nonsense_from_process_one_is_let_go_and_it_may_come_again(boot: BootListener) -> None:
    waiting = asyncio.get_running_loop().create_task(boot.hand_over(pid=os.getpid(), timeout_s=20))
    loop = asyncio.get_running_loop()
    for nonsense in (b"\n", b"[]\n", b"x" * 5000, b'{"protocol":"1"}\n'):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.setblocking(False)
            await loop.sock_connect(peer, str(boot.boot_folder / "boot.sock"))
            await loop.sock_sendall(peer, nonsense)
            assert await answer_to(peer) == b""
    assert await fetch(boot) == b'{"protocol":1,"ok":true}\n'
    await waiting


async def test_another_protocol_is_said_to_both_sides(boot: Watched, children: Children) -> None:
    box = children.boxd(boot, protocol=2)
    with pytest.raises(FailedPrecondition) as caught:
        await boot.hand_over(pid=box.pid, timeout_s=20)
    assert caught.value.code == "boxd_protocol"
    assert '"ok":false' in await line_of(box)


async def test_nobody_comes(boot: BootListener) -> None:
    with pytest.raises(Unavailable) as caught:
        await boot.hand_over(pid=1, timeout_s=0.01)
    assert (caught.value.code, caught.value.admitted) == ("boxd_not_booted", "yes")


async def test_closing_wakes_who_waits(boot: BootListener) -> None:
    waiting = asyncio.get_running_loop().create_task(boot.hand_over(pid=1, timeout_s=20))
    await asyncio.sleep(0)
    boot.close()
    with pytest.raises(Unavailable) as caught:
        await waiting
    assert caught.value.code == "boot_closed"


async def test_an_owner_that_died_before_the_hand_over_is_replaced(
    boot: BootListener, children: Children, tmp_path: Path
) -> None:
    boot.close()
    assert not is_listening(boot.control_path)
    second = BootListener(tmp_path, birth_id=BIRTH, ports=real_ports())
    with closing(second):
        assert second.open() is False
        box = children.boxd(second)
        assert await second.hand_over(pid=box.pid, timeout_s=20) is not None


async def test_an_owner_that_died_after_the_hand_over_leaves_the_listener_alone(
    boot: BootListener, children: Children, tmp_path: Path
) -> None:
    box = children.boxd(boot)
    await boot.hand_over(pid=box.pid, timeout_s=20)
    boot.close()
    second = BootListener(tmp_path, birth_id=BIRTH, ports=real_ports())
    with closing(second):
        assert second.open() is True
        assert await second.hand_over(pid=box.pid, timeout_s=1) is None
        link = BoxdLink(second.control_path, generation=1, epoch=2, ports=real_ports())
        assert (await link.hello(timeout_s=20)).birth_id == BIRTH
        await link.aclose()
        impostor = children.boxd(second)
        assert await line_of(impostor) == "closed"
        assert second.impostor_count == 1


async def test_folders_are_private_and_go_away(boot: BootListener, tmp_path: Path) -> None:
    for folder in (boot.boot_folder, boot.control_path.parent, tmp_path / "c"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    boot.close()
    remove_folders(tmp_path, birth_id=BIRTH)
    remove_folders(tmp_path, birth_id=BIRTH)
    assert not boot.boot_folder.exists()
    assert not boot.control_path.parent.exists()


async def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    folder = tmp_path / "r" / BIRTH
    folder.mkdir(parents=True)
    (folder / "precious").write_text("x")
    with pytest.raises(FailedPrecondition):
        remove_folders(tmp_path, birth_id=BIRTH)
    assert (folder / "precious").exists()


async def test_a_link_in_the_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "r" / BIRTH).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FailedPrecondition) as caught:
        BootListener(tmp_path, birth_id=BIRTH, ports=real_ports()).open()
    assert caught.value.code == "state_folder_unsafe"


async def test_a_long_state_folder_fits(children: Children, tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100) / ("y" * 100)
    deep.mkdir(parents=True)
    boot = BootListener(deep, birth_id=BIRTH, ports=real_ports())
    assert len(str(boot.control_path)) > SOCKET_ADDRESS_BYTES
    with closing(boot):
        boot.open()
        box = children.boxd(boot)
        await boot.hand_over(pid=box.pid, timeout_s=20)
        link = BoxdLink(boot.control_path, generation=1, epoch=1, ports=real_ports())
        assert (await link.hello(timeout_s=20)).birth_id == BIRTH
        await link.aclose()


def test_an_address_gives_its_folder_back(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    address = SocketAddress(tmp_path / ("z" * 120) / "s")
    address.path.parent.mkdir()
    assert address.text().startswith("/proc/self/fd/")
    assert address.text() == address.text()
    address.close()
    address.close()
    assert len(os.listdir("/proc/self/fd")) == before
