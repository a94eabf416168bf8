"""Starts `store_child.py` and ends it: every child is killed and reaped when its block ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


@contextmanager
def store_child(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "controller")])
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.support.store_child", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()


def next_line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()
