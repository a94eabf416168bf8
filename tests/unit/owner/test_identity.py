"""Who an installation is: made once, and never made up again over a damaged file."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandkeeper.core.errors import DataLoss
from sandkeeper.owner.identity import load_identity
from sandkeeper.ports import real_ports


def test_it_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "machine.json"
    made = load_identity(path, ports=real_ports())
    assert load_identity(path, ports=real_ports()) == made
    assert str(made.machine_id) != str(made.installation_id)
    assert [entry.name for entry in path.parent.iterdir()] == ["machine.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"\xff", b'{"machine_id": "m1"}'])
def test_a_damaged_one_is_told_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "identity.json"
    path.write_bytes(content)
    with pytest.raises(DataLoss) as refusal:
        load_identity(path, ports=real_ports())
    assert refusal.value.code == "identity_damaged"
    assert path.read_bytes() == content


def test_a_draft_of_a_first_start_that_was_cut_is_no_identity(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.with_suffix(".new").write_text("{")
    made = load_identity(path, ports=real_ports())
    assert load_identity(path, ports=real_ports()) == made
