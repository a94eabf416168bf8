"""The disk that holds the records is full: what cannot be made durable is refused, and nothing is done."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator

import pytest

from sandkeeper.containers.endpoint import find_endpoint
from sandkeeper.core.errors import NotFound, ResourceExhausted
from tests.support.yard import Yard, token

pytestmark = [pytest.mark.crash, pytest.mark.docker]


@pytest.fixture
async def small_yard() -> AsyncIterator[Yard]:
    """A yard whose state folder is a file system of 32 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    yard = Yard(engine_url=find_endpoint(os.environ).url, audit_s=0.5)
    state = yard.config.state_dir
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(state)], check=True)
    try:
        await yard.open()
        yield yard
        await yard.settle()
    finally:
        await yard.end()
        subprocess.run(["umount", "-l", str(state)], check=True)
        await yard.close()


async def test_refused_until_there_is_room(small_yard: Yard) -> None:
    yard = small_yard
    view = await yard.create()
    await yard.write(view["id"], "/kept", b"kept")
    snapshot = await yard.snapshot(view["id"])
    filler = yard.config.state_dir / "filler"
    with filler.open("wb") as file, pytest.raises(OSError, match="space"):  # noqa: PT012
        while True:
            file.write(bytes(1 << 16))
            file.flush()
    yard.engine.seen.clear()
    for verb, fields in (
        ("pause", {}),
        ("take_snapshot", {}),
        ("stop", {"keep": "nothing"}),
        ("destroy", {}),
    ):
        with pytest.raises(ResourceExhausted) as full:
            await yard.change(verb, view["id"], **fields)
        assert (full.value.code, full.value.admitted) == ("disk_full", "no")
    name = f"no-{token()}"
    with pytest.raises(ResourceExhausted):
        await yard.create(name=name)
    with pytest.raises(NotFound):
        await yard.ask("find", name=name)
    assert not {"pause", "commit", "remove", "create"} & set(yard.engine.seen)
    assert (await yard.run(view["id"], "cat /kept")).stdout == "kept", "commands need no record"
    filler.unlink()
    assert shutil.disk_usage(yard.config.state_dir).free
    assert (await yard.change("pause", view["id"]))["phase"] == "paused"
    await yard.restart_owner()
    assert (await yard.change("resume", view["id"]))["phase"] == "running"
    assert await yard.restores(snapshot["id"], "/kept") == b"kept"
