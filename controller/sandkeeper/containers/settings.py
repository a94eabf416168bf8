"""The translation of runtime settings into the engine's create document.

Pure: owns every fixed choice about a container (network, capabilities, mounts, limits, log). Never talks to an engine.
"""

from __future__ import annotations

from typing import Any

from sandkeeper.containers.engine import RuntimeSettings
from sandkeeper.core.ids import BirthId, InstallationId
from sandkeeper.core.sizes import CPU_PERIOD_US, Size

INSTALLATION_LABEL = "sandkeeper"
BIRTH_LABEL = "sandkeeper.birth"
BOXD_FOLDER = "/.sandkeeper"
RUN_FOLDER = "/run/sandkeeper"
LOG_SIZE = "1m"

ROOT_CAPABILITIES = (
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETFCAP",
    "SETGID",
    "SETUID",
)
"""What root inside keeps."""

BOOT_CAPABILITIES = ("NET_ADMIN", "SETPCAP")
"""What boxd's first stage uses in the container's own network namespace, and then drops for good."""


def runtime_labels(*, installation_id: InstallationId, birth_id: BirthId) -> dict[str, str]:
    """Return the only labels a container carries; nothing of a tenant, since an image inherits them."""
    return {INSTALLATION_LABEL: installation_id, BIRTH_LABEL: birth_id}


def limits(size: Size) -> dict[str, Any]:
    """Return the limits of `size` as the engine's create and update calls take them.

    CPU is period and quota, never NanoCpus: the engine refuses more of those than the machine has cores. Memory and
    memory-with-swap are equal, so that there is no swap, and travel in one call, so that no order of the two is wrong.
    """
    return {
        "Memory": size.memory_bytes,
        "MemorySwap": size.memory_bytes,
        "CpuPeriod": CPU_PERIOD_US,
        "CpuQuota": size.cpu_quota_us,
        "PidsLimit": size.pids,
    }


def create_document(settings: RuntimeSettings) -> dict[str, Any]:
    """Return the body of the engine's create call (Docker Engine API, ContainerCreate)."""
    birth_id = settings.birth_id
    return {
        "Image": settings.image_id,
        "Hostname": birth_id,
        "User": "0:0",
        "WorkingDir": "/",
        "Entrypoint": [f"{BOXD_FOLDER}/boxd"],
        "Cmd": [],
        "StopSignal": "SIGTERM",
        "Healthcheck": {"Test": ["NONE"]},
        "Tty": False,
        "OpenStdin": False,
        "Labels": runtime_labels(installation_id=settings.installation_id, birth_id=birth_id),
        "HostConfig": _host_config(settings),
    }


def _host_config(settings: RuntimeSettings) -> dict[str, Any]:
    return {
        **limits(settings.size),
        "NetworkMode": "none",
        "ExtraHosts": [f"{settings.birth_id}:127.0.1.1"],
        "Dns": ["127.0.0.1"],
        "DnsSearch": ["."],
        "Sysctls": {"net.ipv6.conf.all.disable_ipv6": "0", "net.ipv6.conf.lo.disable_ipv6": "0"},
        "CapDrop": ["ALL"],
        "CapAdd": sorted((*ROOT_CAPABILITIES, *BOOT_CAPABILITIES)),
        "SecurityOpt": [] if settings.has_sudo else ["no-new-privileges"],
        "Privileged": False,
        "Mounts": [
            _read_only(settings.boxd_dir, target=BOXD_FOLDER),
            _read_only(settings.run_dir, target=RUN_FOLDER),
        ],
        "IpcMode": "private",
        "Init": False,
        "OomScoreAdj": settings.oom_score_adj,
        "RestartPolicy": {"Name": "no"},
        "LogConfig": {"Type": "json-file", "Config": {"max-size": LOG_SIZE, "max-file": "1"}},
    }


def _read_only(source: str, *, target: str) -> dict[str, Any]:
    """Return a bind mount; unlike the short form it never makes a missing source folder."""
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": True}
