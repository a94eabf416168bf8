"""What a credential looks like in a file: token shapes, and the configuration of tools that hold one.

Pure. Owns the patterns and which files are worth reading; a finding names a path and a kind, never a value.
Shapes are guesses: they miss secrets of no shape and find test data. A scan warns, it proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

SecretsMode = Literal["off", "quick", "warn", "scrub", "refuse"]
"""What a snapshot does about credentials: does not look; notes those in the configuration of tools only; notes
those in every changed file; empties tool files too; or is refused."""

MAX_FINDINGS = 200


class Finding(BaseModel):
    """A file that seems to hold a credential.

    Attributes:
        path: The file, as seen inside.
        kind: What it looks like, such as `github_token` or `netrc_password`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    kind: str


class SecretScan(BaseModel):
    """What the scan before a snapshot did, as its handle keeps it.

    Attributes:
        mode: The policy's `snapshot_secrets` at the time.
        findings: What was found, at most `MAX_FINDINGS`; what was scrubbed is among them.
        scrubbed: Tool files that were emptied before the freeze, in the source too.
        file_count: Files that were read.
        read_bytes: Bytes that were read.
        is_complete: False when a bound ended the scan, or a file could not be read.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: SecretsMode
    findings: tuple[Finding, ...] = ()
    scrubbed: tuple[str, ...] = ()
    file_count: int = 0
    read_bytes: int = 0
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class ToolFile:
    """Configuration of a tool that may hold a credential.

    Attributes:
        suffix: End of its path.
        kind: Kind of its findings.
        pattern: What shows that there is one.
        blank: What it is overwritten with.
    """

    suffix: str
    kind: str
    pattern: re.Pattern[bytes]
    blank: bytes = b""


_USERINFO = re.compile(rb"://[^/\s:@]+:[^/\s@]+@")
TOOL_FILES = (
    ToolFile("/.netrc", "netrc_password", re.compile(rb"\bpassword\s+\S")),
    ToolFile("/.aws/credentials", "aws_credentials", re.compile(rb"aws_secret_access_key\s*=\s*\S")),
    ToolFile(
        "/.docker/config.json",
        "docker_login",
        re.compile(rb'"(?:auth|identitytoken|registrytoken|password)"\s*:\s*"[^"]'),
        blank=b"{}\n",
    ),
    ToolFile("/.npmrc", "npm_login", re.compile(rb"_(?:authToken|auth|password)\s*=\s*\S")),
    ToolFile("/pip.conf", "pip_login", _USERINFO),
    ToolFile("/.pypirc", "pypi_login", re.compile(rb"(?m)^\s*password\s*[:=]\s*\S")),
    ToolFile("/.git-credentials", "git_login", _USERINFO),
    ToolFile("/gh/hosts.yml", "github_login", re.compile(rb"oauth_token\s*:\s*\S")),
    ToolFile(
        "/.kube/config", "kube_login", re.compile(rb"(?m)^\s*(?:token|password|client-key-data)\s*:\s*\S")
    ),
    ToolFile(
        "/application_default_credentials.json", "gcloud_login", re.compile(rb'"refresh_token"\s*:\s*"[^"]')
    ),
)

ALWAYS_READ = (
    *(
        f"{home}{end}"
        for home in ("/root", "/home/user")
        for end in (
            "/.netrc",
            "/.aws/credentials",
            "/.docker/config.json",
            "/.npmrc",
            "/.config/pip/pip.conf",
            "/.pip/pip.conf",
            "/.pypirc",
            "/.git-credentials",
            "/.config/gh/hosts.yml",
            "/.kube/config",
        )
    ),
    "/etc/pip.conf",
)
"""Read whether they have changed or not: an earlier snapshot may have brought them."""

TOKEN_SHAPES: dict[str, re.Pattern[bytes]] = {
    "aws_access_key": re.compile(rb"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "aws_secret_key": re.compile(rb"(?i)aws_secret_access_key[\"']?\s*[:=]\s*[\"']?[A-Za-z0-9/+]{40}\b"),
    "github_token": re.compile(rb"\b(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255})\b"),
    "gitlab_token": re.compile(rb"\bglpat-[A-Za-z0-9_-]{20,}"),
    "google_api_key": re.compile(rb"\bAIza[0-9A-Za-z_-]{35}\b"),
    "jwt": re.compile(rb"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{16,}"),
    "model_api_key": re.compile(rb"\bsk-(?:ant-|proj-)[A-Za-z0-9_-]{20,}"),
    "npm_token": re.compile(rb"\bnpm_[A-Za-z0-9]{36}\b"),
    "private_key": re.compile(
        rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----\s+[A-Za-z0-9+/=:,\s-]{40}"
    ),
    "pypi_token": re.compile(rb"\bpypi-AgEI[A-Za-z0-9_-]{40,}"),
    "slack_token": re.compile(rb"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
    "stripe_key": re.compile(rb"\b[rs]k_live_[A-Za-z0-9]{20,}"),
}

_NEEDLES: dict[str, tuple[bytes, ...]] = {
    "aws_access_key": (b"AKIA", b"ASIA"),
    "aws_secret_key": (b"aws_secret_access_key",),
    "github_token": (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_"),
    "gitlab_token": (b"glpat-",),
    "google_api_key": (b"AIza",),
    "jwt": (b"eyJ",),
    "model_api_key": (b"sk-ant-", b"sk-proj-"),
    "npm_token": (b"npm_",),
    "private_key": (b"-----BEGIN ",),
    "pypi_token": (b"pypi-AgEI",),
    "slack_token": (b"xox",),
    "stripe_key": (b"sk_live_", b"rk_live_"),
}
"""What a file holds if it holds the shape: a plain search is many times as fast as an expression."""
_ANY_CASE = frozenset({"aws_secret_key"})

_UNREAD_PREFIXES = ("/proc/", "/sys/", "/dev/", "/run/sandkeeper/", "/.sandkeeper")
_UNREAD_SUFFIXES = (
    ".so", ".a", ".o", ".pyc", ".whl", ".deb", ".jar", ".gz", ".xz", ".zst", ".zip", ".tar", ".png", ".jpg",
    ".gif", ".woff2", ".mp4",
)  # fmt: skip
_TOOL_SUFFIXES = tuple(tool.suffix for tool in TOOL_FILES)


def tool_of(path: str) -> ToolFile | None:
    """Return the tool whose configuration the path is, if it is one's."""
    return next((tool for tool in TOOL_FILES if path.endswith(tool.suffix)), None)


def worth_reading(paths: Iterable[str]) -> list[str]:
    """Return the changed paths to read, those of tools first; what cannot hold text is left out."""
    kept = [
        path
        for path in paths
        if not path.startswith(_UNREAD_PREFIXES) and not path.endswith(_UNREAD_SUFFIXES)
    ]
    return sorted(kept, key=lambda path: (not path.endswith(_TOOL_SUFFIXES), path))


def findings_in(path: str, content: bytes) -> tuple[Finding, ...]:
    """Return what a file's content looks like, each kind once."""
    tool = tool_of(path)
    kinds = [tool.kind] if tool is not None and tool.pattern.search(content) else []
    kinds += [
        kind for kind, shape in TOKEN_SHAPES.items() if _may_hold(content, kind) and shape.search(content)
    ]
    return tuple(Finding(path=path, kind=kind) for kind in kinds)


def _may_hold(content: bytes, kind: str) -> bool:
    searched = content.lower() if kind in _ANY_CASE else content
    return any(needle in searched for needle in _NEEDLES[kind])
