"""Limits as the kernel has them, and commits as the engine keeps them."""

import asyncio
import os
from pathlib import Path

import pytest

from sandkeeper.containers.engine import RuntimeSettings
from sandkeeper.core.errors import FailedPrecondition
from sandkeeper.core.ids import BirthId
from sandkeeper.core.sizes import Size
from tests.support.engine_rig import DockerRig

pytestmark = pytest.mark.docker


def size(memory_mib: int, *, vcpu: float = 1, pids: int = 160) -> Size:
    return Size(name="custom", vcpu=vcpu, memory_mib=memory_mib, pids=pids)


async def started(rig: DockerRig, settings: RuntimeSettings, *, says: str) -> BirthId:
    await rig.engine.create(settings)
    await rig.engine.start(settings.birth_id)
    while says not in await rig.engine.output_tail(settings.birth_id, max_bytes=1000):
        await asyncio.sleep(0.01)
    return settings.birth_id


def kernel_limits(rig: DockerRig, birth_id: BirthId) -> tuple[int, int, int, int]:
    """Memory, memory with swap, CPU quota and pids of the container's cgroup; v1 or v2."""
    container = rig.docker.inspect_container(birth_id)
    places = Path(f"/proc/{container['State']['Pid']}/cgroup").read_text().splitlines()
    folders = {kinds: path for _, kinds, path in (line.split(":", 2) for line in places)}
    if set(folders) == {""}:
        folder = Path("/sys/fs/cgroup" + folders[""])
        memory = int((folder / "memory.max").read_text())
        swap = int((folder / "memory.swap.max").read_text())
        quota = int((folder / "cpu.max").read_text().split()[0])
        return memory, memory + swap, quota, int((folder / "pids.max").read_text())

    def read(kind: str, name: str) -> int:
        path = next(path for kinds, path in folders.items() if kind in kinds.split(","))
        return int((Path("/sys/fs/cgroup") / kind / path.lstrip("/") / name).read_text())

    return (
        read("memory", "memory.limit_in_bytes"),
        read("memory", "memory.memsw.limit_in_bytes"),
        read("cpu", "cpu.cfs_quota_us"),
        read("pids", "pids.max"),
    )


@pytest.mark.parametrize("is_frozen", [False, True])
async def test_an_update_reaches_the_kernel_up_and_down(docker_rig: DockerRig, is_frozen: bool) -> None:
    birth_id = await started(docker_rig, docker_rig.settings(size=size(64)), says="ready")
    if is_frozen:
        await docker_rig.engine.freeze(birth_id)
    for memory_mib, vcpu, pids in ((64, 1.0, 160), (512, 4.0, 300), (32, 0.25, 170), (1024, 1.5, 160)):
        await docker_rig.engine.update(birth_id, size(memory_mib, vcpu=vcpu, pids=pids))
        limit = memory_mib << 20
        assert kernel_limits(docker_rig, birth_id) == (limit, limit, round(vcpu * 100_000), pids)


async def test_an_update_of_a_stopped_one_holds_at_the_next_start(docker_rig: DockerRig) -> None:
    birth_id = await started(docker_rig, docker_rig.settings(size=size(64)), says="ready")
    await docker_rig.engine.stop(birth_id, grace_s=0)
    await docker_rig.engine.update(birth_id, size(256, vcpu=0.5))
    await docker_rig.engine.start(birth_id)
    assert kernel_limits(docker_rig, birth_id) == (256 << 20, 256 << 20, 50_000, 160)


async def test_a_limit_below_what_is_in_use_is_refused(docker_rig: DockerRig) -> None:
    birth_id = await started(docker_rig, docker_rig.settings(play="use 100", size=size(256)), says="in use")
    with pytest.raises(FailedPrecondition) as caught:
        await docker_rig.engine.update(birth_id, size(48))
    assert caught.value.code == "size_below_usage"
    assert kernel_limits(docker_rig, birth_id)[:2] == (256 << 20, 256 << 20)
    await docker_rig.engine.update(birth_id, size(200))


async def test_a_process_that_will_not_stop_is_killed_after_the_grace(docker_rig: DockerRig) -> None:
    birth_id = await started(docker_rig, docker_rig.settings(play="ignore"), says="ignoring")
    await docker_rig.engine.stop(birth_id, grace_s=0.5)
    seen = await docker_rig.engine.inspect(birth_id)
    assert seen is not None
    assert seen.exit_code == 137


