"""The rules of snapshots: retention, renewal, states, what may go, when layers are too many."""

from __future__ import annotations

from datetime import timedelta

import pytest

from sandkeeper.core.ids import DEFAULT_TENANT, MachineId, SandboxId, SnapshotId
from sandkeeper.core.record import SnapshotRecord
from sandkeeper.core.snapshots import (
    FOREVER,
    Retention,
    SnapshotState,
    kept_for,
    prunable,
    renewed,
    retention_of,
    state_of,
    wants_flattening,
)
from sandkeeper.core.views import snapshot_view
from tests.unit.core.samples import AT, SNAPSHOT

DAY = timedelta(days=1)
MONTH_S = 30 * 86_400.0


def taken(
    number: int = 1, *, keep_s: float | None = MONTH_S, is_automatic: bool = False, sandbox: str = "sb0"
) -> SnapshotRecord:
    """Return the row of a snapshot that was taken `number` seconds after the first moment."""
    at = AT + timedelta(seconds=number)
    return SnapshotRecord(
        snapshot_id=SnapshotId(f"sn{number}"),
        tenant_id=DEFAULT_TENANT,
        machine_id=MachineId("m0"),
        sandbox_id=SandboxId(sandbox),
        generation=1,
        boot=SNAPSHOT,
        size_bytes=1,
        delta_bytes=1,
        freeze_ms=1.0,
        created_at=at,
        expires_at=None if keep_s is None else at + timedelta(seconds=keep_s),
        is_automatic=is_automatic,
    )


def in_force(*snapshots: SnapshotRecord) -> dict[SnapshotId, Retention]:
    return {one.snapshot_id: retention_of(one, kept=None, automatic_keep_s=MONTH_S) for one in snapshots}


def pruned(*snapshots: SnapshotRecord, used: str = "", pinned: str = "", days: int = 1) -> list[str]:
    found = prunable(
        snapshots,
        retentions=in_force(*snapshots),
        pinned=frozenset({SnapshotId(pinned)}),
        used=frozenset({SnapshotId(used)}),
        now=AT + days * DAY,
    )
    return sorted(found)


def test_a_restore_renews_the_whole_time() -> None:
    retention = retention_of(taken(0), kept=None, automatic_keep_s=1.0)
    assert retention == Retention(MONTH_S, AT + 30 * DAY)
    again = renewed(retention, now=AT + 20 * DAY)
    assert again == Retention(MONTH_S, AT + 50 * DAY)


def test_a_renewal_that_gains_next_to_nothing_is_not_written() -> None:
    retention = kept_for(MONTH_S, now=AT)
    assert renewed(retention, now=AT + timedelta(hours=7)) is None
    assert renewed(retention, now=AT + timedelta(hours=8)) is not None


def test_what_is_kept_for_ever_stays_so() -> None:
    assert retention_of(taken(keep_s=None), kept=None, automatic_keep_s=1.0) == FOREVER
    assert renewed(FOREVER, now=AT) is None
    assert kept_for(None, now=AT) == FOREVER


def test_what_was_decided_since_counts() -> None:
    assert retention_of(taken(), kept=FOREVER, automatic_keep_s=1.0) == FOREVER


def test_an_automatic_snapshot_of_no_stated_time_expires() -> None:
    automatic = taken(0, keep_s=None, is_automatic=True)
    assert retention_of(automatic, kept=None, automatic_keep_s=60.0).expires_at == AT + timedelta(seconds=60)


@pytest.mark.parametrize(
    ("is_present", "days", "state"),
    [
        (True, 1, SnapshotState.VALID),
        (True, 30, SnapshotState.EXPIRED),
        (False, 1, SnapshotState.MISSING),
        (False, 30, SnapshotState.MISSING),
        (None, 1, SnapshotState.UNKNOWN),
    ],
)
def test_the_state_says_whether_it_can_be_restored(
    is_present: bool | None, days: int, state: SnapshotState
) -> None:
    assert state_of(kept_for(MONTH_S, now=AT), is_present=is_present, now=AT + days * DAY) is state


def test_expired_ones_go_unless_something_stands_on_them() -> None:
    assert pruned(taken(1), taken(2, keep_s=None), days=31) == ["sn1"]
    assert pruned(taken(1), days=29) == []
    assert pruned(taken(1), used="sn1", days=31) == []


def test_of_automatic_ones_the_newest_three_of_a_sandbox_stay() -> None:
    made = [taken(number, keep_s=None, is_automatic=True) for number in range(1, 6)]
    other = taken(9, keep_s=None, is_automatic=True, sandbox="sb1")
    assert pruned(*made, other) == ["sn1", "sn2"]
    assert pruned(*made, used="sn1") == ["sn2"]
    assert pruned(*made, pinned="sn2") == ["sn1"]
    assert pruned(*made, taken(10), taken(11)) == ["sn1", "sn2"]


def test_a_view_shows_what_is_in_force() -> None:
    view = snapshot_view(taken(), retention=FOREVER, state=SnapshotState.MISSING)
    assert (view.expires_at, view.state) == (None, "missing")
    assert snapshot_view(taken()).expires_at == taken().expires_at


def test_too_many_layers_are_flattened() -> None:
    assert [wants_flattening(depth, flatten_at_depth=100) for depth in (1, 99, 100, 101)] == [
        False,
        False,
        True,
        True,
    ]
