"""docs/state-machine.md is what the lifecycle table says now."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_is_what_the_table_says() -> None:
    spec = importlib.util.spec_from_file_location(
        "make_state_machine", ROOT / "docs" / "make_state_machine.py"
    )
    assert spec is not None
    assert spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    fresh = maker.page()
    assert (ROOT / "docs" / "state-machine.md").read_text() == fresh, "run python docs/make_state_machine.py"
    assert "| never |" not in fresh, "a row of the table that no record reaches"
