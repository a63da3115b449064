"""Messages as a consumer delivers them where that is not the plain way, which is in `hot`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.hot.wire import CRLF, PUB, Op
from penstock.jetstream.store.values import Message

if TYPE_CHECKING:
    from penstock.jetstream.consumers.ledger import Ledger


class Deliveries(NamedTuple):
    """Messages that are delivered for the first time: what `hot.first_deliveries` takes."""

    messages: list[Message]
    ack_prefix: bytes
    consumer_sequence: int
    pending: int


def without_payloads(messages: list[Message]) -> list[Message]:
    """Return messages with the size of their payload in the place of that: `headers_only`."""
    return [_without_payload(each) for each in messages]


def _without_payload(stored: Message) -> Message:
    sequence, time_ns, subject, header, payload = stored
    start = header[: -len(CRLF)] if header else b"NATS/1.0\r\n"
    return sequence, time_ns, subject, start + b"Nats-Msg-Size: %d\r\n\r\n" % len(payload), b""


def redeliveries(
    messages: list[Message], ack_prefix: bytes, *, ledger: Ledger, pending: int
) -> list[Op]:
    """Return messages as they are delivered again."""
    operations: list[Op] = []
    first = ledger.next_consumer_sequence
    for number, (sequence, time_ns, subject, header, payload) in enumerate(messages, first):
        deliveries = ledger.deliveries(sequence) + 1
        numbers = b"%d.%d.%d.%d.%d" % (deliveries, sequence, number, time_ns, pending)
        data = header + payload + CRLF
        size = len(data) - len(CRLF)
        operations.append((PUB, subject, ack_prefix + numbers, len(header), size, data))
    return operations
