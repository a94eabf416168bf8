"""Admission: every rule refuses with its own code, and what passes is a whole specification."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sandkeeper.core.admission import (
    CatalogueImage,
    CreateRequest,
    MachineFacts,
    Policy,
    Usage,
    admit,
)
from sandkeeper.core.errors import (
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    SandkeeperError,
)
from sandkeeper.core.ids import SnapshotId
from sandkeeper.core.lifecycle import step
from sandkeeper.core.moves import Move
from sandkeeper.core.record import Phase, SnapshotRecord
from sandkeeper.core.sizes import Size, parse_size
from tests.unit.core.samples import STAMP, event, record

BASE = CatalogueImage(name="base", image_id="sha256:base", user="user", workdir="/home/user")
CATALOGUE = {
    "base": BASE,
    "slim": CatalogueImage(name="slim", image_id="sha256:slim"),
    "build": CatalogueImage(name="build", image_id="sha256:build"),
}


def admitted(policy: Policy | None = None, usage: Usage | None = None, **wishes: Any) -> Any:
    snapshot = wishes.pop("found", None)
    return admit(
        CreateRequest(request_id="r1", **wishes),
        policy=policy or Policy(),
        machine=MachineFacts(cpu_count=2, memory_bytes=4 * 1024**3),
        usage=usage or Usage(0, 0),
        catalogue=CATALOGUE,
        snapshot=snapshot,
        snapshot_image="base" if snapshot else None,
    )


def taken() -> SnapshotRecord:
    from sandkeeper.core import events as ev

    move = step(record(Phase.SNAPSHOTTING), event(ev.SnapshotCommitted), STAMP)
    assert isinstance(move, Move)
    assert move.snapshot is not None
    return move.snapshot


def test_the_defaults() -> None:
    spec = admitted()
    assert (spec.image, spec.size.name) == ("base", "basic")
    assert (spec.user, spec.workdir) == ("user", "/home/user")
    assert spec.boot.image_id == spec.boot.base_digest == "sha256:base"


def test_a_snapshot_brings_its_own_image() -> None:
    spec = admitted(snapshot="sn1", found=taken())
    assert spec.boot.snapshot_id == "sn1"
    assert spec.image == "base"


@pytest.mark.parametrize(
    ("wishes", "kind", "code"),
    [
        ({"name": "sb0123456789abcdef"}, InvalidArgument, "name_is_id"),
        ({"image": "ubuntu"}, PermissionDenied, "image_not_allowed"),
        ({"snapshot": "sn404"}, NotFound, "snapshot_not_found"),
        ({"size": parse_size("standard-4")}, InvalidArgument, "size_exceeds_machine"),
        ({"size": Size(name="custom", vcpu=9, memory_mib=512)}, PermissionDenied, "size_not_allowed"),
        ({"size": Size(name="custom", vcpu=1, memory_mib=9000)}, PermissionDenied, "size_not_allowed"),
        ({"size": Size(name="huge", vcpu=1, memory_mib=64)}, PermissionDenied, "size_not_allowed"),
        ({"size": Size(name="custom", vcpu=1, memory_mib=8000)}, InvalidArgument, "size_exceeds_machine"),
        ({"env": {"A": "x" * 32_000, "B": "x" * 32_000, "C": "x" * 32_000, "D": "x" * 32_000, "E": "x" * 32_000}},
         InvalidArgument, "env_too_large"),
    ],
)  # fmt: skip
def test_refusals(wishes: dict[str, Any], kind: type[SandkeeperError], code: str) -> None:
    with pytest.raises(kind) as caught:
        admitted(**wishes)
    assert caught.value.code == code
    assert caught.value.advice
    assert caught.value.admitted == "no"


def test_a_snapshot_restores_only_on_its_own_image() -> None:
    with pytest.raises(InvalidArgument) as caught:
        admitted(snapshot="sn1", image="slim", found=taken())
    assert caught.value.code == "snapshot_image_mismatch"


def test_a_snapshot_of_a_rebuilt_catalogue_image_is_refused() -> None:
    old = taken()
    other = old.model_copy(update={"boot": old.boot.model_copy(update={"base_digest": "sha256:older"})})
    with pytest.raises(InvalidArgument) as caught:
        admitted(snapshot="sn1", found=other)
    assert caught.value.code == "snapshot_image_mismatch"


def test_an_allowed_image_that_is_not_there() -> None:
    with pytest.raises(NotFound) as caught:
        admitted(policy=Policy(images=("base", "gone")), image="gone")
    assert caught.value.code == "image_not_present"


def test_lifetimes_are_bounded_where_policy_says_so() -> None:
    policy = Policy(max_lifetime_s=60)
    for lifetime_s in (None, 61):
        with pytest.raises(PermissionDenied) as caught:
            admitted(policy=policy, lifetime_s=lifetime_s)
        assert caught.value.code == "lifetime_not_allowed"
    assert admitted(policy=policy, lifetime_s=60).lifetime_s == 60


def test_quota_and_memory() -> None:
    with pytest.raises(ResourceExhausted) as caught:
        admitted(policy=Policy(max_sandboxes=3), usage=Usage(3, 0))
    assert caught.value.code == "quota_sandboxes"
    with pytest.raises(ResourceExhausted) as caught:
        admitted(usage=Usage(1, 4 * 4096 - 511))
    assert caught.value.code == "machine_memory_full"
    assert admitted(usage=Usage(1, 4 * 4096 - 512))


@pytest.mark.parametrize(
    "wishes",
    [
        {"env": {"1A": "x"}},
        {"env": {"A=B": "x"}},
        {"env": {"": "x"}},
        {"env": {"A": "nul\0"}},
        {"name": "Upper"},
        {"name": "-a"},
        {"name": "a" * 64},
        {"workdir": "relative"},
        {"user": "root; rm"},
        {"lifetime_s": 0},
        {"lifetime_s": float("nan")},
        {"lifetime_s": float("inf")},
        {"privileged": True},
        {"binds": ["/:/host"]},
        {"network": "host"},
        {"labels": {"ok": "x" * 257}},
    ],
)
def test_what_no_policy_could_allow_is_refused_before(wishes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CreateRequest(request_id="r1", **wishes)


def test_an_unknown_snapshot_wins_over_its_image() -> None:
    with pytest.raises(NotFound):
        admitted(snapshot=SnapshotId("sn0"), image="slim")
