"""The answer to a publish: stored, or why not."""

from __future__ import annotations

import pytest

from penstock.client.jetstream.puback import PubAck, is_ack, refusal
from penstock.errors import ClientError, JetStreamError, NoResponders
from penstock.hot.wire import MSG, Op

ACK = b'{"stream":"S","seq":7}'
DUPLICATE = b'{"stream":"S","seq":7,"duplicate":true}'
ERROR = (
    b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence"},'
    b'"stream":"S","seq":0}'
)
NO_RESPONDERS = b"NATS/1.0 503\r\n\r\n"


def answer(payload: bytes, header_bytes: int = 0) -> Op:
    return (MSG, b"_INBOX.a.1", b"1", b"", header_bytes, payload)


@pytest.mark.parametrize("payload", [ACK, DUPLICATE, b'{"stream":"\\"error\\":","seq":1}'])
def test_an_ack_names_the_stream(payload: bytes) -> None:
    assert is_ack(answer(payload))


@pytest.mark.parametrize("payload", [ERROR, b"", b"+OK", b"[]", b'{"seq":7}'])
def test_everything_else_is_no_ack(payload: bytes) -> None:
    assert not is_ack(answer(payload))


def test_nobody_stores_the_subject() -> None:
    operation = answer(NO_RESPONDERS, len(NO_RESPONDERS))

    assert not is_ack(operation)
    assert isinstance(refusal(operation), NoResponders)


def test_a_refusal_has_the_codes_of_the_server() -> None:
    error = refusal(answer(ERROR))

    assert isinstance(error, JetStreamError)
    assert (error.code, error.err_code) == (400, 10071)


@pytest.mark.parametrize("payload", [b"", b"+OK", b'{"seq":7}', b'{"error":', b"{}" * 100])
def test_an_answer_of_somebody_else_is_shown(payload: bytes) -> None:
    error = refusal(answer(payload))

    assert isinstance(error, ClientError)
    assert "not an ack" in str(error)


def test_an_ack_is_read_when_it_is_asked() -> None:
    ack = PubAck(DUPLICATE)

    assert (ack.stream, ack.sequence, ack.duplicate) == ("S", 7, True)


def test_an_ack_that_lies_is_an_error() -> None:
    with pytest.raises(ClientError, match="`seq`"):
        _ = PubAck(b'{"stream":"S","seq":"many"}').sequence
