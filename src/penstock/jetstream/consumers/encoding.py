"""Encodings the hot path does not cover: redeliveries and `headers_only`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.hot.wire import CRLF, PUB, Op
from penstock.jetstream.store.values import Message

if TYPE_CHECKING:
    from penstock.jetstream.consumers.ledger import Ledger


class Deliveries(NamedTuple):
    """First deliveries of messages: the input of `hot.first_deliveries`."""

    messages: list[Message]
    ack_prefix: bytes
    consumer_sequence: int
    pending: int


def without_payloads(messages: list[Message]) -> list[Message]:
    """Return messages with the size of their payload in its place: `headers_only`."""
    return [_without_payload(each) for each in messages]


def _without_payload(stored: Message) -> Message:
    sequence, time_ns, subject, header, payload = stored
    start = header[: -len(CRLF)] if header else b"NATS/1.0\r\n"
    return sequence, time_ns, subject, start + b"Nats-Msg-Size: %d\r\n\r\n" % len(payload), b""


def redeliveries(
    messages: list[Message], ack_prefix: bytes, *, ledger: Ledger, pending: int
) -> list[Op]:
    """Return redeliveries of messages, encoded."""
    operations: list[Op] = []
    first = ledger.next_consumer_sequence
    for number, (sequence, time_ns, subject, header, payload) in enumerate(messages, first):
        deliveries = ledger.deliveries(sequence) + 1
        numbers = b"%d.%d.%d.%d.%d" % (deliveries, sequence, number, time_ns, pending)
        data = header + payload + CRLF
        size = len(data) - len(CRLF)
        operations.append((PUB, subject, ack_prefix + numbers, len(header), size, data))
    return operations
