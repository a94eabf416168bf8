"""A real commit and a real restore: every property of every file comes back."""

from __future__ import annotations

import pytest

from tests.support.box_tree import differences, tree_of
from tests.support.yard import Yard

pytestmark = pytest.mark.docker

MAKE = r"""
set -e
mkdir -p /srv/tree/sub/deep && cd /srv/tree
python3 - <<'PY'
import os, struct
open("attributes", "w").write("x")
os.setxattr("attributes", "user.note", b"\x00\xff any bytes")
os.setxattr("sub", "user.folder", b"too")
open("capable", "w").write("#!/bin/sh\n")
os.chmod("capable", 0o755)
os.setxattr("capable", "security.capability", struct.pack("<IIIII", 0x02000001, 1 << 5, 0, 0, 0))
open(b"name \xff\xfe", "wb").write(bytes(range(256)))
with open("sparse", "wb") as file:
    file.truncate(5_000_000)
    file.write(b"end")
PY
echo one > plain; chmod 4711 plain; chown 1000:7 plain
echo two > group; chmod 2750 group; chown user:user group
mkdir sticky; chmod 1777 sticky
ln plain sub/hard; ln plain sub/deep/harder
ln -s ../plain sub/link; ln -s /nowhere dangling; chown -h 1000:1000 dangling
mkfifo pipe; chmod 600 pipe
mkdir empty
: > zero
rm -f /etc/motd; echo changed > /etc/issue
touch -d '2021-02-03 04:05:06.123456789' plain group attributes zero
touch -h -d '2019-01-01 00:00:00.5' sub/link
touch -d '2019-01-01 00:00:07' sparse
touch -d '2001-01-01 01:01:01.000000001' empty sub/deep sub
"""


async def test_everything_a_tree_has_survives(yard: Yard) -> None:
    source = await yard.create(image="base")
    made = await yard.run(source["id"], MAKE)
    assert made.exit_code == 0, made.stderr
    before = await tree_of(yard, source["id"], "/srv/tree")
    assert before["plain"]["mtimeNs"] % 10**9 == 123456789
    snapshot = await yard.snapshot(source["id"])
    assert snapshot["metadata_cut"] is None
    assert snapshot["freeze_ms"] > 0
    assert snapshot["delta_bytes"] >= 5_000_003
    restored = await yard.create(snapshot=snapshot["id"])
    after = await tree_of(yard, restored["id"], "/srv/tree")
    assert differences(before, after) == {}
    looks = await yard.run(restored["id"], "cat /etc/issue; ls /etc/motd /.sandkeeper-metadata 2>&1 | wc -l")
    assert looks.stdout == "changed\n2\n"
    assert differences(before, await tree_of(yard, source["id"], "/srv/tree")) == {}, (
        "the source is untouched"
    )


async def test_a_copy_of_a_copy_is_the_same(yard: Yard) -> None:
    source = await yard.create(image="base")
    assert (await yard.run(source["id"], MAKE)).exit_code == 0
    before = await tree_of(yard, source["id"], "/srv/tree")
    for _ in range(3):
        snapshot = await yard.snapshot(source["id"])
        await yard.change("destroy", source["id"])
        source = await yard.create(snapshot=snapshot["id"])
        assert differences(before, await tree_of(yard, source["id"], "/srv/tree")) == {}


async def test_stop_and_start_again_brings_back_the_same(yard: Yard) -> None:
    source = await yard.create(image="base")
    assert (await yard.run(source["id"], MAKE)).exit_code == 0
    before = await tree_of(yard, source["id"], "/srv/tree")
    for keep in ("snapshot", "files"):
        await yard.change("stop", source["id"], keep=keep)
        await yard.change("start", source["id"])
        assert differences(before, await tree_of(yard, source["id"], "/srv/tree")) == {}, keep
