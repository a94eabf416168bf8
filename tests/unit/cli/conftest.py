"""The command line against a fake installation."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sandkeeper.cli.table import app
from tests.fakes.control import FakeControl, control_on_a_thread


@dataclass(frozen=True)
class Said:
    """What a command came to."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Sk = Callable[..., Said]


@pytest.fixture
def state_dir() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="sk-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def control(state_dir: Path) -> Iterator[FakeControl]:
    with control_on_a_thread(state_dir) as fake:
        yield fake


@pytest.fixture
def sk(state_dir: Path) -> Sk:
    """Return a function that runs one command line in this process."""

    def run(*words: str) -> Said:
        done = CliRunner().invoke(app, list(words), env={"SANDKEEPER_STATE_DIR": str(state_dir)})
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Said(done.exit_code, done.stdout, done.stderr)

    return run
