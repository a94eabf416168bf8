"""The machine that the engine runs on, as far as set-up touches it.

Owns running host commands and reading a few facts (who we are, which distribution). It decides nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sandkeeper.core.errors import Aborted, FailedPrecondition

_TAIL_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Finished:
    """What a host command left behind.

    Attributes:
        exit_code: Its exit status.
        output: Standard output and error, interleaved.
    """

    exit_code: int
    output: str

    @property
    def tail(self) -> str:
        """The end of the output, short enough for a message."""
        return self.output.strip()[-_TAIL_CHARS:]


class Host(Protocol):
    """What set-up may ask of and do to the machine."""

    def is_root(self) -> bool:
        """Say whether we may change the machine."""
        ...

    def has_command(self, name: str) -> bool:
        """Say whether `name` is on PATH (the system folders included)."""
        ...

    def os_release(self) -> Mapping[str, str]:
        """Return the fields of os-release; empty where there is none."""
        ...

    def has_cgroups(self) -> bool:
        """Say whether a cgroup file system is mounted."""
        ...

    def has_systemd(self) -> bool:
        """Say whether systemd looks after the machine's services."""
        ...

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Finished:
        """Run a command to its end without a terminal and without standard input.

        Raises:
            FailedPrecondition: `command_missing`.
            Aborted: `command_timeout`: killed after `timeout_s`.
        """
        ...


class RealHost:
    """This machine."""

    def is_root(self) -> bool:
        return os.geteuid() == 0

    def has_command(self, name: str) -> bool:
        return shutil.which(name, path=_search_path()) is not None

    def os_release(self) -> Mapping[str, str]:
        for path in (Path("/etc/os-release"), Path("/usr/lib/os-release")):
            if path.is_file():
                return parse_os_release(path.read_text())
        return {}

    def has_cgroups(self) -> bool:
        return any(
            line.split()[2].startswith("cgroup") for line in Path("/proc/mounts").read_text().splitlines()
        )

    def has_systemd(self) -> bool:
        return Path("/run/systemd/system").is_dir()

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Finished:
        environment = os.environ | {
            "DEBIAN_FRONTEND": "noninteractive",
            "LC_ALL": "C",
            "PATH": _search_path(),
        }
        try:
            done = subprocess.run(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                timeout=timeout_s,
                check=False,
            )
        except FileNotFoundError as error:
            raise FailedPrecondition(f"{argv[0]} is not on this machine", code="command_missing") from error
        except subprocess.TimeoutExpired as error:
            raise Aborted(
                f"{' '.join(argv)} did not end within {timeout_s:.0f} s",
                code="command_timeout",
                admitted="yes",
            ) from error
        return Finished(exit_code=done.returncode, output=done.stdout.decode(errors="replace"))


def parse_os_release(text: str) -> dict[str, str]:
    """Return the fields of an os-release file, quotes removed."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, separator, value = line.strip().partition("=")
        if separator and not name.startswith("#"):
            fields[name] = value.strip("\"'")
    return fields


def is_debian_like(os_release: Mapping[str, str]) -> bool:
    """Say whether the distribution is Debian, Ubuntu or made from one of them."""
    family = {os_release.get("ID", ""), *os_release.get("ID_LIKE", "").split()}
    return bool(family & {"debian", "ubuntu"})


def _search_path() -> str:
    path = os.environ.get("PATH", "")
    return f"{path}:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"
