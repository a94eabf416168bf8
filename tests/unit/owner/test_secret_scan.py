"""The scan for credentials before a snapshot: what it reads, where it ends, and what each mode does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sandkeeper.core import commands as cmd
from sandkeeper.core import events as ev
from sandkeeper.core.errors import Unavailable
from sandkeeper.core.findings import ALWAYS_READ, SecretsMode
from sandkeeper.core.ids import SnapshotId
from sandkeeper.core.record import Phase
from sandkeeper.owner import secret_scan
from sandkeeper.ports import Ports
from tests.support.virtual_time import in_virtual_time
from tests.unit.core.samples import BIRTH, record
from tests.unit.owner.house import House, open_house
from tests.unit.owner.test_runner import LAUNCH, STARTING, TARGET

COMMIT = cmd.CommitSnapshot(**TARGET, snapshot_id=SnapshotId("sn1"))
FROZEN = COMMIT.model_copy(update={"was_frozen": True})
SNAPSHOTTING = record(Phase.SNAPSHOTTING)
NETRC = b"machine example login me password hunter2\n"
TOKEN = b"export TOKEN=ghp_" + b"a1B2" * 9


async def at_work(ports: Ports, *, mode: SecretsMode, **files: bytes) -> House:
    house = await open_house(ports)
    house.runner = replace(house.runner, snapshotter=replace(house.runner.snapshotter, secrets=mode))
    assert isinstance(await house.runner.perform(STARTING, LAUNCH), ev.RuntimeStarted)
    house.world.runtimes[BIRTH].files |= {"/root/.netrc": NETRC, "/srv/run.sh": TOKEN}
    return house


async def taken(house: House, command: cmd.CommitSnapshot = COMMIT) -> Any:
    return await house.runner.perform(SNAPSHOTTING, command)


@in_virtual_time
async def test_a_warning_names_files_and_kinds_and_no_value(ports: Ports) -> None:
    house = await at_work(ports, mode="warn")
    reply = await taken(house)
    assert isinstance(reply, ev.SnapshotCommitted)
    assert reply.secrets is not None
    found = {(one.path, one.kind) for one in reply.secrets.findings}
    assert found == {("/root/.netrc", "netrc_password"), ("/srv/run.sh", "github_token")}
    assert reply.secrets.is_complete
    assert "hunter2" not in reply.model_dump_json()
    assert "ghp_" not in reply.model_dump_json()


@in_virtual_time
async def test_off_does_not_look(ports: Ports) -> None:
    house = await at_work(ports, mode="off")
    house.engine.calls.clear()
    reply = await taken(house)
    assert reply.secrets is None
    assert "changed_paths" not in [verb for verb, _ in house.engine.calls]


@in_virtual_time
async def test_a_refusal_takes_none_and_freezes_nothing(ports: Ports) -> None:
    house = await at_work(ports, mode="refuse")
    house.engine.calls.clear()
    reply = await taken(house)
    assert isinstance(reply, ev.SnapshotFailed)
    assert (reply.category, reply.code) == ("PermissionDenied", "snapshot_holds_secrets")
    assert "/root/.netrc (netrc_password)" in reply.message
    assert "hunter2" not in reply.message
    assert not {"freeze", "commit"} & {verb for verb, _ in house.engine.calls}


@in_virtual_time
async def test_a_scrub_empties_tool_files_and_says_so(ports: Ports) -> None:
    house = await at_work(ports, mode="scrub")
    reply = await taken(house)
    assert reply.secrets.scrubbed == ("/root/.netrc",)
    files = house.world.images[reply.image_id].files
    assert files["/root/.netrc"] == b""
    assert files["/srv/run.sh"] == TOKEN
    assert {one.path for one in reply.secrets.findings} == {"/root/.netrc", "/srv/run.sh"}


@in_virtual_time
async def test_one_that_stands_still_is_scanned_by_the_engine(ports: Ports) -> None:
    house = await at_work(ports, mode="warn")
    await house.engine.freeze(BIRTH)
    reply = await taken(house, FROZEN)
    assert len(reply.secrets.findings) == 2
    assert reply.metadata_cut == "not_running"


@in_virtual_time
async def test_one_that_stands_still_cannot_be_scrubbed(ports: Ports) -> None:
    house = await at_work(ports, mode="scrub")
    await house.engine.freeze(BIRTH)
    reply = await taken(house, FROZEN)
    assert (reply.category, reply.code) == ("FailedPrecondition", "secrets_not_scrubbed")


@in_virtual_time
async def test_a_bound_ends_the_scan_and_is_told(ports: Ports, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_scan, "MAX_FILES", len(ALWAYS_READ))
    house = await at_work(ports, mode="warn")
    reply = await taken(house)
    assert not reply.secrets.is_complete
    assert reply.secrets.file_count == 1
    strict = await at_work(ports, mode="refuse")
    strict.world.runtimes[BIRTH].files["/root/.netrc"] = b""
    assert (await taken(strict)).code == "secret_scan_incomplete"


@in_virtual_time
async def test_a_slow_engine_ends_the_scan_and_not_the_snapshot(ports: Ports) -> None:
    house = await at_work(ports, mode="warn")
    house.engine.latency_s["changed_paths"] = 1000.0
    reply = await taken(house)
    assert isinstance(reply, ev.SnapshotCommitted)
    assert reply.secrets is not None
    assert not reply.secrets.is_complete


@in_virtual_time
async def test_a_box_that_does_not_answer_ends_the_scan(ports: Ports) -> None:
    house = await at_work(ports, mode="warn")
    house.engine.fail_next("changed_paths", Unavailable("away", code="engine_unavailable"))
    reply = await taken(house)
    assert reply.secrets is not None
    assert not reply.secrets.is_complete


@in_virtual_time
async def test_a_quick_scan_reads_the_files_of_tools_only(ports: Ports) -> None:
    house = await at_work(ports, mode="quick")
    house.engine.calls.clear()
    reply = await taken(house)
    assert [one.path for one in reply.secrets.findings] == ["/root/.netrc"]
    assert "changed_paths" not in {verb for verb, _ in house.engine.calls}
