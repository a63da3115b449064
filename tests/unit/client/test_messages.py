"""What is read out of ack subjects, statuses and headers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from penstock.client.jetstream import api
from penstock.client.jetstream.status import NextStep, read_status, unfilled
from penstock.client.messages import Headers, Metadata, encode_headers, parse_metadata, status_of
from penstock.errors import ClientError, JetStreamError, NoResponders
from penstock.hot.wire import MSG, Op


def status(line: str, headers: str = "") -> Op:
    block = f"NATS/1.0 {line}\r\n{headers}\r\n".encode()
    return (MSG, b"inbox", b"1", b"", len(block), block)


def test_an_ack_subject_has_nine_tokens() -> None:
    reply = b"$JS.ACK.S.C.2.10.20.1700000000000000000.30"

    assert Metadata("S", "C", 2, 10, 20, 1_700_000_000_000_000_000, 30) == parse_metadata(reply)


@pytest.mark.parametrize(("token", "domain"), [("_", ""), ("hub", "hub")])
@pytest.mark.parametrize("random", ["", ".x7Zq"])
def test_an_ack_subject_may_have_domain_and_account(token: str, domain: str, random: str) -> None:
    reply = f"$JS.ACK.{token}.hash.S.C.2.10.20.17.30{random}".encode()

    assert Metadata("S", "C", 2, 10, 20, 17, 30, domain) == parse_metadata(reply)


@pytest.mark.parametrize("reply", [b"", b"_INBOX.x", b"$JS.ACK.S.C", b"$JS.ACK.a.b.c.d.e.f.g.h"])
def test_any_other_reply_subject_is_no_metadata(reply: bytes) -> None:
    with pytest.raises(ClientError, match="not a JetStream message"):
        parse_metadata(reply)


def test_a_message_with_a_payload_has_no_status() -> None:
    block = b"NATS/1.0 503\r\n\r\n"

    assert (0, "") == status_of((MSG, b"s", b"1", b"", len(block), block + b"x"))


@pytest.mark.parametrize(
    ("headers", "block"),
    [
        ({"a": "1"}, b"NATS/1.0\r\na: 1\r\n\r\n"),
        ({"a": ["1", "2"]}, b"NATS/1.0\r\na: 1\r\na: 2\r\n\r\n"),
        ([("b", "1"), ("a", "2")], b"NATS/1.0\r\nb: 1\r\na: 2\r\n\r\n"),
        ({}, b"NATS/1.0\r\n\r\n"),
    ],
)
def test_headers_are_given_as_mapping_or_pairs(headers: Headers, block: bytes) -> None:
    assert block == encode_headers(headers)


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        ("100 Idle Heartbeat", NextStep.ALIVE),
        ("404 No Messages", NextStep.OVER),
        ("408 Request Timeout", NextStep.OVER),
        ("409 Batch Completed", NextStep.OVER),
        ("409 Message Size Exceeds MaxBytes", NextStep.OVER),
        ("409 Leadership Change", NextStep.GONE),
        ("409 Server Shutdown", NextStep.GONE),
        ("503", NextStep.GONE),
        ("409 Consumer Deleted", NextStep.FAILED),
        ("409 Exceeded MaxRequestBatch of 5", NextStep.FAILED),
        ("409 Consumer is push based", NextStep.FAILED),
        ("400 Bad Request - heartbeat value too large", NextStep.FAILED),
    ],
)
def test_a_status_says_what_to_do_next(line: str, outcome: NextStep) -> None:
    assert outcome is read_status(status(line))[0]


def test_a_status_carries_its_error() -> None:
    assert isinstance(read_status(status("503"))[1], NoResponders)
    error = read_status(status("409 Consumer Deleted"))[1]
    assert isinstance(error, JetStreamError)
    assert (409, "Consumer Deleted") == (error.code, error.description)


def test_a_status_says_how_many_messages_will_not_come() -> None:
    line = status("408 Request Timeout", "Nats-Pending-Messages: 7\r\nNats-Pending-Bytes: 0\r\n")

    assert (7, 0) == (unfilled(line), unfilled(status("404 No Messages")))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (timedelta(days=1, microseconds=1), b"86400000001000"),
        (datetime(2025, 1, 2, 3, 4, 5, 6, tzinfo=UTC), b'"2025-01-02T03:04:05.000006Z"'),
        (datetime(2025, 1, 2, 3, tzinfo=timezone(timedelta(hours=1))), b'"2025-01-02T02:00:00Z"'),
        (["a"], b'["a"]'),
    ],
)
def test_durations_are_nanoseconds_and_times_rfc_3339(value: Any, expected: bytes) -> None:
    assert b'{"v": ' + expected + b"}" == api.encode({"v": value})


def test_what_json_has_no_word_for_is_refused() -> None:
    with pytest.raises(ClientError, match="cannot be sent"):
        api.encode({"v": object()})
