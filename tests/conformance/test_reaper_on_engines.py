"""The reaper's round on every engine: what is ours and unclaimed goes, and nothing else."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from sandkeeper.containers.reaper import Doomed, KnownNames, reap_once
from sandkeeper.core.ids import InstallationId, SnapshotId
from tests.support.engine_rig import EngineRig, FakeRig


@pytest.fixture(params=["fake", pytest.param("docker", marks=pytest.mark.docker)])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[EngineRig]:
    made: EngineRig = FakeRig() if request.param == "fake" else request.getfixturevalue("make_docker_rig")()
    yield made
    await made.close()


async def test_one_round(rig: EngineRig) -> None:
    kept, lost, foreign = rig.settings(), rig.settings(), rig.settings()
    for settings in (kept, lost):
        await rig.engine.create(settings)
        await rig.engine.start(settings.birth_id)
    rig.make_foreign(foreign.birth_id)
    valid = await rig.engine.commit(kept.birth_id, tag=f"{rig.repository}:sn1")
    await rig.engine.commit(kept.birth_id, tag=f"{rig.repository}:pending-sb1-7")
    await rig.engine.commit(kept.birth_id, tag=f"{rig.repository}:pending-sb1-7")
    known = KnownNames(
        births=frozenset({kept.birth_id}),
        given_up=frozenset(),
        pending=frozenset(),
        snapshots=frozenset({SnapshotId("sn1")}),
    )

    async def reap(known: KnownNames) -> Doomed:
        async def read_known() -> KnownNames:
            return known

        return await reap_once(
            rig.engine,
            installation_id=InstallationId(rig.repository.removeprefix("sandkeeper-")),
            read_known=read_known,
            now=rig.ports.clock.now,
            reap_after_s=-5,
        )

    found = await reap(known)
    assert found.births == (lost.birth_id,)
    assert f"{rig.repository}:pending-sb1-7" in found.images
    assert len(found.images) == 2
    assert await reap(known) == Doomed((), ())
    assert rig.has_container(foreign.birth_id)
    assert [runtime.birth_id for runtime in await rig.engine.list_runtimes()] == [kept.birth_id]
    assert [image.image_id for image in await rig.engine.list_images()] == [valid]
    assert await reap(replace(known, snapshots=frozenset())) == Doomed((), (f"{rig.repository}:sn1",))
    assert await rig.engine.list_images() == []
