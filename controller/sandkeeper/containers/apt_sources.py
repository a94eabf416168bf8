"""The machine's own package sources, for making a root image from them.

Owns reading `sources.list` and deb822 files and choosing the distribution's own entries. The repository of this
project names no mirror; what is used is what the machine uses. Credentials never get into an image.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

APT_FOLDER = Path("/etc/apt")


@dataclass(frozen=True, slots=True)
class AptSource:
    """One binary package source.

    Attributes:
        uri: The mirror, without credentials.
        suite: Such as `bookworm` or `bookworm-updates`.
        components: Such as `main`.
    """

    uri: str
    suite: str
    components: tuple[str, ...]

    @property
    def line(self) -> str:
        """The one-line form of sources.list."""
        return f"deb {self.uri} {self.suite} {' '.join(self.components)}"


def read_sources(folder: Path = APT_FOLDER) -> list[AptSource]:
    """Return all enabled binary sources of the machine, in apt's order."""
    sources: list[AptSource] = []
    one_line_files = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*.list"))]
    for path in one_line_files:
        if path.is_file():
            sources += parse_one_line(path.read_text())
    for path in sorted((folder / "sources.list.d").glob("*.sources")):
        sources += parse_deb822(path.read_text())
    return sources


def sources_of_distribution(sources: Iterable[AptSource], *, codename: str) -> list[AptSource]:
    """Return the distribution's own sources: over HTTP, suite `codename` or `codename-*`, with `main`.

    Third parties' repositories have suites of other names, or no `main`; they are left out, so that an image does
    not depend on what else the machine has.
    """
    chosen: dict[tuple[str, str], AptSource] = {}
    for source in sources:
        is_own_suite = source.suite == codename or source.suite.startswith(f"{codename}-")
        is_web = source.uri.startswith(("http://", "https://"))
        if is_own_suite and is_web and "main" in source.components:
            chosen.setdefault((source.uri, source.suite), source)
    return sorted(chosen.values(), key=lambda source: source.suite)


def parse_one_line(text: str) -> list[AptSource]:
    """Return the `deb` entries of a sources.list; options in brackets are dropped."""
    sources = []
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if not words or words[0] != "deb":
            continue
        rest = words[1:]
        if rest and rest[0].startswith("["):
            end = next((index for index, word in enumerate(rest) if word.endswith("]")), len(rest) - 1)
            rest = rest[end + 1 :]
        if len(rest) >= 2:
            sources.append(
                AptSource(uri=_without_credentials(rest[0]), suite=rest[1], components=tuple(rest[2:]))
            )
    return sources


def parse_deb822(text: str) -> list[AptSource]:
    """Return the entries of a `.sources` file: one for each URI and suite."""
    sources = []
    for stanza in _stanzas(text):
        is_enabled = stanza.get("enabled", "yes").lower() not in ("no", "false", "0")
        if not is_enabled or "deb" not in stanza.get("types", "").split():
            continue
        components = tuple(stanza.get("components", "").split())
        sources += [
            AptSource(uri=_without_credentials(uri), suite=suite, components=components)
            for uri in stanza.get("uris", "").split()
            for suite in stanza.get("suites", "").split()
        ]
    return sources


def _stanzas(text: str) -> list[Mapping[str, str]]:
    stanzas: list[dict[str, str]] = [{}]
    field = ""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if not line.strip():
            stanzas.append({})
            field = ""
        elif line[0].isspace():
            if field:
                stanzas[-1][field] += " " + line.strip()
        else:
            name, _, value = line.partition(":")
            field = name.strip().lower()
            stanzas[-1][field] = value.strip()
    return [stanza for stanza in stanzas if stanza]


def _without_credentials(uri: str) -> str:
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")
