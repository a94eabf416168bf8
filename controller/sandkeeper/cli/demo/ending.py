"""Leaving nothing behind: before the story what an earlier run left, after it all but the winner's snapshot.

Owns the proof that nothing is left, from the records and from the engine.
"""

from __future__ import annotations

import asyncio

from sandkeeper.cli.demo.diary import Diary
from sandkeeper.cli.demo.verdict import demand
from sandkeeper.cli.demo.witness import Traces, Witness
from sandkeeper.client.keeper import Keeper
from sandkeeper.client.results import Snapshot

LOOKS = 40
LOOK_EVERY_S = 0.25


async def sweep(keeper: Keeper, *, diary: Diary) -> None:
    """Destroy what an earlier run left in the demonstration's own installation."""
    sandboxes = await keeper.list()
    snapshots = await keeper.snapshots.list()
    await _destroy_all(keeper, keep=None)
    if sandboxes or snapshots:
        diary.note(
            "step", f"swept {len(sandboxes)} sandboxes and {len(snapshots)} snapshots of an earlier run"
        )


async def end_all(keeper: Keeper, witness: Witness, *, keep: Snapshot | None, diary: Diary) -> None:
    """Destroy everything but `keep`, and prove it.

    Raises:
        StepFailed: Something is left, or what is to be kept is not there.
    """
    await _destroy_all(keeper, keep=keep)
    expected = 0 if keep is None else 1
    traces = await witness.traces()
    for _ in range(LOOKS):
        if _is_clean(traces, expected=expected):
            break
        await asyncio.sleep(LOOK_EVERY_S)
        traces = await witness.traces()
    demand(not traces.containers, "no container is left", ", ".join(traces.containers))
    demand(len(traces.images) == expected, "no image but the winner's is left", ", ".join(traces.images))
    demand(not traces.folders, "no container folder is left", ", ".join(traces.folders))
    snapshots = [snapshot.id for snapshot in await keeper.snapshots.list()]
    demand(
        snapshots == ([keep.id] if keep else []), "no snapshot but the winner's is left", ", ".join(snapshots)
    )
    if keep is not None:
        demand(traces.images[0].endswith(f":{keep.id}"), "the winner's image", traces.images[0])
        diary.note("check", f"nothing of ours is left at the engine but {traces.images[0]}")


async def _destroy_all(keeper: Keeper, *, keep: Snapshot | None) -> None:
    sandboxes = await keeper.list()
    await asyncio.gather(*(sandbox.destroy() for sandbox in sandboxes))
    for snapshot in await keeper.snapshots.list():
        if keep is None or snapshot.id != keep.id:
            await keeper.snapshots.delete(snapshot.id)


def _is_clean(traces: Traces, *, expected: int) -> bool:
    return not traces.containers and not traces.folders and len(traces.images) == expected
