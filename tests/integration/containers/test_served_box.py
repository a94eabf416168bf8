"""The bench's engine: a fake container with a fake boxd that real links reach over real sockets."""

from pathlib import Path

import pytest

from sandkeeper.boxd.boot import BootListener
from sandkeeper.boxd.link import BoxdLink
from sandkeeper.containers.engine import RuntimeSettings
from sandkeeper.core.errors import FailedPrecondition, SandkeeperError, Unavailable
from sandkeeper.core.ids import BirthId, InstallationId
from sandkeeper.core.sizes import parse_size
from sandkeeper.ports import real_ports
from tests.fakes.engine import engine_for_bench


async def test_the_life_of_one_box(tmp_path: Path) -> None:
    ports, birth_id = real_ports(), BirthId("sk-1")
    engine = engine_for_bench(installation_id=InstallationId("bench"), ports=ports, state_dir=tmp_path)
    listener = BootListener(tmp_path, birth_id=birth_id, ports=ports)
    listener.open()
    settings = RuntimeSettings(
        birth_id, InstallationId("bench"), "any", parse_size(None), "", str(listener.boot_folder)
    )
    await engine.create(settings)
    await engine.start(birth_id)
    seen = await engine.inspect(birth_id)
    assert seen is not None
    assert seen.pid is not None
    await listener.hand_over(pid=seen.pid, timeout_s=10)
    link = BoxdLink(listener.control_path, generation=1, epoch=2, ports=ports)
    stale = BoxdLink(listener.control_path, generation=1, epoch=1, ports=ports)
    with pytest.raises(SandkeeperError) as caught:
        await link.resume()
    assert caught.value.code == "not_started"
    assert (await link.go(birth_id=birth_id)).state == "running"
    assert (await link.quiesce(reason="test", force=True)).state == "drained"
    assert (await link.resume()).state == "running"
    with pytest.raises(FailedPrecondition) as fenced:
        await stale.resume()
    assert fenced.value.code == "stale_epoch"
    await link.health()
    await engine.freeze(birth_id)
    with pytest.raises(Unavailable):
        await link.hello(timeout_s=0.05)
    await engine.thaw(birth_id)
    assert (await link.hello()).generation == 1
    await engine.remove(birth_id)
    with pytest.raises(SandkeeperError):
        await link.hello()
    for one in (link, stale):
        await one.aclose()
    listener.close()
    await engine.close()
