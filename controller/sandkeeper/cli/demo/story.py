"""The demonstration from its first to its last step; each step is looked at before the next one begins.

Owns the order of the story and the verdicts. A step that did not really happen ends it with exit status 1, after what
was made has been destroyed.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from sandkeeper.cli.demo.diary import Diary, last_line, test_counts
from sandkeeper.cli.demo.ending import end_all, sweep
from sandkeeper.cli.demo.project import PACKAGE, SOUND, VERSION, Project, changed_lines, fetch, patch_for
from sandkeeper.cli.demo.tries import EXPECTED, PROJECT_DIR, RIGHT, suite_step, the_attempts
from sandkeeper.cli.demo.trouble import Trouble
from sandkeeper.cli.demo.verdict import StepFailed, demand, first_of
from sandkeeper.cli.demo.witness import Witness
from sandkeeper.cli.speech import say_error, say_json
from sandkeeper.client.attempt import AttemptReport, AttemptResult
from sandkeeper.client.installation import Installation, default_state_dir
from sandkeeper.client.keeper import Keeper
from sandkeeper.client.local import end_up
from sandkeeper.client.results import Snapshot
from sandkeeper.client.sandbox import Sandbox
from sandkeeper.core.errors import SandkeeperError
from sandkeeper.core.ids import InstallationId
from sandkeeper.ports import real_ports

PREPARE_TIMEOUT_S = 240.0
ATTEMPT_MEMORY_MIB = 256
PREPARE_MEMORY_MIB = 768
SHELL = "/bin/sh"


def tell(*, state_dir: Path | None, patch_dir: Path | None, is_json: bool) -> int:
    """Run the demonstration and report it; returns the exit status. Blocks."""
    home = (state_dir or default_state_dir()).absolute() / "demo"
    story = Story(home, patch_dir=patch_dir or home, diary=Diary(is_quiet=is_json))
    return asyncio.run(_told(story, is_json=is_json))


async def _told(story: Story, *, is_json: bool) -> int:
    failure: SandkeeperError | StepFailed | None = None
    try:
        await story.run()
    except (SandkeeperError, StepFailed) as error:
        failure = error
        story.diary.note("failed", str(error))
    finally:
        await end_up(Installation(story.home), ports=real_ports())
    if failure is None:
        story.diary.note("step", f"all of it happened, in {story.diary.elapsed_s:.0f} s")
    if is_json:
        say_json(story.to_json(failure))
    elif isinstance(failure, SandkeeperError):
        say_error(failure, is_json=False)
    return 0 if failure is None else 1


class Story:
    """One run of the demonstration, in a state folder of its own."""

    def __init__(self, home: Path, *, patch_dir: Path, diary: Diary) -> None:
        self.home = home
        self.diary = diary
        self._patch_dir = patch_dir
        self._report: AttemptReport | None = None
        self._kept: Snapshot | None = None
        self._patch_file: Path | None = None

    async def run(self) -> None:
        """Tell it.

        Raises:
            StepFailed: A step did not happen.
            SandkeeperError: A step could not be done.
        """
        note = self.diary.note
        note("step", f"fetching {PACKAGE} {VERSION} and what its tests need")
        project = await asyncio.to_thread(fetch, self.home / "inputs")
        note("step", "joining the installation (starting it if it does not run)")
        async with Keeper.local(self.home) as keeper:
            status = await keeper.status()
            note(
                "step", f"up: directory {status.directory_pid}, {len(status.owners)} owners, {status.engine}"
            )
            installation_id = InstallationId(status.installation_id)
            async with Witness(
                installation_id=installation_id, state_dir=self.home, ports=real_ports()
            ) as witness:
                await sweep(keeper, diary=self.diary)
                try:
                    await self._job(keeper, witness, project)
                except BaseException:
                    await end_all(keeper, witness, keep=None, diary=self.diary)
                    raise
                await end_all(keeper, witness, keep=self._kept, diary=self.diary)

    async def _job(self, keeper: Keeper, witness: Witness, project: Project) -> None:
        prepared = await self._prepare(keeper, project)
        trouble = Trouble(keeper, witness, home=self.home, diary=self.diary, prepared=prepared)
        vcpu = min(2.0, max(0.25, round((os.cpu_count() or 1) / len(EXPECTED), 2)))
        self.diary.note(
            "step", f"{len(EXPECTED)} attempts in parallel, {vcpu:g} vCPU and {ATTEMPT_MEMORY_MIB} MiB each"
        )
        try:
            async with asyncio.TaskGroup() as group:
                stirring = group.create_task(trouble.stir())
                attempting = group.create_task(self._attempts(keeper, prepared, project, trouble, vcpu))
                report = await attempting
                trouble.end()
                await stirring
        except BaseExceptionGroup as failures:
            raise first_of(failures) from failures
        self._report = report
        await trouble.judge(report)
        self._compare(report)
        await self._harvest(report[RIGHT], project)

    async def _attempts(
        self, keeper: Keeper, prepared: Snapshot, project: Project, trouble: Trouble, vcpu: float
    ) -> AttemptReport:
        return await keeper.attempts(
            prepared,
            the_attempts(project),
            name="mend",
            concurrency=len(EXPECTED),
            on_progress=trouble.hear,
            size={"vcpu": vcpu, "memory_mib": ATTEMPT_MEMORY_MIB},
        )

    async def _prepare(self, keeper: Keeper, project: Project) -> Snapshot:
        note = self.diary.note
        size = {"vcpu": float(min(2, os.cpu_count() or 1)), "memory_mib": PREPARE_MEMORY_MIB}
        sandbox = await keeper.create(size=size, labels={"demo": "prepare"})
        note("step", f"sandbox {sandbox.id} from image {sandbox.image}, {size['vcpu']:g} vCPU")
        loaded = await sandbox.files.upload(project.folder, PROJECT_DIR)
        wheels = await sandbox.files.upload(project.wheels, "/home/user/wheels")
        demand(loaded.files > 20 and wheels.files > 5, "upload", f"{loaded.files} and {wheels.files} members")
        note(
            "step", f"uploaded {loaded.files} files of the project, {loaded.size_bytes} bytes, and the wheels"
        )
        for title, line in _PREPARATION.items():
            done = await sandbox.run([SHELL, "-euc", line], cwd="/home/user", timeout_s=PREPARE_TIMEOUT_S)
            demand(done.is_success, title, f"{done.outcome} {done.exit_code}: {done.stderr[-800:]}")
            note("step", f"{title} ({done.duration_ms / 1000:.1f} s)")
        step = suite_step()
        tests = await sandbox.run(step.command, cwd=step.cwd, env=step.env, timeout_s=step.timeout_s)
        summary = tests.stdout.strip().splitlines()[-1:] or ["no output"]
        demand(
            tests.exit_code == 1 and " failed" in summary[0],
            "the tests fail",
            f"{tests.exit_code} {summary[0]}",
        )
        note("check", f"the tests fail, as they must: {test_counts(summary[0])}")
        prepared = await sandbox.snapshot("prepared")
        found = await keeper.snapshots.get(prepared.id)
        demand(found == prepared, "snapshot", "the snapshot is not listed as it was answered")
        note(
            "step",
            f"snapshot {prepared.id} (prepared), {prepared.delta_bytes} bytes, froze {prepared.freeze_ms:.0f} ms",
        )
        await sandbox.destroy()
        return prepared

    def _compare(self, report: AttemptReport) -> None:
        self.diary.table(report.attempts, winner=report.winner)
        for name, expected in EXPECTED.items():
            seen = report[name]
            came = (seen.state, seen.outcome, seen.exit_code)
            wanted = (expected.state, expected.outcome, expected.exit_code)
            demand(came == wanted, f"attempt {name}", f"came to {came}, expected {wanted}")
        demand(report.winner == RIGHT, "the winner", f"is {report.winner}")
        demand(" passed" in last_line(report[RIGHT]), "the winner's tests", last_line(report[RIGHT]))
        self.diary.note("check", f"winner: {report.winner}, {last_line(report[RIGHT])}")

    async def _harvest(self, winner: AttemptResult, project: Project) -> None:
        sandbox = winner.sandbox
        demand(sandbox is not None, "the winner's sandbox", "was not kept")
        assert sandbox is not None
        self._patch_file = await self._take_patch(sandbox, project)
        self._kept = await sandbox.snapshot("winner")
        self.diary.note("step", f"snapshot {self._kept.id} (winner), {self._kept.delta_bytes} bytes")

    async def _take_patch(self, sandbox: Sandbox, project: Project) -> Path:
        inside = "/home/user/winner.patch"
        done = await sandbox.run(["git", "diff", f"--output={inside}"], cwd=PROJECT_DIR)
        demand(done.is_success, "git diff", done.stderr)
        target = self._patch_dir / f"{PACKAGE}-{VERSION}.patch"
        await sandbox.files.download(inside, target)
        text = target.read_text()
        wanted = changed_lines(patch_for(project, SOUND))
        demand(
            changed_lines(text) == wanted, "the patch", f"changes {changed_lines(text)}, expected {wanted}"
        )
        self.diary.note("check", f"the winner's change: {target}")
        self.diary.text("".join(f"             {line}\n" for line in changed_lines(text)).rstrip())
        return target

    def to_json(self, failure: Exception | None) -> dict[str, Any]:
        """Return the report as one JSON-safe object."""
        report = self._report
        return {
            "ok": failure is None,
            "failure": None if failure is None else str(failure),
            "attempts": [_attempt_json(result) for result in report.attempts] if report else [],
            "winner": report.winner if report else None,
            "snapshot": self._kept.id if self._kept else None,
            "patch": str(self._patch_file) if self._patch_file else None,
            "duration_ms": round(self.diary.elapsed_s * 1000),
            "events": self.diary.events,
        }


_PREPARATION = {
    "made a venv": "python3 -m venv venv",
    "installed the tests' needs and the project, offline": (
        "venv/bin/pip install --quiet --disable-pip-version-check --no-index --find-links wheels pytest flit_core && "
        "venv/bin/pip install --quiet --disable-pip-version-check --no-index --find-links wheels "
        "--no-build-isolation --no-deps --editable project"
    ),
    "committed it to git": (
        "cd project && git init --quiet && git add --all && "
        "git -c user.name=demo -c user.email=demo@localhost commit --quiet --message 'as fetched, with the fault'"
    ),
}


def _attempt_json(result: AttemptResult) -> dict[str, Any]:
    return {
        "name": result.name,
        "state": result.state,
        "generation": result.generation,
        "exit_code": result.exit_code,
        "outcome": result.outcome,
        "duration_ms": result.duration_ms,
        "passes": result.passes,
        "sandbox_id": result.sandbox_id,
        "tests": last_line(result),
    }
