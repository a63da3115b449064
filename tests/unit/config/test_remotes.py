"""Remotes of a configuration: how they are written, and what is wrong with those that are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.config.file.loading import load
from penstock.config.jetstream import JetStreamConfig
from penstock.config.remotes import RemoteConfig, RemoteTls
from penstock.config.server import ServerConfig
from penstock.errors import ConfigError
from penstock.net.remotes import Remotes

URLS = ("nats://hub:4222",)


def read(tmp_path: Path, remotes: str, more: str = "") -> tuple[RemoteConfig, ...]:
    path = tmp_path / "server.conf"
    path.write_text(f"jetstream {{ store_dir: x, remotes: {remotes} {more} }}")
    jetstream = load(str(path), {}, ()).server.jetstream
    assert jetstream is not None
    return jetstream.remotes


def test_a_remote_is_read(tmp_path: Path) -> None:
    text = """[
        { name: hub, url: "nats://a:1", credentials: c, domain: d }
        { name: other, urls: ["nats://a:1", "nats://b:2"], user: u, pass: p
          tls { ca_file: ca, handshake_first: true } }
    ]"""

    first = RemoteConfig(name="hub", urls=("nats://a:1",), credentials="c", domain="d")
    tls = RemoteTls(ca_file="ca", handshake_first=True)
    urls = ("nats://a:1", "nats://b:2")
    second = RemoteConfig(name="other", urls=urls, user="u", password="p", tls=tls)
    assert (first, second) == read(tmp_path, text)
    assert ("$JS.hub.API", "$JS.d.API") == (first.api, first.api_there)
    assert "$JS.API" == second.api_there


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{ name: hub }", "expects a list of remotes"),
        ('[ { name: "a.b", urls: [x] } ]', "is not a valid remote name"),
        ("[ { name: API, urls: [x] } ]", "is not a valid remote name"),
        ("[ { urls: [x] } ]", "is not a valid remote name"),
        ("[ { name: hub } ]", "has no `urls`"),
        ("[ { name: hub, urls: [x], user: u, token: t } ]", "more than one of `user`, `token`"),
        ("[ { name: hub, urls: [x], password: t } ]", "a `password` without a `user`"),
        ("[ { name: hub, urls: [x], wrong: 1 } ]", "unknown field `wrong`"),
        ("[ { name: hub, urls: [x], tls { cert_file: c } } ]", "need each other"),
        ("[ { name: hub, urls: [x], tls { insecure: true } } ]", "a remote is always verified"),
        ("[ { name: hub, urls: [x] }, { name: hub, urls: [x] } ]", 'more than one "hub"'),
        ("[ { name: hub, urls: [x] } ], domain: hub", "is the `jetstream.domain`"),
        ("[ { name: hub, urls: [x], account: A } ]", 'the account "A", which has no JetStream'),
    ],
)
def test_a_wrong_one_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=r"server\.conf") as caught:
        read(tmp_path, text)
    assert problem in str(caught.value)


def test_a_secret_is_not_shown() -> None:
    assert "hidden" not in repr(RemoteConfig(name="hub", urls=URLS, user="u", password="hidden"))


def test_where_there_are_accounts_a_remote_needs_one(tmp_path: Path) -> None:
    remote = RemoteConfig(name="hub", urls=URLS)
    jetstream = JetStreamConfig(store_dir=str(tmp_path), remotes=(remote,))

    assert ServerConfig(jetstream=jetstream).jetstream is jetstream


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"nkey": "missing.nk"}, "missing.nk"),
        ({"tls": RemoteTls(ca_file="missing.pem")}, "there is no file missing.pem"),
    ],
)
def test_files_must_be_there_when_the_server_starts(settings: dict[str, Any], problem: str) -> None:
    config = RemoteConfig(name="hub", urls=URLS, **settings)
    with pytest.raises(ConfigError, match=r'`jetstream\.remotes`: "hub"') as caught:
        Remotes((config,), name="test", flush=lambda: None)
    assert problem in str(caught.value)
