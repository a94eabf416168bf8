"""What counts as the same tree, from tar streams made here."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator

import pytest

from sandkeeper.containers.tree_digest import TreeDigest, digest_of

Change = Callable[[tarfile.TarInfo], None]


def stream(
    *names: str, change: Change | None = None, body: bytes = b"text", piece: int = 700
) -> Iterator[bytes]:
    """Yield a tar of files, each changed by `change`, in pieces that fit no block."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(body), 1000, 0o644
            if change is not None:
                change(member)
            tar.addfile(member, io.BytesIO(body if member.isreg() else b""))
    whole = archive.getvalue()
    for start in range(0, len(whole), piece):
        yield whole[start : start + piece]


def digest(*names: str, change: Change | None = None, body: bytes = b"text") -> TreeDigest:
    return digest_of(stream(*names, change=change, body=body))


def test_the_order_of_entries_does_not_count() -> None:
    assert digest("a", "b/c") == digest("b/c", "a")
    assert digest("a", "b/c").entry_count == 2


def _set(**fields: object) -> Change:
    def change(member: tarfile.TarInfo) -> None:
        for name, value in fields.items():
            setattr(member, name, value)

    return change


@pytest.mark.parametrize(
    "change",
    [
        _set(mode=0o600),
        _set(uid=1000),
        _set(gid=1000),
        _set(mtime=1001),
        _set(type=tarfile.SYMTYPE, linkname="b", size=0),
        _set(type=tarfile.LNKTYPE, linkname="b", size=0),
        _set(type=tarfile.DIRTYPE, size=0),
        _set(pax_headers={"SCHILY.xattr.user.k": "v"}),
    ],
)
def test_every_property_counts(change: Change) -> None:
    assert digest("a", change=change) != digest("a")


def test_content_and_names_count_and_parts_of_a_second_do_not() -> None:
    assert digest("a", body=b"tex7") != digest("a")
    assert digest("a") != digest("b")
    assert digest("a", change=_set(mtime=1000.75)) == digest("a")


def test_what_the_engine_makes_anew_does_not_count() -> None:
    assert digest("a", "etc/hosts", ".dockerenv") == digest("a")
    assert digest("etc", change=_set(type=tarfile.DIRTYPE, size=0, mtime=1)) == digest(
        "etc", change=_set(type=tarfile.DIRTYPE, size=0, mtime=2)
    )


def test_a_cut_stream_is_no_tree() -> None:
    pieces = list(stream("a", body=b"x" * 5000))
    with pytest.raises(tarfile.TarError):
        digest_of(pieces[:3])
