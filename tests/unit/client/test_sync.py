"""The twin without await has every public name of the async classes, and does the same."""

from __future__ import annotations

import inspect
import threading
from pathlib import Path
from typing import Any

import pytest

from sandkeeper import sync
from sandkeeper.client import (
    alarms,
    files,
    forward,
    keeper,
    output,
    port_stream,
    ports,
    process,
    processes,
    sandbox,
    session,
    snapshots,
    state,
)
from sandkeeper.core.errors import NotFound
from tests.fakes.control import control_on_a_thread

PAIRS = [
    (keeper.Keeper, sync.Keeper),
    (sandbox.Sandbox, sync.Sandbox),
    (files.SandboxFiles, sync.SandboxFiles),
    (snapshots.Snapshots, sync.Snapshots),
    (state.SandboxState, sync.SandboxState),
    (alarms.SandboxAlarms, sync.SandboxAlarms),
    (processes.SandboxProcesses, sync.SandboxProcesses),
    (process.Process, sync.Process),
    (output.Output, sync.Output),
    (session.Session, sync.Session),
    (ports.SandboxPorts, sync.SandboxPorts),
    (port_stream.PortStream, sync.PortStream),
    (forward.Forward, sync.Forward),
]


@pytest.mark.parametrize(("original", "twin"), PAIRS)
def test_the_twin_has_the_same_names_and_texts(original: Any, twin: Any) -> None:
    for name, member in inspect.getmembers_static(original):
        if name.startswith("_"):
            continue
        assert hasattr(twin, name), name
        if inspect.isfunction(member):
            there = inspect.getattr_static(twin, name)
            assert there.__doc__ == member.__doc__
            assert not inspect.iscoroutinefunction(there)
            assert inspect.signature(there) == inspect.signature(member)


def test_the_verbs_work_without_await(state_dir: Path) -> None:
    with control_on_a_thread(state_dir) as control:
        with sync.Keeper.join(state_dir) as joined:
            made = joined.create(name="one")
            assert isinstance(made, sync.Sandbox)
            assert made.describe().name == "one"
            assert [found.id for found in joined.list()] == [made.id]
            snapshot = made.snapshot("first")
            assert joined.snapshots.list() == [snapshot]
            forks = joined.fork(snapshot, 2)
            assert all(isinstance(fork, sync.Sandbox) for fork in forks)
            assert [event.kind for event in made.events()] == ["runtime_started"]
            assert isinstance(made.files, sync.SandboxFiles)
            assert isinstance(made.state, sync.SandboxState)
            assert isinstance(made.alarms, sync.SandboxAlarms)
            with pytest.raises(NotFound):
                joined.get("nobody")
        assert {seen.phase.value for seen in control.sandboxes.values()} == {"destroyed"}
    assert not [thread for thread in threading.enumerate() if thread.name == "sandkeeper-portal"]
