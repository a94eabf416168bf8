"""Starts a container engine of our own on a machine where none runs.

Owns the start of `dockerd` (stale pid files, detaching, the wait for its socket, one more try) and the note of which
process it was. It never stops, restarts or reconfigures an engine that runs.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path

from sandkeeper.containers.endpoint import SYSTEM_SOCKET, Endpoint
from sandkeeper.containers.host import Host
from sandkeeper.containers.machine import Machine
from sandkeeper.containers.process_facts import ProcessFacts, read_process
from sandkeeper.core.errors import FailedPrecondition, Unavailable

START_TIMEOUT_S = 60.0
POLL_S = 0.1
LAUNCH_TIMEOUT_S = 20.0
NOTE_NAME = "engine.json"

NO_BRIDGE_FLAGS = ("--bridge=none", "--iptables=false", "--ip6tables=false")
"""For a machine whose kernel or rights allow no bridge: sandboxes have no engine network anyway.

dockerd deletes the bridge `docker0` of its network namespace when it starts with these, so they are only for the one
engine of a machine, or for one in a namespace of its own.
"""

_WORDS_CHARS = 1500
_BRIDGE_TROUBLE = ("iptables", "ip6tables", "network controller", "bridge driver", "nf_tables")


@dataclass(frozen=True, slots=True)
class EnginePaths:
    """Where an engine keeps its things; the defaults are those of the distribution.

    Attributes:
        socket: The socket it listens on.
        pid_file: Where it notes its process.
        log: Receives its output.
        containerd_pid_file: Where its containerd notes its process.
        config_file: Its configuration; what is set there is not repeated as a flag.
        extra_flags: Further flags of dockerd.
        command_prefix: Put before dockerd, such as `unshare --net` for a network namespace of its own.
    """

    socket: Path = SYSTEM_SOCKET
    pid_file: Path = Path("/var/run/docker.pid")
    log: Path = Path("/var/log/sandkeeper-dockerd.log")
    containerd_pid_file: Path = Path("/var/run/docker/containerd/containerd.pid")
    config_file: Path = Path("/etc/docker/daemon.json")
    extra_flags: tuple[str, ...] = ()
    command_prefix: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StartedEngine:
    """The engine process that we started.

    Attributes:
        pid: Its process.
        start_ticks: When it started; with the pid it is unique until a restart of the machine.
        socket: The path it listens on.
        log: Where its output goes.
    """

    pid: int
    start_ticks: int
    socket: str
    log: str


def start_engine(
    machine: Machine, *, paths: EnginePaths | None = None, timeout_s: float = START_TIMEOUT_S
) -> StartedEngine:
    """Start `dockerd` in the background and wait until it answers; tried twice.

    Args:
        machine: Where; we must be root on it.
        paths: Where the engine keeps its things.
        timeout_s: How long one try may take.

    Raises:
        FailedPrecondition: `engine_running_silent`: a dockerd runs but does not answer; it is left alone.
            `engine_config_invalid`.
        Unavailable: `engine_start_failed`: both tries failed; the end of its log is in the message.
    """
    where = paths or EnginePaths()
    _refuse_running(where)
    flags: tuple[str, ...] = ()
    log = ""
    for attempt in (1, 2):
        remove_stale_pid_files(where)
        log_start_bytes = where.log.stat().st_size if where.log.exists() else 0
        pid = _launch(machine.host, paths=where, flags=flags)
        started = _wait(machine, pid=pid, paths=where, timeout_s=timeout_s)
        if started is not None:
            return started
        log = _read_from(where.log, offset_bytes=log_start_bytes)
        if attempt == 1 and any(word in log for word in _BRIDGE_TROUBLE):
            flags = NO_BRIDGE_FLAGS
    raise Unavailable(
        f"dockerd was started twice and did not come up: {telling_words(log)}",
        code="engine_start_failed",
        advice=f"look at {where.log}",
    )


def remove_stale_pid_files(paths: EnginePaths) -> list[Path]:
    """Remove pid files whose process is gone or is something else now; dockerd would refuse to start on them.

    Returns:
        The files removed.
    """
    removed = []
    for path, name in ((paths.pid_file, "dockerd"), (paths.containerd_pid_file, "containerd")):
        if path.is_file() and _process_of(path, name=name) is None:
            path.unlink()
            removed.append(path)
    return removed


def telling_words(log: str) -> str:
    """Return the part of dockerd's log that says why it ended.

    That is what it says outside its log format (its last words on standard error) and its errors; where there is
    none of both, the end of the log. Its containerd goes on writing for a while and would drown them.
    """
    lines = [line for line in log.splitlines() if line.strip()]
    telling = [
        line
        for line in lines
        if not line.startswith("time=") or "level=fatal" in line or "level=error" in line
    ]
    return "\n".join(telling or lines)[-_WORDS_CHARS:]


def note_started(state_dir: Path, *, engine: StartedEngine) -> Path:
    """Write down in the state folder which engine process is ours; a repeat overwrites."""
    state_dir.mkdir(parents=True, exist_ok=True)
    fresh = state_dir / f".{NOTE_NAME}.new"
    fresh.write_text(json.dumps(asdict(engine), indent=2) + "\n")
    return fresh.replace(state_dir / NOTE_NAME)


def _refuse_running(paths: EnginePaths) -> None:
    running = _process_of(paths.pid_file, name="dockerd")
    if running is not None:
        raise FailedPrecondition(
            f"dockerd runs (process {running.pid}) but does not answer at {paths.socket}; it is left alone",
            code="engine_running_silent",
            advice="look at its log; restart it yourself if it is stuck",
        )


def _process_of(pid_file: Path, *, name: str) -> ProcessFacts | None:
    """Return the living process a pid file names, if it is a `name`."""
    try:
        text = pid_file.read_text().strip()
    except FileNotFoundError:
        return None
    facts = read_process(int(text)) if text.isdigit() else None
    return facts if facts and facts.name == name and not facts.is_zombie else None


def _launch(host: Host, *, paths: EnginePaths, flags: tuple[str, ...]) -> int:
    """Start dockerd detached (own session, parent gone) and return its pid."""
    paths.log.parent.mkdir(parents=True, exist_ok=True)
    configured = _configured_keys(paths.config_file)
    wanted = {
        "live-restore": "--live-restore",
        "hosts": f"--host=unix://{paths.socket}",
        "pidfile": f"--pidfile={paths.pid_file}",
    }
    own_flags = [flag for key, flag in wanted.items() if key not in configured]
    command = [*paths.command_prefix, "dockerd", *own_flags, *paths.extra_flags, *flags]
    # The shell is the first child and ends at once; setsid becomes dockerd in a session of its own.
    script = f"setsid {shlex.join(command)} </dev/null >>{shlex.quote(str(paths.log))} 2>&1 & echo $!"
    launched = host.run(["sh", "-c", script], timeout_s=LAUNCH_TIMEOUT_S)
    if launched.exit_code != 0 or not launched.output.strip().isdigit():
        raise Unavailable(f"dockerd could not be launched: {launched.tail}", code="engine_start_failed")
    return int(launched.output)


def _configured_keys(config_file: Path) -> frozenset[str]:
    """Return what the engine's configuration sets: dockerd refuses to start on a flag that repeats it."""
    if not config_file.is_file():
        return frozenset()
    try:
        document = json.loads(config_file.read_text() or "{}")
    except json.JSONDecodeError as error:
        raise FailedPrecondition(
            f"{config_file} is not JSON: {error}",
            code="engine_config_invalid",
            advice="mend or remove that file",
        ) from error
    return frozenset(document)


def _wait(machine: Machine, *, pid: int, paths: EnginePaths, timeout_s: float) -> StartedEngine | None:
    """Wait until the engine of process `pid` answers; None when it ended or took too long."""
    endpoint = Endpoint(url=f"unix://{paths.socket}")
    deadline_s = machine.clock.monotonic_s() + timeout_s
    while machine.clock.monotonic_s() < deadline_s:
        facts = read_process(pid)
        if facts is None or facts.is_zombie:
            return None
        if machine.answers(endpoint):
            return StartedEngine(
                pid=pid, start_ticks=facts.start_ticks, socket=str(paths.socket), log=str(paths.log)
            )
        machine.sleep(POLL_S)
    return None


def _read_from(path: Path, *, offset_bytes: int) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as log:
        log.seek(offset_bytes)
        return log.read().decode(errors="replace").strip()
