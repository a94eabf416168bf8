"""Reading the documents a docker engine answers with.

Pure: owns the translation into our values. Never talks to an engine.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from sandkeeper.containers.engine import EngineFacts, EngineImage, ListedRuntime
from sandkeeper.containers.settings import BIRTH_LABEL, INSTALLATION_LABEL
from sandkeeper.core.ids import BirthId, InstallationId
from sandkeeper.core.observation import RuntimeObservation, RuntimeState

Document = dict[str, Any]

_STATES = {
    "created": RuntimeState.CREATED,
    "running": RuntimeState.RUNNING,
    "restarting": RuntimeState.RUNNING,
    "paused": RuntimeState.FROZEN,
    "exited": RuntimeState.EXITED,
    "removing": RuntimeState.REMOVING,
    "dead": RuntimeState.REMOVING,
}
_DRIVERS_WITH_QUOTA = ("btrfs", "zfs", "devicemapper")
_MOMENT = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)$")
_EXITED = re.compile(r"^Exited \((\d+)\)")


def is_ours(labels: Document | None, *, name: str, installation_id: InstallationId) -> bool:
    """Say whether a container is a runtime of this installation.

    Its name must be its birth label: a container that somebody runs by hand, with labels copied, is not ours.
    """
    labels = labels or {}
    return labels.get(INSTALLATION_LABEL) == installation_id and labels.get(BIRTH_LABEL) == name.lstrip("/")


def runtime_observation(container: Document) -> RuntimeObservation:
    """Read the engine's inspect document."""
    state = container["State"]
    folded = _STATES[state["Status"]]
    is_alive = folded in (RuntimeState.RUNNING, RuntimeState.FROZEN)
    return RuntimeObservation(
        birth_id=BirthId(container["Name"].lstrip("/")),
        state=folded,
        pid=state["Pid"] if is_alive and state["Pid"] > 0 else None,
        exit_code=state["ExitCode"] if folded is RuntimeState.EXITED else None,
        oom_killed=bool(state.get("OOMKilled")) and folded is not RuntimeState.CREATED,
    )


def listed_runtime(entry: Document) -> ListedRuntime:
    """Read one entry of the engine's container list."""
    folded = _STATES[entry["State"]]
    exited = _EXITED.match(entry.get("Status", ""))
    return ListedRuntime(
        birth_id=BirthId(entry["Names"][0].lstrip("/")),
        state=folded,
        exit_code=int(exited.group(1)) if exited and folded is RuntimeState.EXITED else None,
        created_at=datetime.fromtimestamp(entry["Created"], UTC),
    )


def engine_image(image: Document) -> EngineImage:
    """Read an image's inspect document, or its entry in the list."""
    created = image["Created"]
    return EngineImage(
        image_id=image["Id"],
        size_bytes=image["Size"],
        tags=tuple(tag for tag in image.get("RepoTags") or () if not tag.startswith("<none>")),
        created_at=datetime.fromtimestamp(created, UTC) if isinstance(created, int) else moment(created),
    )


def engine_facts(info: Document, *, mounts: str) -> EngineFacts:
    """Read the engine's info document.

    Args:
        info: As the engine gives it.
        mounts: This machine's mount table, as in /proc/self/mounts.
    """
    return EngineFacts(
        server_version=info["ServerVersion"],
        storage_driver=info["Driver"],
        cgroup_version=int(info.get("CgroupVersion") or 1),
        has_disk_quota=_has_disk_quota(info, mounts=mounts),
        root_dir=info["DockerRootDir"],
        ncpu=info["NCPU"],
        memory_bytes=info["MemTotal"],
    )


def moment(text: str) -> datetime:
    """Read the engine's timestamps, whose fractions are longer than Python's."""
    found = _MOMENT.match(text)
    if found is None:
        return datetime.fromtimestamp(0, UTC)
    seconds, fraction, zone = found.groups()
    shown = f"{seconds}{(fraction or '')[:7]}{'+00:00' if zone == 'Z' else zone}"
    return datetime.fromisoformat(shown).astimezone(UTC)


def _has_disk_quota(info: Document, *, mounts: str) -> bool:
    """Layers of overlay2 can be limited only on xfs mounted with project quotas."""
    if info["Driver"] != "overlay2":
        return info["Driver"] in _DRIVERS_WITH_QUOTA
    best: list[str] = []
    for fields in (line.split() for line in mounts.splitlines()):
        target = fields[1].rstrip("/") if len(fields) > 3 else None
        is_above = target is not None and f"{info['DockerRootDir']}/".startswith(f"{target}/")
        if is_above and (not best or len(fields[1]) >= len(best[1])):
            best = fields
    options = best[3].split(",") if best else []
    return bool(best) and best[2] == "xfs" and ("prjquota" in options or "pquota" in options)
