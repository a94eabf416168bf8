"""The parts of the demonstration that decide: the fault, the patches, the verdicts, and what may be killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandkeeper.cli.demo import kills
from sandkeeper.cli.demo.diary import test_counts as counts_in
from sandkeeper.cli.demo.project import FAULT, FAULTY_FILE, SOUND, Project, _break, changed_lines, patch_for
from sandkeeper.cli.demo.tries import EXPECTED, HANGING, RIGHT, the_attempts
from sandkeeper.cli.demo.verdict import StepFailed, demand, first_of
from sandkeeper.client.attempt import Step
from sandkeeper.core.errors import DataLoss, FailedPrecondition
from sandkeeper.core.ids import BirthId

SOURCE = f"def windowed():\n    filler = []\n{SOUND}        yield tuple(window)\n\n\nend = 1\n"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    path = tmp_path / FAULTY_FILE
    path.parent.mkdir()
    path.write_text(SOURCE)
    return Project(folder=tmp_path, wheels=tmp_path, faulty_text=_break(path))


def test_the_fault_is_one_exact_edit(project: Project) -> None:
    assert project.faulty_text == SOURCE.replace(SOUND, FAULT)
    assert (project.folder / FAULTY_FILE).read_text() == project.faulty_text


@pytest.mark.parametrize("text", ["", SOURCE + SOURCE, SOURCE.replace(SOUND, FAULT)])
def test_another_source_is_not_guessed_at(tmp_path: Path, text: str) -> None:
    (tmp_path / "more.py").write_text(text)
    with pytest.raises(DataLoss):
        _break(tmp_path / "more.py")


def test_the_right_patch_takes_the_fault_back(project: Project) -> None:
    assert changed_lines(patch_for(project, SOUND)) == [f"-{FAULT.rstrip()}", f"+{SOUND.rstrip()}"]


def test_every_attempt_patches_in_its_own_way_and_compiles(project: Project) -> None:
    attempts = the_attempts(project)
    assert {attempt.name for attempt in attempts} == set(EXPECTED)
    patches = set()
    for attempt in attempts:
        first, second = attempt.steps
        assert isinstance(first, Step)
        assert isinstance(second, Step)
        patches.add(first.stdin)
        done = subprocess.run(
            ["git", "apply", "-"],
            input=str(first.stdin),
            text=True,
            cwd=project.folder,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        compile((project.folder / FAULTY_FILE).read_text(), attempt.name, "exec")
        (project.folder / FAULTY_FILE).write_text(project.faulty_text)
    assert len(patches) == len(EXPECTED)
    assert EXPECTED[HANGING].exit_code is None
    assert EXPECTED[RIGHT].exit_code == 0


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        (
            "25 failed, 647 passed, 1 skipped, 8 warnings, 2323 subtests passed in 23.20s",
            "25 failed, 647 passed",
        ),
        ("==== 3 passed in 0.1s ====", "3 passed"),
        ("Traceback", ""),
    ],
)
def test_pytests_last_line(line: str, counts: str) -> None:
    assert counts_in(line) == counts


def test_a_verdict_names_its_step() -> None:
    demand(True, "fine", "")
    with pytest.raises(StepFailed, match="the step: what was seen"):
        demand(False, "the step", "what was seen")
    inner = StepFailed("a", "b")
    assert first_of(ExceptionGroup("x", [ExceptionGroup("y", [inner]), ValueError()])) is inner


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    assert process.poll() is None, "it was killed"
    process.communicate(b"\n")


def test_a_process_that_is_not_the_containers_is_left_alone(bystander: subprocess.Popen[bytes]) -> None:
    with pytest.raises(FailedPrecondition) as refused:
        kills.kill_container(bystander.pid, birth_id=BirthId("sk-1"))
    assert refused.value.code == "pid_not_ours"


@pytest.mark.parametrize("noted", ['{"pid": %d, "start_ticks": 1}', '{"pid": 1, "start_ticks": 1}', "", "{}"])
def test_a_process_that_does_not_hold_the_lock_is_left_alone(
    tmp_path: Path, bystander: subprocess.Popen[bytes], noted: str
) -> None:
    lock = tmp_path / "owner.lock"
    lock.write_text(noted.replace("%d", str(bystander.pid)))
    with pytest.raises(FailedPrecondition):
        kills.kill_owner(bystander.pid, lock_file=lock)


def test_a_process_that_is_gone_is_not_found(tmp_path: Path) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    with pytest.raises(FailedPrecondition):
        kills.kill_owner(process.pid, lock_file=tmp_path / "owner.lock")
    assert os.getpid() != process.pid


def test_the_process_that_holds_the_lock_is_killed(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    stat = Path(f"/proc/{process.pid}/stat").read_text()
    ticks = int(stat[stat.rindex(")") + 2 :].split()[19])
    lock = tmp_path / "ow1" / "owner.lock"
    lock.parent.mkdir()
    lock.write_text(f'{{"pid": {process.pid}, "start_ticks": {ticks}}}')
    assert kills.kill_owner(process.pid, lock_file=lock).what == "owner ow1"
    assert process.wait(timeout=10) == -9
    assert process.stdin is not None
    process.stdin.close()
