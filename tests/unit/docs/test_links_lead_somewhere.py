"""Links between the pages lead to files that are there; the example in the README compiles."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[\w-]+)?\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_example_compiles() -> None:
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert examples
    for example in examples:
        compile(example, "README.md", "exec")
