"""Configuration: every bad value is a typed refusal that names its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sandkeeper.core.errors import InvalidArgument
from sandkeeper.core.ids import OwnerId
from sandkeeper.owner.config import Config, default_state_dir, load_config


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    config = load_config(tmp_path)
    assert (config.owners, config.sandboxes_per_owner, config.idle_exit_s) == (2, 64, None)
    assert config.keep_answers_s == config.keep_events_s == 7 * 86_400
    assert config.state_dir == tmp_path


def test_the_file_is_read_and_arguments_go_over_it(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('owners = 3\naudit_s = 2.5\n[policy]\nimages = ["base"]\n')
    config = load_config(tmp_path, owners=4)
    assert (config.owners, config.audit_s, config.policy.images) == (4, 2.5, ("base",))


def test_the_file_cannot_move_the_state_folder(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('state_dir = "/elsewhere"\n')
    assert load_config(tmp_path).state_dir == tmp_path


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"owners": 0}, "owners"),
        ({"owners": 65}, "owners"),
        ({"owners": "two"}, "owners"),
        ({"owners": 1.5}, "owners"),
        ({"owners": None}, "owners"),
        ({"sandboxes_per_owner": 0}, "sandboxes_per_owner"),
        ({"audit_s": 0}, "audit_s"),
        ({"audit_s": -1}, "audit_s"),
        ({"audit_s": float("nan")}, "audit_s"),
        ({"audit_s": float("inf")}, "audit_s"),
        ({"tend_s": 0}, "tend_s"),
        ({"reap_every_s": 0}, "reap_every_s"),
        ({"reap_after_s": -1}, "reap_after_s"),
        ({"reap_after_s": float("nan")}, "reap_after_s"),
        ({"keep_answers_s": 59}, "keep_answers_s"),
        ({"keep_events_s": 0}, "keep_events_s"),
        ({"idle_exit_s": 0}, "idle_exit_s"),
        ({"engine": 1}, "engine"),
        ({"images": ["base"]}, "images"),
        ({"images": {"base": 1}}, "images.base"),
        ({"policy": {"images": 1}}, "policy.images"),
        ({"policy": {"no_such_rule": 1}}, "policy.no_such_rule"),
        ({"no_such_key": 1}, "no_such_key"),
    ],
)
def test_a_bad_value_is_named(tmp_path: Path, wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        load_config(tmp_path, **wrong)
    assert (refusal.value.code, refusal.value.details) == ("config_invalid", {"field": field})
    assert field in refusal.value.message


@pytest.mark.parametrize(
    "content", [b"owners = ", b"\xff\xfe\x00", b"owners = 2\nowners = 3\n"], ids=["cut", "bytes", "twice"]
)
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.toml").write_bytes(content)
    with pytest.raises(InvalidArgument) as refusal:
        load_config(tmp_path)
    assert refusal.value.code == "config_invalid"
    assert "config.toml" in refusal.value.message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(InvalidArgument) as refusal:
        load_config(tmp_path)
    assert "config.toml" in refusal.value.message


def test_a_configuration_crosses_processes_unchanged(tmp_path: Path) -> None:
    config = load_config(tmp_path, sandboxes_per_owner=1, idle_exit_s=600)
    assert Config.model_validate_json(config.model_dump_json()) == config


def test_the_layout_of_the_state_folder(tmp_path: Path) -> None:
    paths = load_config(tmp_path).paths
    owner = paths.owner(OwnerId("ow1"))
    assert [path.relative_to(tmp_path).as_posix() for path in (paths.directory_socket, owner.journal)] == [
        "directory.sock",
        "owners/ow1/owner.db",
    ]


def test_the_default_folder_is_named_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SANDKEEPER_STATE_DIR", str(tmp_path))
    assert default_state_dir() == tmp_path
    assert load_config().state_dir == tmp_path
