"""The engine's documents, read."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from sandkeeper.containers.docker_views import (
    engine_facts,
    engine_image,
    is_ours,
    moment,
    runtime_observation,
)
from sandkeeper.core.ids import InstallationId
from sandkeeper.core.observation import RuntimeState

INFO = {
    "ServerVersion": "20.10.24",
    "Driver": "overlay2",
    "CgroupVersion": "2",
    "DockerRootDir": "/var/lib/docker",
    "NCPU": 2,
    "MemTotal": 1024,
}
ROOT_EXT4 = "/dev/a / ext4 rw,relatime 0 0\n"


def inspect(status: str, **state: object) -> dict[str, object]:
    return {
        "Name": "/sk-1",
        "State": {"Status": status, "Pid": 0, "ExitCode": 0, "OOMKilled": False, **state},
    }


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("created", RuntimeState.CREATED),
        ("exited", RuntimeState.EXITED),
        ("removing", RuntimeState.REMOVING),
        ("dead", RuntimeState.REMOVING),
    ],
)
def test_what_is_not_alive_has_no_pid(status: str, state: RuntimeState) -> None:
    seen = runtime_observation(inspect(status, Pid=7))
    assert (seen.birth_id, seen.state, seen.pid) == ("sk-1", state, None)


def test_what_is_alive_has_a_pid_and_no_exit_code() -> None:
    for status, state in (("running", RuntimeState.RUNNING), ("paused", RuntimeState.FROZEN)):
        seen = runtime_observation(inspect(status, Pid=7))
        assert (seen.state, seen.pid, seen.exit_code) == (state, 7, None)


def test_an_exit_keeps_its_code_and_the_memory_killers_word() -> None:
    seen = runtime_observation(inspect("exited", ExitCode=137, OOMKilled=True))
    assert (seen.exit_code, seen.oom_killed) == (137, True)


def test_ours_is_by_label_and_name_together() -> None:
    ours = InstallationId("inst")
    labels = {"sandkeeper": "inst", "sandkeeper.birth": "sk-1"}
    assert is_ours(labels, name="/sk-1", installation_id=ours)
    assert not is_ours(labels, name="/by-hand", installation_id=ours)
    assert not is_ours({**labels, "sandkeeper": "other"}, name="/sk-1", installation_id=ours)
    assert not is_ours(None, name="/sk-1", installation_id=ours)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-02T03:04:05.123456789Z", datetime(2026, 1, 2, 3, 4, 5, 123456, UTC)),
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, 0, UTC)),
        ("2026-01-02T03:04:05.1+02:00", datetime(2026, 1, 2, 3, 4, 5, 100000, timezone(timedelta(hours=2)))),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
        ("", datetime(1970, 1, 1, tzinfo=UTC)),
    ],
)
def test_moments(text: str, expected: datetime) -> None:
    assert moment(text) == expected


def test_an_image_without_a_tag_has_none() -> None:
    entry = {"Id": "sha256:1", "Size": 3, "RepoTags": ["<none>:<none>"], "Created": 1_700_000_000}
    assert engine_image(entry).tags == ()
    assert engine_image({**entry, "RepoTags": None}).tags == ()


@pytest.mark.parametrize(
    ("driver", "mounts", "expected"),
    [
        ("overlay2", ROOT_EXT4, False),
        ("overlay2", ROOT_EXT4 + "/dev/b /var/lib/docker xfs rw,prjquota 0 0\n", True),
        ("overlay2", ROOT_EXT4 + "/dev/b /var/lib xfs rw,pquota 0 0\n", True),
        ("overlay2", ROOT_EXT4 + "/dev/b /var/lib/docker xfs rw,noquota 0 0\n", False),
        ("overlay2", "/dev/b /var/lib xfs rw,pquota 0 0\n/dev/c /var/lib/docker ext4 rw 0 0\n", False),
        ("overlay2", "/dev/b /var/lib/docker2 xfs rw,pquota 0 0\n" + ROOT_EXT4, False),
        ("overlay2", "", False),
        ("btrfs", ROOT_EXT4, True),
        ("vfs", ROOT_EXT4, False),
    ],
)
def test_a_disk_quota_needs_the_right_file_system(driver: str, mounts: str, expected: bool) -> None:
    facts = engine_facts({**INFO, "Driver": driver}, mounts=mounts)
    assert facts.has_disk_quota is expected
    assert facts.cgroup_version == 2
