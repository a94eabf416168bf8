"""docs/configuration.md and deploy/config.toml name every key, with the default the code has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from sandkeeper.core.admission import Policy
from sandkeeper.core.sizes import NAMED_SIZES
from sandkeeper.owner.config import Config, load_config

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "configuration.md").read_text()
CONFIG = Config(state_dir=Path("/nowhere"))


def shown(value: Any) -> str:
    return "none" if value is None else f"`{json.dumps(list(value) if isinstance(value, tuple) else value)}`"


def documented(page: str) -> dict[str, str]:
    return dict(re.findall(r"^\| `(\w+)` \| (none|`[^|]*`) \|", page, flags=re.MULTILINE))


@pytest.mark.parametrize(
    ("model", "part"),
    [(CONFIG, PAGE.partition("`[policy]`")[0]), (CONFIG.policy, PAGE.partition("`[policy]`")[2])],
    ids=["config", "policy"],
)
def test_the_page_has_every_key_and_its_default(model: BaseModel, part: str) -> None:
    names = [name for name in type(model).model_fields if name not in ("state_dir", "policy")]
    wanted = {name: shown(getattr(model, name)) for name in names}
    assert documented(part.partition("## ")[0]) == wanted


def test_the_sample_file_is_the_defaults(tmp_path: Path) -> None:
    sample = (ROOT / "deploy" / "config.toml").read_text()
    (tmp_path / "config.toml").write_text(sample)
    assert load_config(tmp_path) == Config(state_dir=tmp_path)
    for name in (*Config.model_fields, *Policy.model_fields):
        assert name == "state_dir" or re.search(rf"^(# )?\[?{name}\b", sample, flags=re.MULTILINE), name


def test_the_page_has_every_size() -> None:
    for size in NAMED_SIZES.values():
        row = rf"^\| `{size.name}`[^|]*\| {size.vcpu:g} \| {size.memory_mib} \| {size.pids} \|"
        assert re.search(row, PAGE, flags=re.MULTILINE), size.name
