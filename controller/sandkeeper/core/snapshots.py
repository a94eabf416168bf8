"""The rules of snapshots: how long one is kept, which may go, in what state it is, when layers become too many.

Pure. A snapshot's row never changes; what may change about it (its retention) lies beside it, and the value
in force is made here from both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sandkeeper.core.errors import DataLoss
from sandkeeper.core.ids import SandboxId, SnapshotId
from sandkeeper.core.record import SnapshotRecord

AUTOMATIC_KEPT = 3
"""Snapshots a sandbox's stops made by themselves: the newest so many stay."""

RENEWAL_SLACK = 0.01
"""A renewal that gains less than this part of the time to keep is not written."""


class SnapshotState(StrEnum):
    """Whether a snapshot can be restored; `unknown` while the engine cannot be asked."""

    VALID = "valid"
    EXPIRED = "expired"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a snapshot is kept.

    Attributes:
        keep_s: Seconds it is kept after its last use; None means for ever.
        expires_at: When it may go; None exactly when `keep_s` is.
    """

    keep_s: float | None
    expires_at: datetime | None


FOREVER = Retention(None, None)


def kept_for(keep_s: float | None, *, now: datetime) -> Retention:
    """Return the retention of a snapshot that is to be kept for `keep_s` from now, or for ever."""
    return FOREVER if keep_s is None else Retention(keep_s, now + timedelta(seconds=keep_s))


def retention_of(snapshot: SnapshotRecord, *, kept: Retention | None, automatic_keep_s: float) -> Retention:
    """Return the retention in force.

    Args:
        snapshot: Its row.
        kept: What was decided since: by a pin, or by a restore; None when nothing was.
        automatic_keep_s: How long a snapshot is kept that nobody asked for by name.
    """
    if kept is not None:
        return kept
    if snapshot.expires_at is not None:
        return Retention((snapshot.expires_at - snapshot.created_at).total_seconds(), snapshot.expires_at)
    if snapshot.is_automatic:
        return kept_for(automatic_keep_s, now=snapshot.created_at)
    return FOREVER


def renewed(retention: Retention, *, now: datetime) -> Retention | None:
    """Return the retention after a use now, or None when there is nothing worth writing."""
    if retention.keep_s is None or retention.expires_at is None:
        return None
    gain_s = retention.keep_s - (retention.expires_at - now).total_seconds()
    return kept_for(retention.keep_s, now=now) if gain_s > RENEWAL_SLACK * retention.keep_s else None


def state_of(retention: Retention, *, is_present: bool | None, now: datetime) -> SnapshotState:
    """Return the state of a snapshot; `is_present` None means that the engine cannot be asked."""
    if is_present is None:
        return SnapshotState.UNKNOWN
    if not is_present:
        return SnapshotState.MISSING
    is_over = retention.expires_at is not None and retention.expires_at <= now
    return SnapshotState.EXPIRED if is_over else SnapshotState.VALID


def prunable(
    snapshots: Iterable[SnapshotRecord],
    *,
    retentions: Mapping[SnapshotId, Retention],
    pinned: frozenset[SnapshotId],
    used: frozenset[SnapshotId],
    now: datetime,
) -> dict[SnapshotId, str]:
    """Return the snapshots that may go now, each with the reason.

    Args:
        snapshots: All that exist.
        retentions: The retention in force of each.
        pinned: Those whose retention somebody has decided: never superseded.
        used: Those a sandbox or a create stands on: never pruned.
        now: The present moment.
    """
    found: dict[SnapshotId, str] = {}
    newer: dict[SandboxId, int] = {}
    for snapshot in sorted(snapshots, key=lambda one: one.created_at, reverse=True):
        expires_at = retentions[snapshot.snapshot_id].expires_at
        if snapshot.is_automatic:
            newer[snapshot.sandbox_id] = newer.get(snapshot.sandbox_id, 0) + 1
        if snapshot.snapshot_id in used:
            continue
        is_superseded = snapshot.is_automatic and newer[snapshot.sandbox_id] > AUTOMATIC_KEPT
        if expires_at is not None and expires_at <= now:
            found[snapshot.snapshot_id] = f"expired at {expires_at:%Y-%m-%d %H:%M:%S} UTC"
        elif is_superseded and snapshot.snapshot_id not in pinned:
            found[snapshot.snapshot_id] = f"automatic, and {AUTOMATIC_KEPT} newer ones are kept"
    return found


def snapshot_missing(snapshot_id: SnapshotId) -> DataLoss:
    """Return the error for a snapshot whose image is gone; nothing older is taken in its place."""
    return DataLoss(
        f"the image of snapshot {snapshot_id} is gone from the engine",
        code="snapshot_missing",
        advice="restore another snapshot knowingly, or import this one from an archive",
        details={"snapshot": snapshot_id},
    )


def wants_flattening(depth: int, *, flatten_at_depth: int) -> bool:
    """Return whether a snapshot of so many layers above its catalogue image is to be made into one layer."""
    return depth >= flatten_at_depth
