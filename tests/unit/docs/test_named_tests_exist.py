"""Every test that a page calls a proof is there under that name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


@pytest.mark.parametrize("page", ["crash-recovery.md", "cases.md"])
def test_every_proof_exists(page: str) -> None:
    named = NAMED.findall((ROOT / "docs" / page).read_text())
    assert named
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not re.search(rf"^(async )?def {name}\(", _text(ROOT / "tests" / file), flags=re.MULTILINE)
    ]
    assert not missing


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
