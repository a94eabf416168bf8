"""What a credential looks like, and that no finding can carry one."""

from __future__ import annotations

import pytest

from sandkeeper.core import findings
from sandkeeper.core.findings import findings_in, tool_of, worth_reading

# Put together here, so that no scanner takes this file for a leak.
SHAPES = {
    "aws_access_key": "AKIA" + "ABCDEFGHIJKLMNOP",
    "aws_secret_key": "aws_secret_access_key=" + "a1B2" * 10,
    "github_token": "ghp_" + "a1B2" * 9,
    "gitlab_token": "glpat-" + "a1B2" * 5,
    "google_api_key": "AIza" + "a1B2c" * 7,
    "jwt": "eyJ" + "hbGciOiJI" * 2 + ".eyJ" + "zdWIiOiIx" * 2 + "." + "s1gnature" * 3,
    "model_api_key": "sk-ant-" + "a1B2" * 8,
    "npm_token": "npm_" + "a1B2" * 9,
    "private_key": "-----BEGIN RSA " + "PRIVATE KEY-----\n" + "MIIE" * 16,
    "pypi_token": "pypi-" + "AgEI" + "a1B2" * 12,
    "slack_token": "xoxb-" + "1234567890-abc",
    "stripe_key": "sk_live_" + "a1B2" * 6,
}


@pytest.mark.parametrize(("kind", "text"), SHAPES.items())
def test_each_shape_is_found_by_its_kind_and_never_shown(kind: str, text: str) -> None:
    found = findings_in("/srv/notes.txt", f"before {text} after\n".encode())
    assert [finding.kind for finding in found] == [kind]
    assert text not in repr(found)


@pytest.mark.parametrize(
    ("path", "kind", "text"),
    [
        ("/root/.netrc", "netrc_password", "machine example login me password hunter2"),
        ("/home/user/.aws/credentials", "aws_credentials", "[default]\naws_secret_access_key = x"),
        ("/root/.docker/config.json", "docker_login", '{"auths": {"example": {"auth": "bWU6cHc="}}}'),
        ("/home/user/.npmrc", "npm_login", "//example/:_authToken=abc"),
        ("/etc/pip.conf", "pip_login", "[global]\nindex-url = https://me:pw@example/simple"),
        ("/root/.config/pip/pip.conf", "pip_login", "extra-index-url=https://me:pw@example/simple"),
        ("/root/.pypirc", "pypi_login", "[pypi]\nusername = me\npassword = x"),
        ("/root/.git-credentials", "git_login", "https://me:pw@example"),
        ("/root/.config/gh/hosts.yml", "github_login", "example:\n  oauth_token: x"),
        ("/root/.kube/config", "kube_login", "users:\n- user:\n    token: x"),
    ],
)
def test_tool_configuration_counts_when_it_holds_a_login(path: str, kind: str, text: str) -> None:
    assert kind in {finding.kind for finding in findings_in(path, text.encode())}
    assert findings_in(path, b"# nothing here\n") == ()


def test_ordinary_files_have_no_findings() -> None:
    text = b"def password(): ...\nhttps://example/a:b\nsk-learn\neyJ\nPRIVATE KEY\nghp_short\n"
    assert findings_in("/srv/main.py", text) == ()


def test_tool_files_are_read_first_and_what_holds_no_text_never() -> None:
    paths = ["/srv/b.txt", "/usr/lib/x.so", "/proc/1/environ", "/root/.netrc", "/.sandkeeper-metadata", "/a"]
    assert worth_reading(paths) == ["/root/.netrc", "/a", "/srv/b.txt"]


def test_what_a_scrub_leaves_is_a_file_its_tool_can_read() -> None:
    docker = tool_of("/root/.docker/config.json")
    assert docker is not None
    assert docker.blank == b"{}\n"
    assert tool_of("/srv/credentials.txt") is None


def test_every_shape_has_the_words_it_is_searched_by() -> None:
    assert findings._NEEDLES.keys() == findings.TOKEN_SHAPES.keys()