async def test_a_commit_goes_on_though_its_container_is_removed(docker_rig: DockerRig) -> None:
    """So a commit given up must be given up with its tag: the image may still appear."""
    birth_id = await started(docker_rig, docker_rig.settings(), says="ready")
    docker_rig.write(birth_id, "/big", os.urandom(40 << 20))
    tag = f"{docker_rig.repository}:pending-sb1-1"
    committing = asyncio.create_task(docker_rig.engine.commit(birth_id, tag=tag))
    await asyncio.sleep(0.1)
    await docker_rig.engine.remove(birth_id)
    await asyncio.wait({committing})
    left = [image.image_id for image in await docker_rig.engine.list_images()]
    if committing.exception() is None:
        assert left == [committing.result()]
    else:
        assert left == []
    assert not docker_rig.has_container(birth_id)


async def test_nothing_of_the_container_goes_into_its_image(docker_rig: DockerRig) -> None:
    birth_id = await started(docker_rig, docker_rig.settings(), says="ready")
    image_id = await docker_rig.engine.commit(birth_id, tag=f"{docker_rig.repository}:sn1")
    parent = docker_rig.docker.inspect_image(docker_rig.image_id)["Config"]
    config = docker_rig.docker.inspect_image(image_id)["Config"]
    for name in ("Env", "WorkingDir", "User", "Entrypoint", "Cmd"):
        assert (config[name] or None) == (parent[name] or None), name
    assert config["Hostname"] == ""
    assert config["Labels"] == {"maker": "tests", "sandkeeper": "", "sandkeeper.birth": ""}
    assert docker_rig.docker.inspect_container(birth_id)["State"]["Paused"] is False


async def test_a_container_run_by_hand_from_a_snapshot_is_not_ours(docker_rig: DockerRig) -> None:
    source = docker_rig.settings()
    birth_id = await started(docker_rig, source, says="ready")
    image_id = await docker_rig.engine.commit(birth_id, tag=f"{docker_rig.repository}:sn1")
    labels = docker_rig.docker.inspect_container(birth_id)["Config"]["Labels"]
    made = [
        docker_rig.docker.create_container(image_id, command=["/x"]),
        docker_rig.docker.create_container(docker_rig.image_id, command=["/x"], labels=labels),
    ]
    try:
        assert [runtime.birth_id for runtime in await docker_rig.engine.list_runtimes()] == [birth_id]
    finally:
        for container in made:
            docker_rig.docker.remove_container(container["Id"])


async def test_holes_count_as_written(docker_rig: DockerRig) -> None:
    """What a commit would copy is the apparent size, so that is what must be checked before one."""
    birth_id = await started(docker_rig, docker_rig.settings(), says="ready")
    upper = docker_rig.docker.inspect_container(birth_id)["GraphDriver"]["Data"].get("UpperDir")
    if upper is None or not Path(upper).is_dir():
        pytest.skip("the engine's layers are not to be seen from here")
    with (Path(upper) / "hole").open("wb") as file:
        file.truncate(1 << 40)
    assert await docker_rig.engine.delta_bytes(birth_id) >= 1 << 40


async def test_a_chain_of_commits(docker_rig: DockerRig) -> None:
    """Each generation is made from the snapshot before; labels and configuration stay what they were."""
    image_id = docker_rig.image_id
    for number in range(3):
        settings = docker_rig.settings()
        chained = RuntimeSettings(
            settings.birth_id,
            settings.installation_id,
            image_id,
            settings.size,
            settings.boxd_dir,
            settings.run_dir,
        )
        birth_id = await started(docker_rig, chained, says="ready")
        docker_rig.write(birth_id, f"/{number}", b"x")
        image_id = await docker_rig.engine.commit(birth_id, tag=f"{docker_rig.repository}:sn{number}")
        shown = docker_rig.docker.inspect_container(birth_id)
        assert shown["Config"]["Labels"] == {
            "maker": "tests",
            "sandkeeper": docker_rig.installation_id,
            "sandkeeper.birth": birth_id,
        }
    parent = docker_rig.docker.inspect_image(docker_rig.image_id)["Config"]
    config = docker_rig.docker.inspect_image(image_id)["Config"]
    assert (config["Env"], config["Cmd"]) == (parent["Env"], parent["Cmd"])
