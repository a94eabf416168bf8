"""Sets the machine up: an engine, boxd in the state folder, the images.

Owns the order of these and nothing of how each is done; that is the containers room. It is all of `make setup` that
comes after the package is installed.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sandkeeper.client.installation import default_state_dir
from sandkeeper.containers.bootstrap import ensure_engine
from sandkeeper.containers.boxd_binary import BoxdBinary, install
from sandkeeper.containers.endpoint import answers, connect
from sandkeeper.containers.host import RealHost
from sandkeeper.containers.images import BUILD_TIMEOUT_S, ensure_images
from sandkeeper.containers.machine import Machine
from sandkeeper.containers.progress import OnProgress, Progress, no_progress
from sandkeeper.containers.recipes import DEFAULT_IMAGES
from sandkeeper.core.errors import SandkeeperError
from sandkeeper.ports import RealClock

ROOT_IMAGE_VARIABLE = "SANDKEEPER_ROOT_IMAGE"


@dataclass(frozen=True, slots=True)
class SetUp:
    """What the machine has after a set-up.

    Attributes:
        engine_url: Where the engine answers.
        started_engine_pid: The engine's process when this set-up started it, else None.
        boxd: boxd in the state folder.
        images: Image name to digest id.
    """

    engine_url: str
    started_engine_pid: int | None
    boxd: BoxdBinary
    images: dict[str, str]


def run_setup(
    on_progress: OnProgress = no_progress,
    *,
    state_dir: Path | None = None,
    images: Iterable[str] = DEFAULT_IMAGES,
    root_image: str | None = None,
) -> SetUp:
    """Make the machine ready for sandboxes; a repeat is safe and takes well under a second.

    Args:
        on_progress: Told what is done.
        state_dir: The state folder; by default SANDKEEPER_STATE_DIR, else by user.
        images: Shipped images to have.
        root_image: Registry image pinned by digest to build on; SANDKEEPER_ROOT_IMAGE, else one made here.

    Raises:
        SandkeeperError: Whatever step failed; its advice says what to do.
    """
    folder = state_dir or default_state_dir()
    machine = Machine(
        host=RealHost(), environment=os.environ, clock=RealClock(), sleep=time.sleep, answers=answers
    )
    with _one_at_a_time(folder):
        # First what needs no network: a missing boxd should not be found out after minutes of downloads.
        boxd = install(folder)
        engine = ensure_engine(machine, state_dir=folder, on_progress=on_progress)
        client = connect(engine.endpoint, timeout_s=BUILD_TIMEOUT_S)
        try:
            ids = ensure_images(
                client,
                host=machine.host,
                names=images,
                root_image=root_image or os.environ.get(ROOT_IMAGE_VARIABLE) or None,
                on_progress=on_progress,
            )
        finally:
            client.close()
    return SetUp(
        engine_url=engine.endpoint.url,
        started_engine_pid=engine.started.pid if engine.started else None,
        boxd=boxd,
        images=ids,
    )


@contextmanager
def _one_at_a_time(state_dir: Path) -> Iterator[None]:
    """Wait for another set-up of the same state folder: two would start two engines and build everything twice."""
    state_dir.mkdir(parents=True, exist_ok=True)
    with (state_dir / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Run the set-up and print what it does; 1 with the error and its advice when it fails."""
    began_s = time.monotonic()
    try:
        done = run_setup(_print_report)
    except SandkeeperError as error:
        print(f"error: {error.message} [{error.code}]", file=sys.stderr)
        if error.advice:
            print(f"advice: {error.advice}", file=sys.stderr)
        return 1
    names = ", ".join(f"{name} {digest[7:19]}" for name, digest in done.images.items())
    print(f"ready in {time.monotonic() - began_s:.1f} s: engine {done.engine_url}, images {names}")
    return 0


def _print_report(report: Progress) -> None:
    print(f"[{report.step}] {report.message}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
