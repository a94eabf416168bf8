"""Which members of an archive that a box chose may be unpacked on this machine, and as what.

Owns the rule; unpacks nothing. The rule is that of the standard library's `data` filter (PEP 706), written out
here because Python 3.11 has the filter only from its later releases on.
"""

from __future__ import annotations

import os
import stat
import tarfile
from pathlib import Path


class HostileMemberError(Exception):
    """A member would have left the folder, or is no file, folder or link."""


class OutwardLinkError(HostileMemberError):
    """A symbolic link that leads outside the folder: harmless to leave out, not to make."""


def admit_member(member: tarfile.TarInfo, *, folder: Path) -> tarfile.TarInfo:
    """Return the member as it may be unpacked into `folder`: ours, without set-id and write-for-others bits.

    Raises:
        OutwardLinkError: It is a symbolic link to what is outside: to be left out.
        HostileMemberError: It is absolute, leaves the folder (also through a link unpacked before), is a
            hard link to what is outside, or is a device or pipe.
    """
    root = os.path.realpath(folder)
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        raise HostileMemberError(f"{member.name!r} is a device or a pipe")
    if member.name.startswith("/"):
        raise HostileMemberError(f"{member.name!r} is absolute")
    place = os.path.realpath(os.path.join(root, member.name))
    # A link that is replaced may itself lead outside; what counts is the folder it lies in.
    holder = os.path.realpath(os.path.dirname(os.path.join(root, member.name.rstrip("/"))))
    is_root = member.isdir() and os.path.normpath(member.name) == "."
    if not _is_within(root, place) or not (is_root or _is_within(root, holder)):
        raise HostileMemberError(f"{member.name!r} leaves the folder")
    if member.issym() or member.islnk():
        _check_link(member, root=root, holder=holder)
    member.mode = _mode(member)
    member.uid, member.gid = os.geteuid(), os.getegid()
    member.uname = member.gname = ""
    return member


def _check_link(member: tarfile.TarInfo, *, root: str, holder: str) -> None:
    start = holder if member.issym() else root
    is_outward = os.path.isabs(member.linkname) or not _is_within(
        root, os.path.realpath(os.path.join(start, member.linkname))
    )
    if is_outward:
        kind = OutwardLinkError if member.issym() else HostileMemberError
        raise kind(f"{member.name!r} links to {member.linkname!r}, outside the folder")


def _is_within(root: str, place: str) -> bool:
    return os.path.commonpath((root, place)) == root


def _mode(member: tarfile.TarInfo) -> int:
    mode = stat.S_IMODE(member.mode) & 0o755
    return mode | (0o700 if member.isdir() else 0o600)
