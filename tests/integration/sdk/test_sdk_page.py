"""The examples of docs/sdk.md do what the page says."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re

import pytest

from sandkeeper import Sandbox
from tests.support.yard import ROOT

pytestmark = pytest.mark.docker

EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "sdk.md").read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
async def test_an_example_runs(sandbox: Sandbox, number: int) -> None:
    assert len(EXAMPLES) == 3
    names = {"sandbox": sandbox, "asyncio": asyncio}
    code = compile(EXAMPLES[number], "docs/sdk.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    running = eval(code, names)
    assert inspect.iscoroutine(running)
    await running
