"""A fake installation for each test, in a folder short enough for sockets."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandkeeper.client.installation import Installation
from sandkeeper.client.keeper import Keeper
from sandkeeper.ports import Ports, real_ports
from tests.fakes.control import FakeControl


@pytest.fixture
def state_dir() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="sk-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
async def control(state_dir: Path) -> AsyncIterator[FakeControl]:
    fake = FakeControl(state_dir)
    await fake.start()
    yield fake
    await fake.close()


@pytest.fixture
def hasty_ports() -> Ports:
    """Real doors, but a sleep only lets others run."""

    async def yield_once(_seconds: float) -> None:
        await asyncio.sleep(0)

    return replace(real_ports(), sleep=yield_once)


@pytest.fixture
def keeper(control: FakeControl, hasty_ports: Ports) -> Keeper:
    return Keeper(Installation(control.state_dir), config=None, ports=hasty_ports)
