"""Clean-up on request: what would go and why, or what went.

Owns the report. What may go is decided where it always is: `snapshot_catalogue` and `reaping`.
"""

from __future__ import annotations

from sandkeeper.containers.reaper import Doomed
from sandkeeper.core.snapshot_verbs import Garbage, GarbageReport
from sandkeeper.owner.reaping import Reaping
from sandkeeper.owner.snapshot_catalogue import SnapshotCatalogue

UNCLAIMED = "no record claims it"


async def collect(snapshots: SnapshotCatalogue, reaping: Reaping, *, dry_run: bool) -> GarbageReport:
    """Remove what is over or unclaimed, or only say what would be removed.

    Raises:
        Unavailable: The engine cannot be listed.
    """
    prunable = await snapshots.prunable()
    sizes = {one.snapshot_id: one.delta_bytes for one in await snapshots.valid()}
    going = list(prunable) if dry_run else await snapshots.prune()
    items = [
        Garbage(
            kind="snapshot",
            name=snapshot_id,
            why=prunable.get(snapshot_id, "expired"),
            size_bytes=sizes.get(snapshot_id, 0),
        )
        for snapshot_id in going
    ]
    doomed = await reaping.doomed() if dry_run else await reaping.reap()
    return GarbageReport(dry_run=dry_run, items=(*items, *_unclaimed(doomed)))


def _unclaimed(doomed: Doomed) -> list[Garbage]:
    return [
        *(Garbage(kind="container", name=name, why=UNCLAIMED) for name in doomed.births),
        *(Garbage(kind="image", name=name, why=UNCLAIMED) for name in doomed.images),
    ]
