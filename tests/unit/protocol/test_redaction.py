"""Secrets taken out of URLs and command lines."""

from __future__ import annotations

import pytest

from penstock.protocol.redaction import redact, redact_arguments

GONE = "[REDACTED]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nats://h:4222", "nats://h:4222"),
        ("nats://u:p@h:4222", f"nats://{GONE}@h:4222"),
        ("tls://token@h", f"tls://{GONE}@h"),
        ("nats://u:p@ss@h", f"nats://{GONE}@h"),
        ("nats://a:b@h1,nats://c:d@h2", f"nats://{GONE}@h1,nats://{GONE}@h2"),
        ("cannot reach `nats://u:p@h`: no", f"cannot reach `nats://{GONE}@h`: no"),
        ("https://h/x?mail=a@b", "https://h/x?mail=a@b"),
        ("mail me@home", "mail me@home"),
    ],
)
def test_a_url_shows_where_but_not_who(text: str, expected: str) -> None:
    assert expected == redact(text)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("serve -p 4222", "serve -p 4222"),
        ("serve --pass s3cret -p 1", f"serve --pass {GONE} -p 1"),
        ("serve --pass=s3cret", f"serve --pass={GONE}"),
        ("serve -pass s3cret", f"serve -pass {GONE}"),
        ("serve --auth s3cret", f"serve --auth {GONE}"),
        ("serve --user ann --pass s3cret", f"serve --user {GONE} --pass {GONE}"),
        ("serve --pass --pass -p 1", f"serve --pass {GONE} -p 1"),
        ("app --db-password x --API_TOKEN=y z", f"app --db-password {GONE} --API_TOKEN={GONE} z"),
        ("pub -s nats://u:p@h a b", f"pub -s nats://{GONE}@h a b"),
        ("pub --server=nats://u:p@h", f"pub --server=nats://{GONE}@h"),
        ("serve --pass", "serve --pass"),
    ],
)
def test_a_command_line_shows_no_secrets(line: str, expected: str) -> None:
    assert expected.split() == redact_arguments(line.split())
