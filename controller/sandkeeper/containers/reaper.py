"""Removes what was made by this installation and is claimed by no record: containers and images.

Owns the rule and its order: the engine is listed first, the records are read after. A claim is durable before
its container is made, so what is listed and unclaimed is garbage. Never touches anything that does not carry
this installation's label or repository.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

import structlog

from sandkeeper.containers.engine import Engine, EngineImage, ListedRuntime
from sandkeeper.core.errors import FailedPrecondition, SandkeeperError
from sandkeeper.core.ids import BirthId, CommandId, InstallationId, SnapshotId

log = structlog.get_logger(__name__)

_PENDING = "pending-"
_FLAT = "flat-"


@dataclass(frozen=True, slots=True)
class KnownNames:
    """Every engine name the records of an installation claim or have given up.

    Attributes:
        births: Claimed birth ids.
        given_up: Names abandoned with their command: removed at once when they appear.
        pending: Commands whose reply is awaited; only their pending images may exist.
        snapshots: Snapshots that are valid, or being committed.
    """

    births: frozenset[BirthId]
    given_up: frozenset[str]
    pending: frozenset[CommandId]
    snapshots: frozenset[SnapshotId]


@dataclass(frozen=True, slots=True)
class Doomed:
    """What is to be removed: birth ids, and image references."""

    births: tuple[BirthId, ...]
    images: tuple[str, ...]


def doomed(
    runtimes: Iterable[ListedRuntime],
    images: Iterable[EngineImage],
    known: KnownNames,
    *,
    installation_id: InstallationId,
    now: datetime,
    reap_after_s: float,
) -> Doomed:
    """Return what nobody claims.

    Args:
        runtimes: Containers of the installation, listed before `known` was read.
        images: Images of the installation, listed before `known` was read.
        known: What the records say.
        installation_id: Whose repository the references must be in.
        now: The present moment.
        reap_after_s: Age an unclaimed container or an untagged image must have; a given-up name needs none.
    """
    births = tuple(
        runtime.birth_id
        for runtime in runtimes
        if not _is_claimed(runtime.birth_id, known)
        and (runtime.birth_id in known.given_up or _age_s(runtime.created_at, now) >= reap_after_s)
    )
    references: list[str] = []
    repository = f"sandkeeper-{installation_id}:"
    for image in images:
        ours = [tag.removeprefix(repository) for tag in image.tags if tag.startswith(repository)]
        references += [f"{repository}{name}" for name in ours if not _is_known(name, known)]
        if not image.tags and _age_s(image.created_at, now) >= reap_after_s:
            references.append(image.image_id)
    return Doomed(births, tuple(references))


async def find_doomed(
    engine: Engine,
    *,
    installation_id: InstallationId,
    read_known: Callable[[], Awaitable[KnownNames]],
    now: Callable[[], datetime],
    reap_after_s: float,
) -> Doomed:
    """List the engine, then read the records, and return what nobody claims; nothing is removed.

    Raises:
        Unavailable: The engine cannot be listed.
    """
    runtimes, images = await engine.list_runtimes(), await engine.list_images()
    known = await read_known()
    return doomed(
        runtimes, images, known, installation_id=installation_id, now=now(), reap_after_s=reap_after_s
    )


async def reap_once(
    engine: Engine,
    *,
    installation_id: InstallationId,
    read_known: Callable[[], Awaitable[KnownNames]],
    now: Callable[[], datetime],
    reap_after_s: float,
) -> Doomed:
    """List the engine, then read the records, then remove what nobody claims; return what was removed.

    What cannot be removed now is tried again in the next round.

    Raises:
        Unavailable: The engine cannot be listed.
    """
    found = await find_doomed(
        engine,
        installation_id=installation_id,
        read_known=read_known,
        now=now,
        reap_after_s=reap_after_s,
    )
    births = [birth_id for birth_id in found.births if await _remove_runtime(engine, birth_id)]
    references = [reference for reference in found.images if await _remove_image(engine, reference)]
    return Doomed(tuple(births), tuple(references))


async def _remove_runtime(engine: Engine, birth_id: BirthId) -> bool:
    try:
        await engine.remove(birth_id)
    except SandkeeperError as error:
        log.warning("reap_failed", birth_id=birth_id, code=error.code, message=error.message)
        return False
    log.info("reaped", birth_id=birth_id)
    return True


async def _remove_image(engine: Engine, reference: str) -> bool:
    try:
        await engine.untag_or_remove_image(reference)
    except FailedPrecondition as error:
        # A runtime still stands on it: its turn comes when that runtime is gone.
        log.debug("reap_postponed", image=reference, code=error.code)
        return False
    except SandkeeperError as error:
        log.warning("reap_failed", image=reference, code=error.code, message=error.message)
        return False
    log.info("reaped", image=reference)
    return True


def _is_known(name: str, known: KnownNames) -> bool:
    if name.startswith(_PENDING):
        return name not in known.given_up and CommandId(name.removeprefix(_PENDING)) in known.pending
    if name.startswith(_FLAT):
        return CommandId(name.removeprefix(_FLAT)) in known.pending
    return SnapshotId(name) in known.snapshots


def _is_claimed(name: BirthId, known: KnownNames) -> bool:
    """Say whether a record claims a container, or its pending command flattens through it."""
    if name.startswith(_FLAT):
        return CommandId(name.removeprefix(_FLAT)) in known.pending
    return name in known.births


def _age_s(created_at: datetime, now: datetime) -> float:
    return (now - created_at).total_seconds()
