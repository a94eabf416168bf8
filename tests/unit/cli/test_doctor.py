"""Every check finds what is missing and says how to get it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sandkeeper.cli import doctor, doctor_engine
from sandkeeper.cli.doctor import Finding

GOOD_ENGINE: dict[str, Any] = {
    "ServerVersion": "24.0.7",
    "Driver": "overlay2",
    "CgroupVersion": "2",
    "MemoryLimit": True,
    "SwapLimit": True,
    "CpuCfsQuota": True,
    "PidsLimit": True,
    "LiveRestoreEnabled": True,
}


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


@pytest.mark.parametrize(("version", "ok"), [((3, 10, 9), False), ((3, 11, 0), True), ((4, 0, 0), True)])
def test_python_version(version: tuple[int, ...], ok: bool) -> None:
    assert doctor.check_python(version).ok is ok


def test_missing_packages_name_the_extra() -> None:
    finding = doctor.check_modules("server", names=("ray", "docker"), is_present=lambda name: name == "ray")
    assert (finding.ok, finding.detail) == (False, "missing: docker")
    assert finding.advice == "pip install 'sandkeeper[server]'"


def test_a_state_folder_not_made_yet_is_fine_where_it_can_be_made(tmp_path: Path) -> None:
    state = Path("/tmp") / f"sk-doctor-{tmp_path.name}"
    assert doctor.check_state_dir(state).ok


def test_a_state_folder_under_a_file_is_not(tmp_path: Path) -> None:
    blocked = Path("/proc/self/status/x")
    finding = doctor.check_state_dir(blocked)
    assert not finding.ok
    assert "SANDKEEPER_STATE_DIR" in finding.advice


def test_a_state_folder_with_a_long_path_is_named() -> None:
    finding = doctor.check_state_dir(Path("/" + "x" * 80))
    assert (finding.ok, finding.is_required) == (False, False)
    assert "shorter" in finding.advice


def test_a_full_disk_is_named() -> None:
    assert doctor.check_disk(Path("/"), free_bytes=doctor.MIN_DISK_BYTES).ok
    assert not doctor.check_disk(Path("/"), free_bytes=doctor.MIN_DISK_BYTES - 1).ok


def test_a_low_limit_says_which_setting_raises_it() -> None:
    low = doctor.check_limit("inotify watches", value=10, least=100, key="fs.inotify.max_user_watches")
    assert not low.ok
    assert "sysctl -w fs.inotify.max_user_watches=100" in low.advice
    assert doctor.check_limit("inotify watches", value=None, least=100, key="k").ok


def test_a_good_engine_has_no_fault() -> None:
    assert all(finding.ok and not finding.advice for finding in doctor_engine.check_engine(GOOD_ENGINE))


@pytest.mark.parametrize(
    ("change", "name", "required"),
    [
        ({"ServerVersion": "19.3.1"}, "engine version", True),
        ({"ServerVersion": ""}, "engine version", True),
        ({"Driver": "vfs"}, "storage driver", False),
        ({"SwapLimit": False}, "cgroups", True),
        ({"CgroupVersion": ""}, "cgroups", True),
        ({"LiveRestoreEnabled": False}, "live restore", False),
    ],
)
def test_a_fault_of_the_engine_is_found(change: dict[str, Any], name: str, required: bool) -> None:
    findings = by_name(doctor_engine.check_engine(GOOD_ENGINE | change))
    assert [finding.name for finding in findings.values() if not finding.ok] == [name]
    assert findings[name].advice
    assert findings[name].is_required is required


def test_missing_images_are_named() -> None:
    finding = doctor_engine.check_images({"slim": ["sandkeeper/slim:1"], "base": []})
    assert (finding.ok, finding.detail) == (False, "missing: base")
    assert "make setup" in finding.advice
