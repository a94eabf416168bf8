"""The doctor's checks of the container engine and of what it holds.

Owns what Sandkeeper needs of an engine. It asks and never changes anything.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sandkeeper.cli.doctor import Finding, check_disk, free_bytes
from sandkeeper.containers.endpoint import HANDSHAKE_TIMEOUT_S, connect, find_endpoint
from sandkeeper.containers.images import shipped_tags
from sandkeeper.core.errors import SandkeeperError

MIN_ENGINE = (20, 10)
_CGROUP_ADVICE = (
    "enable the memory, cpu and pids controllers (kernel options `cgroup_enable=memory swapaccount=1`)"
)


def engine_checks() -> list[Finding]:
    """Ask the engine of this user; the first finding says whether it answers at all."""
    endpoint = find_endpoint(os.environ)
    try:
        client = connect(endpoint, timeout_s=HANDSHAKE_TIMEOUT_S)
    except SandkeeperError as error:
        return [Finding(name="engine", ok=False, detail=error.message, advice=error.advice)]
    try:
        facts = client.info()
        engine = Finding(name="engine", ok=True, detail=endpoint.url)
        checks = [engine, *check_engine(facts), check_images(shipped_tags(client))]
    finally:
        client.close()
    root = Path(str(facts.get("DockerRootDir") or "/"))
    if root.is_dir():
        checks.append(check_disk(root, free_bytes=free_bytes(root), name="engine disk"))
    return checks


def check_engine(facts: Mapping[str, Any]) -> list[Finding]:
    """Check what the engine says of itself (its `/info`)."""
    version = str(facts.get("ServerVersion", ""))
    driver = str(facts.get("Driver", ""))
    cgroup = str(facts.get("CgroupVersion", ""))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    is_new_enough = numbers >= MIN_ENGINE
    has_limits = all(facts.get(key) for key in ("MemoryLimit", "SwapLimit", "CpuCfsQuota", "PidsLimit"))
    has_cgroups = cgroup in ("1", "2") and has_limits
    is_live_restore = bool(facts.get("LiveRestoreEnabled"))
    return [
        Finding(
            name="engine version",
            ok=is_new_enough,
            detail=version or "unknown",
            advice="" if is_new_enough else f"install Docker {MIN_ENGINE[0]}.{MIN_ENGINE[1]} or newer",
        ),
        Finding(
            name="storage driver",
            ok=driver in ("overlay2", "overlayfs"),
            detail=driver or "unknown",
            advice=""
            if driver in ("overlay2", "overlayfs")
            else "use overlay2: others copy whole images or are slow",
            is_required=False,
        ),
        Finding(
            name="cgroups",
            ok=has_cgroups,
            detail=f"version {cgroup or 'unknown'}, limits {'all there' if has_limits else 'incomplete'}",
            advice="" if has_cgroups else _CGROUP_ADVICE,
        ),
        Finding(
            name="live restore",
            ok=is_live_restore,
            detail="on" if is_live_restore else "off: a restart of the engine ends all sandboxes",
            advice=""
            if is_live_restore
            else 'put {"live-restore": true} into the engine\'s daemon.json and reload it',
            is_required=False,
        ),
    ]


def check_images(tags: Mapping[str, list[str]]) -> Finding:
    """Check that every shipped image was built."""
    missing = [name for name, found in tags.items() if not found]
    return Finding(
        name="images",
        ok=not missing,
        detail=f"missing: {', '.join(missing)}" if missing else ", ".join(tags),
        advice="`make setup`, or `sandkeeper setup`, builds them" if missing else "",
    )
