"""A patch carries every change of texts exactly, and names what it cannot carry."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandkeeper.boxd.file_search import ManifestEntry
from sandkeeper.client.diff import Change, Contents, Diff, compare

Tree = dict[str, bytes]
NAMES = st.sampled_from(["a", "b c", "d/e", 'quo"te', "umläut", "tab\there"])
LINES = st.text(st.sampled_from("xy\n\r\f\u2028é"), max_size=40).map(str.encode)


def entry(path: str, content: bytes | None, *, mode: int = 0o644, link: str | None = None) -> ManifestEntry:
    kind = "folder" if content is None else "file" if link is None else "symlink"
    return ManifestEntry(
        path=path,
        type=kind,
        mode=mode,
        uid=0,
        gid=0,
        size_bytes=len(content or b""),
        mtime_ns=0,
        link=link,
        xattrs=(),
        sha256=None if content is None else hashlib.sha256(content).hexdigest(),
    )


def diff_of(before: Tree, after: Tree) -> Diff:
    changes = compare(
        {path: entry(path, content) for path, content in before.items()},
        {path: entry(path, content) for path, content in after.items()},
    )
    contents = {
        change.path: Contents(before.get(change.path[1:]), after.get(change.path[1:])) for change in changes
    }
    return Diff(since="sn1", changes=changes, contents=contents)


@pytest.mark.skipif(shutil.which("git") is None, reason="git applies the patches")
@given(before=st.dictionaries(NAMES, LINES), after=st.dictionaries(NAMES, LINES))
@settings(max_examples=40, deadline=None)
def test_a_patch_makes_one_tree_of_the_other(before: Tree, after: Tree) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for path, content in before.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)
        if patch := diff_of(before, after).patch():
            command = ["git", "apply", "--whitespace=nowarn", "-"]
            done = subprocess.run(command, input=patch.encode(), cwd=root, capture_output=True, check=False)
            assert done.returncode == 0, done.stderr
        found = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        assert found == after


def test_changes_have_kinds_and_what_is_the_runtimes_own_is_none() -> None:
    before = {
        "same": entry("same", b"1"),
        "edited": entry("edited", b"1"),
        "mode": entry("mode", b"1"),
        "gone": entry("gone", None),
        "etc/hostname": entry("etc/hostname", b"one"),
    }
    after = {
        "same": entry("same", b"1"),
        "edited": entry("edited", b"2"),
        "mode": entry("mode", b"1", mode=0o755),
        "new": entry("new", b""),
        "etc/hostname": entry("etc/hostname", b"two"),
    }
    kinds = {change.path: change.kind for change in compare(before, after)}
    assert kinds == {"/edited": "modified", "/gone": "removed", "/mode": "metadata", "/new": "added"}


def test_what_a_patch_cannot_carry_is_named() -> None:
    binary = diff_of({"x": b"\0one"}, {"x": b"\0two"})
    assert binary.patch() == "diff --git a/x b/x\nBinary files a/x and b/x differ\n"
    large = Diff("sn1", (Change("/y", "added", None, entry("y", b"z")),), {})
    assert "Binary files /dev/null and b/y differ" in large.patch()


def test_a_file_that_became_a_link_is_removed_and_added() -> None:
    changes = compare({"x": entry("x", b"text\n")}, {"x": entry("x", b"", link="y")})
    patch = Diff("sn1", changes, {"/x": Contents(b"text\n", b"y")}).patch()
    assert "deleted file mode 100644\n" in patch
    assert "new file mode 120000\n" in patch
    assert patch.endswith("+y\n\\ No newline at end of file\n")
