"""Reading the machine's package sources, and which of them make an image."""

from __future__ import annotations

from pathlib import Path

from sandkeeper.containers.apt_sources import (
    AptSource,
    parse_deb822,
    parse_one_line,
    read_sources,
    sources_of_distribution,
)

DEB822 = """\
# a comment
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
  contrib
Signed-By: /usr/share/keyrings/some.gpg

Enabled: no
Types: deb
URIs: http://other.example/debian
Suites: bookworm
Components: main

Types: deb-src
URIs: http://third.example/debian
Suites: bookworm
Components: main
"""


def test_deb822_gives_one_source_for_each_uri_and_suite() -> None:
    assert parse_deb822(DEB822) == [
        AptSource(uri="http://mirror.example/debian", suite="bookworm", components=("main", "contrib")),
        AptSource(
            uri="http://mirror.example/debian", suite="bookworm-updates", components=("main", "contrib")
        ),
    ]


def test_one_line_form_without_options_comments_and_sources() -> None:
    text = """\
deb [arch=amd64 signed-by=/a/key] http://mirror.example/debian bookworm main # the mirror
# deb http://off.example/debian bookworm main
deb-src http://mirror.example/debian bookworm main
deb http://short.example
"""
    assert [source.line for source in parse_one_line(text)] == [
        "deb http://mirror.example/debian bookworm main"
    ]


def test_credentials_do_not_get_into_an_image() -> None:
    [source] = parse_one_line("deb https://me:secret@mirror.example:8443/debian/ bookworm main")
    assert source.uri == "https://mirror.example:8443/debian"


def test_only_the_distributions_own_sources_make_an_image() -> None:
    own = AptSource(uri="http://a.example/debian", suite="bookworm", components=("main",))
    security = AptSource(uri="http://a.example/security", suite="bookworm-security", components=("main",))
    others = [
        AptSource(uri="http://b.example/tool", suite="nodistro", components=("main",)),
        AptSource(uri="http://c.example/tool", suite="bookworm", components=("stable",)),
        AptSource(uri="http://d.example/debian", suite="trixie", components=("main",)),
        AptSource(uri="file:///srv/debian", suite="bookworm", components=("main",)),
    ]
    assert sources_of_distribution([security, *others, own, own], codename="bookworm") == [own, security]


def test_all_files_of_the_folder_are_read(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text("deb http://one.example/debian bookworm main\n")
    (tmp_path / "sources.list.d" / "two.list").write_text("deb http://two.example/debian bookworm main\n")
    (tmp_path / "sources.list.d" / "three.sources").write_text(DEB822)
    (tmp_path / "sources.list.d" / "four.sources.disabled").write_text(DEB822)
    hosts = [source.uri.split("/")[2] for source in read_sources(tmp_path)]
    assert hosts == ["one.example", "two.example", "mirror.example", "mirror.example"]
