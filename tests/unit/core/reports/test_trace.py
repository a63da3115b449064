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
        (b"PING\r\n", ["[PING]"]),
        (b"PONG\r\n", ["[PONG]"]),
        (b"+OK\r\n", ["[OK]"]),
        (b"INFO {}\r\n", ["[INFO {}]"]),
        (b"SUB a.* q 7\r\n", ["[SUB a.* q 7]"]),
        (b"UNSUB 7 3\r\n", ["[UNSUB 7 3]"]),
        (b"UNSUB 7\r\n", ["[UNSUB 7]"]),
        (b"PUB a 0\r\n\r\n", ["[PUB a 0]"]),
        (b"PUB a 2\r\nhi\r\n", ["[PUB a 2]", 'MSG_PAYLOAD: ["hi"]']),
        (
            b"PUB a r 2\r\nhi\r\nPUB a r 2\r\nho\r\n",
            ["[PUB a r 2]", 'MSG_PAYLOAD: ["hi"]', "[PUB a r 2]", 'MSG_PAYLOAD: ["ho"]'],
        ),
        (
            b"HPUB a 12 14\r\nNATS/1.0\r\n\r\nhi\r\n",
            ["[HPUB a 12 14]", r'MSG_PAYLOAD: ["NATS/1.0\r\n\r\nhi"]'],
        ),
        (b"PUB a 1\r\n\xff\r\n", ["[PUB a 1]", r'MSG_PAYLOAD: ["\\xff"]']),
        (b'PUB a 3\r\n\n\x1b"\r\n', ["[PUB a 3]", r'MSG_PAYLOAD: ["\n\u001b\""]']),
        (
            b"PUB a 300\r\n" + b"x" * 300 + b"\r\n",
            ["[PUB a 300]", f'MSG_PAYLOAD: ["{"x" * 256}..."]'],
        ),
        (b"SUB a\x1b[2J 1\r\n", [r"[SUB a\x1b[2J 1]"]),
        (b"FOO\r\n", ["[malformed Unknown Protocol Operation]"]),
        (
            b'CONNECT {"user":"me","pass":"s3cret","auth_token":"s3cret"}\r\n',
            ['[CONNECT {"user":"me","pass":"[REDACTED]","auth_token":"[REDACTED]"}]'],
        ),
        (b"CONNECT s3cret\r\n", ["[CONNECT [REDACTED]]"]),
        (b'CONNECT ["s3cret"]\r\n', ["[CONNECT [REDACTED]]"]),
    ],
)
def test_what_a_peer_says_is_shown_and_its_password_is_not(
    said: bytes, shown: list[str], log: pytest.LogCaptureFixture
) -> None:
    World().stranger().says(said)

    assert log.messages == [f"127.0.0.1:4000 - cid:1 - <<- {line}" for line in shown]


def test_what_a_peer_is_sent_is_shown_with_its_payloads(log: pytest.LogCaptureFixture) -> None:
    session = World().stranger().session

    trace.sent(session, [b"+OK\r\n-ERR 'no 'a''\r\nMSG a 1 0\r\n\r\n"])
    trace.sent(session, [b"MSG a 1 6\r\nhi\r\nPO\r\n", b"PONG\r\nHMSG a 1 12 12", b"\r\nNATS/1.0"])

    assert log.messages == [
        f"{session} - ->> {line}"
        for line in (
            "[OK]",
            "[-ERR no 'a']",
            "[MSG a 1 0]",
            "[MSG a 1 6]",
            r'MSG_PAYLOAD: ["hi\r\nPO"]',
            "[PONG]",
            "[HMSG a 1 12 12]",
            'MSG_PAYLOAD: ["NATS/1.0"]',
        )
    ]


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (b'"version":"1.2","lang":"python","name":"nm"', ' - "v1.2:python:nm"'),
        (b'"lang":"python"', ' - "python"'),
        (b'"version":"1.2","user":"u"', ' - "v1.2" - "$G/user:u"'),
        (b'"name":"a\\nb"', r' - "a\nb"'),
    ],
)
def test_a_peer_is_shown_with_what_it_says_of_itself(
    options: bytes, shown: str, log: pytest.LogCaptureFixture
) -> None:
    stranger = World().stranger()
    stranger.says(b"CONNECT {" + options + b"}\r\n")
    log.clear()

    stranger.says(b"PING\r\n")

    assert log.messages[0] == f"127.0.0.1:4000 - cid:1{shown} - <<- [PING]"


def test_nothing_is_shown_where_nobody_reads_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="penstock"):
        assert not trace.is_on()
        World().stranger().says(b"PING\r\n")

    assert caplog.messages == []
