"""Gets a container engine: the user's if one answers, else one we install and start.

Owns that order of choices. A running engine is never touched, and one named by DOCKER_HOST is never replaced by
another.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sandkeeper.containers import apt
from sandkeeper.containers.dockerd import EnginePaths, StartedEngine, note_started, start_engine
from sandkeeper.containers.endpoint import Endpoint, find_endpoint
from sandkeeper.containers.host import Host
from sandkeeper.containers.machine import Machine
from sandkeeper.containers.progress import OnProgress, Progress, no_progress
from sandkeeper.core.errors import FailedPrecondition, SandkeeperError, Unavailable

STEP = "engine"
CGROUP_MOUNT_TIMEOUT_S = 30.0
SERVICE_START_TIMEOUT_S = 90.0


@dataclass(frozen=True, slots=True)
class ReadyEngine:
    """An engine that answers.

    Attributes:
        endpoint: Where.
        started: The process, when it was this call that started it.
    """

    endpoint: Endpoint
    started: StartedEngine | None = None


def ensure_engine(
    machine: Machine,
    *,
    state_dir: Path,
    on_progress: OnProgress = no_progress,
    paths: EnginePaths | None = None,
) -> ReadyEngine:
    """Return an engine that answers, installing and starting one where that is possible and needed.

    A repeat is safe and quick. With `paths` the caller asks for a private engine with a socket of its own.

    Raises:
        Unavailable: `engine_unreachable` (DOCKER_HOST names it), `engine_start_failed`, `package_install_failed`.
        FailedPrecondition: `engine_absent`, `engine_permission`, `engine_running_silent`,
            `packages_not_installable`.
    """
    where = paths or EnginePaths()
    endpoint = find_endpoint(machine.environment) if paths is None else Endpoint(url=f"unix://{where.socket}")
    if machine.answers(endpoint):
        on_progress(Progress(step=STEP, message=f"using the engine at {endpoint.url}", done=True))
        return ReadyEngine(endpoint=endpoint)
    if endpoint.is_chosen_by_user:
        raise Unavailable(
            f"DOCKER_HOST names an engine at {endpoint.url} and it does not answer",
            code="engine_unreachable",
            advice="start that engine, or unset DOCKER_HOST to use one on this machine",
        )
    if not machine.host.is_root():
        raise _absent(endpoint)
    if not machine.host.has_command("dockerd"):
        _install(machine.host, paths=where, on_progress=on_progress)
        if _is_up_as_service(machine, endpoint=endpoint):
            on_progress(
                Progress(step=STEP, message=f"the engine's service answers at {endpoint.url}", done=True)
            )
            return ReadyEngine(endpoint=endpoint)
    _mount_cgroups_if_missing(machine.host, on_progress=on_progress)
    on_progress(Progress(step=STEP, message="starting dockerd"))
    started = start_engine(machine, paths=where)
    note_started(state_dir, engine=started)
    on_progress(Progress(step=STEP, message=f"dockerd runs as process {started.pid}", done=True))
    return ReadyEngine(endpoint=Endpoint(url=f"unix://{where.socket}"), started=started)


def _absent(endpoint: Endpoint) -> SandkeeperError:
    return FailedPrecondition(
        f"no container engine answers at {endpoint.url}, and only root can install or start one",
        code="engine_absent",
        advice="run `sudo make setup` once, or install Docker and start it, or set DOCKER_HOST to one that runs",
    )


def _install(host: Host, *, paths: EnginePaths, on_progress: OnProgress) -> None:
    on_progress(Progress(step=STEP, message="installing docker.io"))
    if not paths.config_file.exists() and apt.can_install(host):
        # Sandboxes then live through a restart of the engine, whoever starts it.
        paths.config_file.parent.mkdir(parents=True, exist_ok=True)
        paths.config_file.write_text('{"live-restore": true}\n')
    apt.install_packages(host, names=["docker.io"], purpose="the container engine")


def _is_up_as_service(machine: Machine, *, endpoint: Endpoint) -> bool:
    """Let systemd, where there is one, run the engine just installed; say whether it answers."""
    if not machine.host.has_systemd():
        return machine.answers(endpoint)
    machine.host.run(["systemctl", "start", "docker"], timeout_s=SERVICE_START_TIMEOUT_S)
    return machine.answers(endpoint)


def _mount_cgroups_if_missing(host: Host, *, on_progress: OnProgress) -> None:
    """Mount the cgroup file systems where no init system has done it; dockerd does not start without."""
    if host.has_cgroups():
        return
    on_progress(Progress(step=STEP, message="mounting the cgroup file systems"))
    if not host.has_command("cgroupfs-mount"):
        apt.install_packages(host, names=["cgroupfs-mount"], purpose="mounting cgroups")
    host.run(["cgroupfs-mount"], timeout_s=CGROUP_MOUNT_TIMEOUT_S)
