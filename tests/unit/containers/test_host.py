"""Facts of the machine, commands run on it, and processes read from /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandkeeper.containers import apt
from sandkeeper.containers.host import RealHost, is_debian_like, parse_os_release
from sandkeeper.containers.process_facts import ProcessFacts, read_process
from sandkeeper.core.errors import Aborted, FailedPrecondition
from tests.fakes.host import FakeHost


def test_os_release_without_quotes_and_comments() -> None:
    text = "# system\nID=ubuntu\nID_LIKE=\"debian other\"\nVERSION_CODENAME='noble'\n\nnonsense\n"
    assert parse_os_release(text) == {"ID": "ubuntu", "ID_LIKE": "debian other", "VERSION_CODENAME": "noble"}


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ({"ID": "debian"}, True),
        ({"ID": "mint", "ID_LIKE": "ubuntu debian"}, True),
        ({"ID": "alpine"}, False),
        ({}, False),
    ],
)
def test_relatives_of_debian(release: dict[str, str], expected: bool) -> None:
    assert is_debian_like(release) is expected


def test_a_commands_end_is_a_result() -> None:
    done = RealHost().run(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=30)
    assert (done.exit_code, done.output) == (3, "out\nerr\n")


def test_a_command_that_is_not_there_is_typed() -> None:
    with pytest.raises(FailedPrecondition) as refusal:
        RealHost().run(["no-such-command-here"], timeout_s=30)
    assert refusal.value.code == "command_missing"


def test_a_command_that_does_not_end_is_killed_and_typed() -> None:
    with pytest.raises(Aborted) as refusal:
        RealHost().run(["sleep", "30"], timeout_s=0.01)
    assert (refusal.value.code, refusal.value.admitted) == ("command_timeout", "yes")


@pytest.mark.parametrize(
    "host", [FakeHost(root=False), FakeHost(release={"ID": "fedora"}), FakeHost(commands=set())]
)
def test_packages_are_installed_only_as_root_on_a_debian(host: FakeHost) -> None:
    with pytest.raises(FailedPrecondition) as refusal:
        apt.install_packages(host, names=["mmdebstrap"], purpose="making the root image")
    assert refusal.value.code == "packages_not_installable"
    assert "sudo apt-get install mmdebstrap" in refusal.value.advice
    assert host.calls == []


def test_this_process_is_found_and_a_gone_one_is_not() -> None:
    facts = read_process(os.getpid())
    assert facts is not None
    assert facts.pid == os.getpid()
    assert facts.start_ticks > 0
    assert read_process(2**22 + 1) is None


def test_a_name_with_parentheses_and_spaces_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    numbers = " ".join(str(number) for number in range(1, 49))
    (tmp_path / "7" / "stat").write_text(f"7 (a) Z (b)) Z {numbers}\n")
    assert read_process(7, proc=tmp_path) == ProcessFacts(
        pid=7, name="a) Z (b)", start_ticks=19, is_zombie=True
    )
