"""The protocol lines that a trace shows."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from tests.unit.core.peers import World

from penstock.core.reports import trace


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(trace.TRACE, logger="penstock"):
        yield caplog


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (b"PING\r\n", "PING"),
        (b"PONG\r\n", "PONG"),
        (b"+OK\r\n", "OK"),
        (b"INFO {}\r\n", "INFO {}"),
        (b"SUB a.* q 7\r\n", "SUB a.* q 7"),
        (b"UNSUB 7 3\r\n", "UNSUB 7 3"),
        (b"UNSUB 7\r\n", "UNSUB 7"),
        (b"PUB a 2\r\nhi\r\n", "PUB a 2 hi"),
        (b"PUB a r 2\r\nhi\r\nPUB a r 2\r\nho\r\n", "PUB a r 2 x 2 hi"),
        (b"HPUB a 12 14\r\nNATS/1.0\r\n\r\nhi\r\n", "HPUB a 14 NATS/1.0\r\n\r\nhi"),
        (b"PUB a 1\r\n\xff\r\n", r"PUB a 1 \xff"),
        (b"PUB a 300\r\n" + b"x" * 300 + b"\r\n", "PUB a 300 " + "x" * 256),
        (b"FOO\r\n", "malformed Unknown Protocol Operation"),
        (b'CONNECT {"user":"me","pass":"s3cret"}\r\n', "CONNECT"),
    ],
)
def test_what_a_peer_says_is_shown_and_its_password_is_not(
    said: bytes, shown: str, log: pytest.LogCaptureFixture
) -> None:
    World().stranger().says(said)

    assert log.messages == [f"< 127.0.0.1:4000 - cid:1 - {shown}"]


def test_what_a_peer_is_sent_is_shown_line_by_line(log: pytest.LogCaptureFixture) -> None:
    session = World().stranger().session

    trace.sent(session, [b"MSG a 1 2\r\nhi\r\n", b"PONG\r\n"])

    assert log.messages == [f"> {session} - {line}" for line in ("MSG a 1 2", "hi", "PONG")]


def test_nothing_is_shown_where_nobody_reads_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="penstock"):
        assert not trace.is_on()
        World().stranger().says(b"PING\r\n")

    assert caplog.messages == []
