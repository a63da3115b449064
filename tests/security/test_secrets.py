"""Secrets stay where they are: in no page, no log, no error and no repr."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.servers import HOST, PENSTOCK, RawClient, ServerProcess

from penstock.bus.config.kafka import KafkaConfig
from penstock.bus.config.nats import NatsConfig
from penstock.client.connection.servers import Server, parse_url
from penstock.client.options import ClientOptions
from penstock.config.accounts import User
from penstock.config.remotes import RemoteConfig
from penstock.config.server import Authorization
from penstock.errors import ConfigError
from penstock.net.monitor import usage
from penstock.spark.options import ConnectionOptions

SECRET = "s3cr3t-0f-0urs"
URL = f"nats://ann:{SECRET}@127.0.0.1:4222"
PAGES = (
    "/",
    "/varz",
    "/connz?subs=detail&auth=1&state=all",
    "/subsz?subs=1",
    "/jsz?consumers=1&config=1",
    "/accountz?acc=$G",
    "/accstatz",
    "/debug/vars",
    "/stacksz",
    "/healthz",
    "/metrics",
)


@pytest.mark.parametrize(
    ("flags", "login"),
    [
        (("--user", "ann", "--pass", SECRET), {"user": "ann", "pass": SECRET}),
        (("--user=ann", f"--pass={SECRET}"), {"user": "ann", "pass": SECRET}),
        (("--auth", SECRET), {"auth_token": SECRET}),
        ((f"--auth={SECRET}",), {"auth_token": SECRET}),
    ],
    ids=["pass", "pass=", "auth", "auth="],
)
def test_no_page_and_no_log_shows_how_clients_log_in(
    flags: tuple[str, ...], login: dict[str, str]
) -> None:
    with ServerProcess(PENSTOCK, 'http: "127.0.0.1:-1"\njetstream {}', *flags, "-DV") as server:
        with RawClient(server.port) as client:
            client.connect(**login)
            with RawClient(server.port) as stranger:
                stranger.send(b'CONNECT {"user": "ann", "pass": "%b"}\r\n' % SECRET[:-1].encode())
                stranger.rest()
            for page in PAGES:
                address = f"http://{HOST}:{server.http_port}{page}"
                with urllib.request.urlopen(address, timeout=20) as answer:
                    assert SECRET not in answer.read().decode(), page
        assert SECRET not in server.log
        assert SECRET[:-1] not in server.log


def test_the_command_line_is_shown_without_secrets_to_the_system_account_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`/debug/vars` and `EXPVARZ` show the same."""
    monkeypatch.setattr(sys, "orig_argv", ["penstock", "serve", "--pass", SECRET, "-s", URL])

    assert ["penstock", "serve", "--pass"] == usage.variables()["cmdline"][:3]
    assert SECRET not in str(usage.variables())


@pytest.mark.parametrize(
    "made",
    [
        ClientOptions(servers=(URL,), user="ann", password=SECRET),
        ClientOptions(servers=(URL,), token=SECRET),
        ClientOptions(servers=(URL,), nkey_seed=SECRET),
        parse_url(URL),
        parse_url(f"nats://{SECRET}@h"),
        NatsConfig(urls=(URL,), user="ann", password=SECRET),
        NatsConfig(urls=(URL,), token=SECRET),
        KafkaConfig(protocol="sasl_ssl", user="ann", password=SECRET),
        User(name="ann", password=SECRET),
        Authorization(token=SECRET),
        Authorization(users=(User(name="ann", password=SECRET),)),
        RemoteConfig(name="hub", urls=(URL,), user="ann", password=SECRET),
        ConnectionOptions(user="ann", password=SECRET),
    ],
    ids=lambda made: type(made).__name__,
)
def test_no_repr_shows_a_secret(made: Any) -> None:
    assert SECRET not in repr(made)
    assert SECRET not in str(dataclasses.replace(made))


@pytest.mark.parametrize(
    "url", [f"{URL}:x", f"ftp://ann:{SECRET}@h", f"nats://ann:{SECRET}@", f"nats://{SECRET}@:5"]
)
def test_an_error_about_a_url_shows_no_password(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_url(url)

    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("command", [("pub", "a", "b"), ("stream", "ls"), ("bench", "pub", "a")])
def test_a_command_that_cannot_connect_shows_no_password(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    url = f"nats://ann:{SECRET}@127.0.0.1:9"
    ran = subprocess.run(
        [sys.executable, "-m", "penstock", *command, "--server", url],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        check=False,
    )

    assert ran.returncode != 0
    assert SECRET not in ran.stdout + ran.stderr


def test_every_setting_that_sounds_like_a_secret_is_declared_as_one() -> None:
    """A new setting named like one of these must not show in a `repr`."""
    secret = re.compile("password|token$|seed|^urls?$|^servers$")
    kinds = (
        Authorization,
        ClientOptions,
        ConnectionOptions,
        KafkaConfig,
        NatsConfig,
        RemoteConfig,
        Server,
        User,
    )
    shown = [
        f"{kind.__name__}.{field.name}"
        for kind in kinds
        for field in dataclasses.fields(kind)
        if secret.search(field.name) and field.repr
    ]

    assert [] == shown
