"""The create document says exactly what was designed, and nothing of a tenant."""

from dataclasses import replace

from sandkeeper.containers.engine import RuntimeSettings
from sandkeeper.containers.settings import create_document, limits
from sandkeeper.core.ids import BirthId, InstallationId
from sandkeeper.core.sizes import Size

SIZE = Size(name="custom", vcpu=0.25, memory_mib=256, pids=200)
SETTINGS = RuntimeSettings(
    BirthId("sk-1"),
    InstallationId("inst"),
    "sha256:1",
    SIZE,
    boxd_dir="/state/boxd/abc",
    run_dir="/state/r/sk-1",
)


def test_the_whole_document() -> None:
    assert create_document(SETTINGS) == {
        "Image": "sha256:1",
        "Hostname": "sk-1",
        "User": "0:0",
        "WorkingDir": "/",
        "Entrypoint": ["/.sandkeeper/boxd"],
        "Cmd": [],
        "StopSignal": "SIGTERM",
        "Healthcheck": {"Test": ["NONE"]},
        "Tty": False,
        "OpenStdin": False,
        "Labels": {"sandkeeper": "inst", "sandkeeper.birth": "sk-1"},
        "HostConfig": {
            "Memory": 256 << 20,
            "MemorySwap": 256 << 20,
            "CpuPeriod": 100_000,
            "CpuQuota": 25_000,
            "PidsLimit": 200,
            "NetworkMode": "none",
            "ExtraHosts": ["sk-1:127.0.1.1"],
            "Dns": ["127.0.0.1"],
            "DnsSearch": ["."],
            "Sysctls": {"net.ipv6.conf.all.disable_ipv6": "0", "net.ipv6.conf.lo.disable_ipv6": "0"},
            "CapDrop": ["ALL"],
            "CapAdd": [
                "AUDIT_WRITE",
                "CHOWN",
                "DAC_OVERRIDE",
                "FOWNER",
                "FSETID",
                "KILL",
                "NET_ADMIN",
                "SETFCAP",
                "SETGID",
                "SETPCAP",
                "SETUID",
            ],
            "SecurityOpt": [],
            "Privileged": False,
            "Mounts": [
                {"Type": "bind", "Source": "/state/boxd/abc", "Target": "/.sandkeeper", "ReadOnly": True},
                {"Type": "bind", "Source": "/state/r/sk-1", "Target": "/run/sandkeeper", "ReadOnly": True},
            ],
            "IpcMode": "private",
            "Init": False,
            "OomScoreAdj": 300,
            "RestartPolicy": {"Name": "no"},
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}},
        },
    }


def test_without_sudo_no_program_gains_privileges() -> None:
    document = create_document(replace(SETTINGS, has_sudo=False))
    assert document["HostConfig"]["SecurityOpt"] == ["no-new-privileges"]


def test_more_processors_than_the_machine_has_are_a_quota_and_never_nano_cpus() -> None:
    assert limits(Size(name="custom", vcpu=64, memory_mib=64))["CpuQuota"] == 6_400_000
    assert "NanoCpus" not in limits(SIZE)
