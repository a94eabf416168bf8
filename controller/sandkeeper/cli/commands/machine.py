"""`doctor` and `setup`: what this machine lacks, and getting it."""

from __future__ import annotations

from dataclasses import asdict

from sandkeeper.cli.options import Json, StateDir
from sandkeeper.cli.speech import leave, say, say_json, speaking


def doctor(*, state_dir: StateDir = None, json: Json = False) -> None:
    """Name what is missing and how to get it; 1 when something needed is."""
    from sandkeeper.cli.doctor import run_checks
    from sandkeeper.client.installation import default_state_dir

    with speaking(is_json=json):
        findings = run_checks((state_dir or default_state_dir()).absolute())
    is_fit = all(finding.ok for finding in findings if finding.is_required)
    if json:
        say_json({"ok": is_fit, "checks": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            mark = "ok     " if finding.ok else ("MISSING" if finding.is_required else "poor   ")
            say(f"{mark}  {finding.name}: {finding.detail}")
            if finding.advice and not finding.ok:
                say(f"         {finding.advice}")
    leave(0 if is_fit else 1)


def setup(*, state_dir: StateDir = None, json: Json = False) -> None:
    """Get an engine, boxd and the images; a repeat is quick."""
    from sandkeeper.cli.progress import steps_shown
    from sandkeeper.client.local import server_module

    with speaking(is_json=json):
        server_module("docker", is_loaded=False)
        from sandkeeper.cli.setup import run_setup

        with steps_shown(is_json=json) as show:
            done = run_setup(
                lambda report: show(report.step, report.message),
                state_dir=state_dir.absolute() if state_dir else None,
            )
        if json:
            say_json(asdict(done))
        else:
            say(f"ready: engine {done.engine_url}, images {', '.join(done.images)}")
