"""docs/errors.md names every category and code the source can raise, and none it cannot."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from sandkeeper.boxd.errors import refusal
from sandkeeper.core.errors import CATEGORIES

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "controller" / "sandkeeper"
BOXD = ROOT / "sandbox_images" / "boxd"
CODE = re.compile(r"[a-z][a-z0-9_]+")
TAKES_CODE_FIRST = {"Refusal", "_denied"}
"""Makers of errors whose first argument is the code."""
NAMES_OF_CODES = {"code", "codes", "default_code", "not_json_code", "too_large_code"}


@cache
def nodes() -> tuple[tuple[str, ast.AST], ...]:
    """Return the calls and assignments of the package, each with its file."""
    return tuple(
        (str(path.relative_to(ROOT)), node)
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call | ast.Assign | ast.AnnAssign)
    )


def codes_of_package() -> dict[str, str]:
    """Return every code in the Python source, with a file it is in."""
    return {code: file for file, node in nodes() for code in _codes(node)}


def codes_of_boxd() -> dict[str, str]:
    """Return every code of ours in boxd's refusals, with a file it is in."""
    found: dict[str, str] = {}
    for path in sorted(BOXD.glob("*.go")):
        if not path.name.endswith("_test.go"):
            for code in re.findall(r'faultf\("\w+", "(\w+)"', path.read_text()):
                found[code] = str(path.relative_to(ROOT))
    return found


def documented() -> set[str]:
    page = (ROOT / "docs" / "errors.md").read_text()
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", page, flags=re.MULTILINE)
    return {code for row in rows for code in re.findall(r"`([a-z]\w*)`", row)}


def test_every_code_is_documented() -> None:
    missing = {**codes_of_package(), **codes_of_boxd()}
    for code in documented():
        missing.pop(code, None)
    assert not missing, f"add to docs/errors.md: {missing}"


def test_no_documented_code_is_dead() -> None:
    assert sorted(documented() - codes_of_package().keys() - codes_of_boxd().keys()) == []


def test_each_code_has_its_categories() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| ([A-Z]\w+(?:, [A-Z]\w+)*) \|", page, flags=re.MULTILINE)
    told = {code: kinds.split(", ") for codes, kinds in rows for code in re.findall(r"`(\w+)`", codes)}
    wrong = {
        f"{code} is {kind}, the page says {told[code]}"
        for code, kind in (*_raised_in_package(), *_refused_by_boxd())
        if code in told and kind not in told[code]
    }
    assert not wrong


def test_every_category_is_documented() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    assert [name for name in CATEGORIES if f"| `{name}` |" not in page] == []


def _raised_in_package() -> Iterator[tuple[str, str]]:
    """Yield code and category wherever an error is made with a code in plain sight."""
    for _, node in nodes():
        if isinstance(node, ast.Call):
            kind = ast.unparse(node.func).rpartition(".")[2]
            if kind in CATEGORIES:
                yield from ((code, kind) for code in _codes(node))


def _refused_by_boxd() -> Iterator[tuple[str, str]]:
    for path in BOXD.glob("*.go"):
        for word, code in re.findall(r'faultf\("(\w+)", "(\w+)"', path.read_text()):
            document = {"code": word, "sandkeeper": {"code": code}}
            yield code, refusal(document, step="any").category


def _codes(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Call():
            for keyword in node.keywords:
                if keyword.arg == "code" or (keyword.arg or "").endswith("_code"):
                    yield from _texts(keyword.value)
            if isinstance(node.func, ast.Name) and node.func.id in TAKES_CODE_FIRST and node.args:
                yield from _texts(node.args[0])
        case ast.Assign():
            for target in node.targets:
                yield from _assigned(target, node.value)
        case ast.AnnAssign(value=ast.expr() as value):
            yield from _assigned(node.target, value)
        case _:
            return


def _assigned(target: ast.expr, value: ast.expr) -> Iterator[str]:
    """Yield the codes of `code = ...`, `codes = {...}` and `code, message = ..., ...`."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, its in zip(target.elts, value.elts, strict=True):
            yield from _assigned(one, its)
    elif isinstance(target, ast.Name) and target.id in NAMES_OF_CODES:
        yield from _texts(value)


def _texts(value: ast.expr) -> Iterator[str]:
    """Yield the constants a value may be: itself, the ends of a choice, the values of a mapping."""
    match value:
        case ast.Constant(value=str(text)) if CODE.fullmatch(text):
            yield text
        case ast.IfExp():
            yield from (*_texts(value.body), *_texts(value.orelse))
        case ast.BoolOp():
            for part in value.values:
                yield from _texts(part)
        case ast.Dict():
            for part in value.values:
                yield from _texts(part)
        case _:
            return
