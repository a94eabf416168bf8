"""Every test that docs/crash-recovery.md calls a proof is there under that name."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


def test_every_proof_exists() -> None:
    named = NAMED.findall((ROOT / "docs" / "crash-recovery.md").read_text())
    assert named
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not re.search(rf"^(async )?def {name}\(", _text(ROOT / "tests" / file), flags=re.MULTILINE)
    ]
    assert not missing


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
