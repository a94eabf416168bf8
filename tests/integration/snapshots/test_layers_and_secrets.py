"""Flattening before the layer limit, and the scrub of tool files, on a real engine."""

from __future__ import annotations

import pytest

from tests.integration.snapshots.conftest import FLATTEN_AT_DEPTH
from tests.support.box_tree import differences, tree_of
from tests.support.yard import Yard

pytestmark = pytest.mark.docker


LOOK = "env | grep -v -e RUN_ID -e HOSTNAME | sort; pwd; id"


def layers(yard: Yard, snapshot_id: str) -> int:
    image = yard.docker.inspect_image(f"sandkeeper-{yard.installation_id}:{snapshot_id}")
    return len(image["RootFS"]["Layers"])


async def test_layers_never_become_too_many_and_no_file_changes(strict_yard: Yard) -> None:
    yard = strict_yard
    view = await yard.create()
    boot = yard.docker.inspect_container(view["birth_id"])["Image"]
    base = len(yard.docker.inspect_image(boot)["RootFS"]["Layers"])
    depths = []
    for turn in range(FLATTEN_AT_DEPTH + 2):
        await yard.write(view["id"], f"/srv/work/{turn}", f"turn {turn}".encode())
        await yard.run(view["id"], "chown user /srv/work/0; chmod 600 /srv/work/0; rm -f /etc/motd")
        snapshot = await yard.snapshot(view["id"])
        depths.append(snapshot["depth"])
        assert snapshot["is_flattened"] == (turn in (2, 4))
        assert layers(yard, snapshot["id"]) <= base + FLATTEN_AT_DEPTH
        before = {path: await tree_of(yard, view["id"], path) for path in ("/srv", "/usr/bin", "/home")}
        environment = await yard.run(view["id"], LOOK)
        await yard.change("destroy", view["id"])
        view = await yard.create(snapshot=snapshot["id"])
        for path, tree in before.items():
            assert differences(tree, await tree_of(yard, view["id"], path)) == {}, path
        assert (await yard.run(view["id"], LOOK)).stdout == environment.stdout
    assert depths == [1, 2, 1, 2, 1]
    assert not [name for name in yard.containers() if name.startswith("flat-")]


async def test_a_scrub_empties_what_tools_left(strict_yard: Yard) -> None:
    yard = strict_yard
    view = await yard.create()
    secret = "hunter" + "2"
    made = await yard.run(
        view["id"],
        f"cd /home/user && printf 'machine example login me password {secret}\\n' > .netrc && chmod 600 .netrc"
        " && chown user:user .netrc && mkdir -p /root/.docker && "
        'echo \'{"auths": {"example": {"auth": "bWU6cHc="}}}\' > /root/.docker/config.json'
        f" && printf 'TOKEN=ghp_{'a1B2' * 9}\\n' > /srv/notes",
    )
    assert made.exit_code == 0, made.stderr
    snapshot = await yard.snapshot(view["id"])
    scan = snapshot["secrets"]
    assert scan["scrubbed"] == ["/home/user/.netrc", "/root/.docker/config.json"]
    assert {(one["path"], one["kind"]) for one in scan["findings"]} == {
        ("/home/user/.netrc", "netrc_password"),
        ("/root/.docker/config.json", "docker_login"),
        ("/srv/notes", "github_token"),
    }
    assert scan["is_complete"]
    restored = await yard.create(snapshot=snapshot["id"])
    looked = await yard.run(
        restored["id"],
        "stat -c '%s %a %U' /home/user/.netrc; cat /root/.docker/config.json; wc -l < /srv/notes",
    )
    assert looked.stdout == "0 600 user\n{}\n1\n"
    assert (await yard.run(view["id"], "wc -c < /home/user/.netrc")).stdout == "0\n"


async def test_one_that_is_paused_is_scanned_too(strict_yard: Yard) -> None:
    yard = strict_yard
    view = await yard.create()
    await yard.write(view["id"], "/root/.netrc", b"machine example password pw\n")
    await yard.change("pause", view["id"])
    with pytest.raises(Exception, match="secrets_not_scrubbed"):
        await yard.snapshot(view["id"])
    assert (await yard.describe(view["id"]))["phase"] == "paused"
    await yard.change("resume", view["id"])
    assert (await yard.snapshot(view["id"]))["secrets"]["scrubbed"] == ["/root/.netrc"]
