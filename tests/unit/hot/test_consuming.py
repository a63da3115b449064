"""The loops that run for every message of a consumer, in both twins."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.compiled import compiled_twin

from penstock.hot import consuming
from penstock.hot.wire import PUB, Op

PREFIX = b"$JS.ACK.S.C."


@pytest.fixture(params=["reference", "compiled"])
def twin(request: pytest.FixtureRequest) -> ModuleType:
    return consuming if request.param == "reference" else compiled_twin()


def ack(subject: bytes, data: bytes = b"+ACK\r\n", *, reply: bytes = b"") -> Op:
    return (PUB, subject, reply, 0, len(data) - 2, data)


def test_plain_acks_are_read_up_to_the_first_that_is_not(twin: ModuleType) -> None:
    publishes = [
        ack(PREFIX + b"1.7.3.1800.0"),
        ack(PREFIX + b"12.8.4.1800.0", b"\r\n"),
        ack(PREFIX + b"1.9.5.1800.0", b"+OK\r\n"),
        ack(PREFIX + b"1.10.6.1800.0", b"-NAK\r\n"),
        ack(PREFIX + b"1.11.7.1800.0"),
    ]

    assert ([7, 8, 9], 3) == twin.plain_acks(publishes, PREFIX, 0)
    assert ([], 3) == twin.plain_acks(publishes, PREFIX, 3)
    assert ([11], 5) == twin.plain_acks(publishes, PREFIX, 4)
    assert ([], 5) == twin.plain_acks(publishes, PREFIX, 5)


@pytest.mark.parametrize(
    "publish",
    [
        ack(PREFIX + b"1.7.3.1800.0", reply=b"r"),
        ack(PREFIX + b"1.7.3.1800.0", b"+ACK\r\n+ACK\r\n"),
        ack(PREFIX + b"1.7.3.1800.0", b"+ack\r\n"),
        ack(b"$JS.ACK.S.D.1.7.3.1800.0"),
        ack(b"$JS.ACK.S.C"),
        ack(PREFIX),
        ack(PREFIX + b"1"),
        ack(PREFIX + b"1.7"),
        ack(PREFIX + b".7.3.1800.0"),
        ack(PREFIX + b"1.x.3.1800.0"),
        ack(PREFIX + b"1.+7.3.1800.0"),
        ack(PREFIX + b"1.9223372036854775808.3.1800.0"),
        ack(PREFIX + b"1.10000000000000000000.3.1800.0"),
    ],
)
def test_other_publishes_are_not_plain_acks(twin: ModuleType, publish: Op) -> None:
    assert ([], 0) == twin.plain_acks([publish], PREFIX, 0)


def test_publishes_have_a_prefix_if_all_of_them_have(twin: ModuleType) -> None:
    publishes = [ack(PREFIX + b"1.7.3.1800.0"), ack(PREFIX), ack(b"$JS.ACK.S")]

    assert [True, True, False, True] == [
        twin.have_prefix([], PREFIX),
        twin.have_prefix(publishes[:2], PREFIX),
        twin.have_prefix(publishes, PREFIX),
        twin.have_prefix(publishes, b"$JS.ACK."),
    ]


def test_first_deliveries_are_numbered_and_count_down(twin: ModuleType) -> None:
    messages = [
        (5, 1800, b"s.a", b"", b"hello"),
        (9, 1900, b"s.b", b"NATS/1.0\r\nA: b\r\n\r\n", b""),
        (10, 9223372036854775807, b"s.c", b"", b""),
    ]

    assert [
        (PUB, b"s.a", PREFIX + b"1.5.3.1800.1", 0, 5, b"hello\r\n"),
        (PUB, b"s.b", PREFIX + b"1.9.4.1900.0", 18, 18, b"NATS/1.0\r\nA: b\r\n\r\n\r\n"),
        (PUB, b"s.c", PREFIX + b"1.10.5.9223372036854775807.0", 0, 0, b"\r\n"),
    ] == twin.first_deliveries(messages, PREFIX, 3, 2)


def test_deliveries_to_one_subscriber_are_encoded_in_one_go(twin: ModuleType) -> None:
    messages = [
        (5, 1800, b"s.a", b"", b"hello"),
        (9, 1900, b"s.b", b"NATS/1.0\r\nA: b\r\n\r\n", b"x"),
        (10, 2000, b"s.c", b"", b""),
    ]

    encoded, payload_bytes, sizes = twin.encode_deliveries(messages, PREFIX, 3, 200, b"17", 2)

    assert (
        b"MSG s.a 17 $JS.ACK.S.C.1.5.3.1800.199 5\r\nhello\r\n"
        b"HMSG s.b 17 $JS.ACK.S.C.1.9.4.1900.198 18 19\r\nNATS/1.0\r\nA: b\r\n\r\nx\r\n"
        b"MSG s.c 17 $JS.ACK.S.C.1.10.5.2000.197 0\r\n\r\n"
    ) == encoded
    assert 24 == payload_bytes
    # Subject, reply, header and payload; the first request gets the first and the third.
    assert [3 + 26 + 5 + 3 + 27, 3 + 26 + 19] == sizes
    assert (b"", 0, [0]) == twin.encode_deliveries([], PREFIX, 3, 0, b"1", 1)
    with pytest.raises(ValueError, match="at least one request"):
        twin.encode_deliveries([], PREFIX, 3, 0, b"1", 0)


@pytest.mark.parametrize(
    "message", [(-1, 0, b"s", b"", b""), (1, -1, b"s", b"", b""), (1, 2, b"s", b"")]
)
def test_a_message_that_is_none_is_refused(twin: ModuleType, message: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        twin.first_deliveries([message], PREFIX, 1, 1)
    with pytest.raises((ValueError, TypeError)):
        twin.encode_deliveries([message], PREFIX, 1, 1, b"1", 1)


numbers = st.integers(0, 2**63 - 1)
pieces = st.sampled_from([b"1", b".", b"7", b"x", b"", b"9223372036854775807", b"-", b" "])


@given(
    st.lists(st.tuples(numbers, numbers, st.binary(), st.binary(), st.binary()), max_size=5),
    st.binary(max_size=20),
    st.integers(0, 2**40),
    st.integers(-5, 2**40),
    st.integers(1, 4),
)
def test_the_twins_deliver_alike(
    messages: Any, prefix: bytes, first: int, pending: int, requests: int
) -> None:
    batch = (messages, prefix, first, pending)
    encoded = consuming.encode_deliveries(*batch, b"7", requests)

    assert consuming.first_deliveries(*batch) == compiled_twin().first_deliveries(*batch)
    assert encoded == compiled_twin().encode_deliveries(*batch, b"7", requests)


@given(
    st.lists(
        st.tuples(
            st.lists(pieces, max_size=8).map(b"".join),
            st.sampled_from([b"", b"", b"r"]),
            st.sampled_from([b"+ACK\r\n", b"\r\n", b"+OK\r\n", b"-NAK\r\n", b"\r\n\r\n"]),
        ),
        max_size=6,
    ),
    st.integers(0, 7),
)
def test_the_twins_read_acks_alike(parts: Any, start: int) -> None:
    publishes = [ack(PREFIX + numbers, data, reply=reply) for numbers, reply, data in parts]

    expected = consuming.plain_acks(publishes, PREFIX, start)

    assert expected == compiled_twin().plain_acks(publishes, PREFIX, start)
