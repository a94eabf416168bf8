"""What a process in the container really sees of the create settings."""

import asyncio
import dataclasses
import json
from typing import Any

import pytest

from sandkeeper.containers.engine import RuntimeSettings
from sandkeeper.core.observation import RuntimeState
from tests.support.engine_rig import DockerRig

pytestmark = pytest.mark.docker

BOUNDING = {"chown": 0, "dac_override": 1, "fowner": 3, "fsetid": 4, "kill": 5, "setgid": 6, "setuid": 7}
BOUNDING |= {"setpcap": 8, "net_admin": 12, "audit_write": 29, "setfcap": 31}
EXPECTED_MASK = sum(1 << bit for bit in BOUNDING.values())


async def report(rig: DockerRig, settings: RuntimeSettings) -> dict[str, Any]:
    await rig.engine.create(settings)
    await rig.engine.start(settings.birth_id)
    while not (tail := await rig.engine.output_tail(settings.birth_id, max_bytes=1 << 20)).endswith("}\n"):
        await asyncio.sleep(0.01)
    seen: dict[str, Any] = json.loads(tail)
    return seen


def status(seen: dict[str, Any], name: str) -> str:
    text: str = seen["/proc/self/status"]
    lines = dict(line.split(":", 1) for line in text.splitlines())
    return lines[name].strip()


async def test_process_one_sees_what_was_designed(docker_rig: DockerRig) -> None:
    settings = docker_rig.settings(play="report")
    seen = await report(docker_rig, settings)
    assert seen["argv"] == ["/.sandkeeper/boxd"]
    assert (seen["uid"], seen["gid"], seen["pid"], seen["workdir"]) == (0, 0, 1, "/")
    assert seen["hostname"] == settings.birth_id
    assert seen["/proc/self/oom_score_adj"].strip() == "300"
    assert {pair.partition("=")[0] for pair in seen["environ"]} == {"PATH", "HOSTNAME", "HOME", "COLOUR"}
    for kind in ("CapBnd", "CapEff", "CapPrm"):
        assert int(status(seen, kind), 16) == EXPECTED_MASK, kind
    assert int(status(seen, "CapAmb"), 16) == 0
    assert status(seen, "Seccomp") == "2"
    assert status(seen, "NoNewPrivs") == "0"


async def test_there_is_no_network_but_loopback(docker_rig: DockerRig) -> None:
    seen = await report(docker_rig, docker_rig.settings(play="report"))
    assert seen["interfaces"] == ["lo"]
    assert seen["listens"] == {"127.0.0.1": "ok", "::1": "ok"}
    assert seen["/proc/sys/net/ipv6/conf/lo/disable_ipv6"].strip() == "0"


async def test_names_resolve_as_designed(docker_rig: DockerRig) -> None:
    settings = docker_rig.settings(play="report")
    seen = await report(docker_rig, settings)
    hosts = [line.split() for line in seen["/etc/hosts"].splitlines()]
    assert ["127.0.1.1", settings.birth_id] in hosts
    assert ["127.0.0.1", "localhost"] in hosts
    words = [line.split() for line in seen["/etc/resolv.conf"].splitlines() if not line.startswith("#")]
    assert ["nameserver", "127.0.0.1"] in words
    assert not [line for line in words if line[:1] == ["search"] and line[1:] != ["."]]


async def test_our_mounts_cannot_be_written(docker_rig: DockerRig) -> None:
    seen = await report(docker_rig, docker_rig.settings(play="report"))
    assert "read-only" in seen["writes"]["/run/sandkeeper"]
    assert "read-only" in seen["writes"]["/.sandkeeper"]
    assert seen["writes"]["/"] == "ok"


async def test_an_image_without_sudo_gets_no_new_privileges(docker_rig: DockerRig) -> None:
    settings = dataclasses.replace(docker_rig.settings(play="report"), has_sudo=False)
    assert status(await report(docker_rig, settings), "NoNewPrivs") == "1"


async def test_what_the_engine_keeps_of_the_settings(docker_rig: DockerRig) -> None:
    settings = docker_rig.settings()
    await docker_rig.engine.create(settings)
    shown = docker_rig.docker.inspect_container(settings.birth_id)
    host = shown["HostConfig"]
    assert shown["Config"]["Labels"] == {
        "sandkeeper": docker_rig.installation_id,
        "sandkeeper.birth": settings.birth_id,
        "maker": "tests",  # the image's own
    }
    assert host["NetworkMode"] == "none"
    assert host["RestartPolicy"]["Name"] == "no"
    assert (host["Memory"], host["MemorySwap"]) == (64 << 20, 64 << 20)
    assert (host["CpuPeriod"], host["CpuQuota"], host["NanoCpus"]) == (100_000, 50_000, 0)
    assert host["PidsLimit"] == 160
    assert host["LogConfig"] == {"Type": "json-file", "Config": {"max-file": "1", "max-size": "1m"}}
    assert (host["IpcMode"], host["Privileged"], host["Init"]) == ("private", False, False)
    assert [mount["RW"] for mount in shown["Mounts"]] == [False, False]
    assert host["PortBindings"] in (None, {})


async def test_the_log_is_capped(docker_rig: DockerRig) -> None:
    settings = docker_rig.settings(play="flood 60000")
    await docker_rig.engine.create(settings)
    await docker_rig.engine.start(settings.birth_id)
    while not (await docker_rig.engine.output_tail(settings.birth_id, max_bytes=100)).endswith("flooded\n"):
        await asyncio.sleep(0.01)
    kept = docker_rig.docker.logs(settings.birth_id)
    assert len(kept) < 1 << 20


async def test_memory_over_the_limit_is_an_out_of_memory_kill(docker_rig: DockerRig) -> None:
    settings = docker_rig.settings(play="use 200")
    await docker_rig.engine.create(settings)
    await docker_rig.engine.start(settings.birth_id)
    while True:
        seen = await docker_rig.engine.inspect(settings.birth_id)
        assert seen is not None
        if seen.state is RuntimeState.EXITED:
            break
        await asyncio.sleep(0.01)
    assert (seen.exit_code, seen.oom_killed) == (137, True)
