"""
What clients say about messages they were given: acked, not acked, working on it, give up.

Acks come in batches, and nearly all of them are plain, so those are only
collected, and settled together when something else comes or the batch ends.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, NamedTuple

from penstock import hot
from penstock.core.account import message_count, payloads
from penstock.hot.wire import Op
from penstock.protocol import headers
from penstock.protocol.times import DURATION_NS_MAX, parse_duration

if TYPE_CHECKING:
    from penstock.jetstream.consumers.consumer import Consumer

log = logging.getLogger("penstock")

ACKS = (b"", b"+ACK", b"+OK")
NAK, NEXT, PROGRESS, TERM = b"-NAK", b"+NXT", b"+WPI", b"+TERM"


class Delivery(NamedTuple):
    """The delivery that an ack is about, as its subject says."""

    deliveries: int
    sequence: int
    consumer_sequence: int


def take(consumer: Consumer, publishes: list[Op], skip: int) -> None:
    """Do what a batch of acks says, in order. Their numbers start at `subject[skip]`."""
    prefix = publishes[0][1][:skip]
    index = 0
    while index < len(publishes):
        if consumer.acks_in_bulk:
            sequences, index = hot.plain_acks(publishes, prefix, index)
            consumer.on_acked(sequences)
        if index < len(publishes):
            _take_one(consumer, publishes[index], skip)
            index += 1


def _take_one(consumer: Consumer, publish: Op, skip: int) -> None:
    """Do what acks of any kind say about one message."""
    delivery = parse(publish[1][skip:])
    if delivery is None:
        return
    reply, header_bytes = publish[2], publish[3]
    messages = [publish[5]] if message_count(publish) == 1 else payloads(publish)
    for message in messages:
        _take_payload(consumer, delivery, message[header_bytes:-2], reply)


def _take_payload(consumer: Consumer, delivery: Delivery, payload: bytes, reply: bytes) -> None:
    if payload in ACKS:
        consumer.on_ack(delivery, reply)
    elif payload.startswith(NEXT):
        consumer.on_ack(delivery, b"")
        consumer.on_request(reply, payload[len(NEXT) :])
    elif payload.startswith(NAK):
        consumer.on_nak(delivery, parse_delay_ns(payload[len(NAK) :]))
        consumer.confirm(reply)
    elif payload == PROGRESS:
        consumer.on_progress(delivery.sequence)
        consumer.confirm(reply)
    elif payload.startswith(TERM):
        reason = payload[len(TERM) :].strip().decode(errors="replace")
        consumer.on_term(delivery, reason, reply)
    else:
        consumer.confirm(reply)


def parse(numbers: bytes) -> Delivery | None:
    """Return what `<delivered>.<stream seq>.<consumer seq>.<time>.<pending>` says."""
    found = [headers.number(field) for field in numbers.split(b".")[:5]]
    delivered, sequence, consumer_sequence, *rest = found + [None] * (5 - len(found))
    if delivered is None or sequence is None or consumer_sequence is None or None in rest:
        return None
    return Delivery(delivered, sequence, consumer_sequence)


def parse_flow(publish: Op) -> list[Delivery]:
    """Return how far a client says it is in its answers to flow control requests."""
    deliveries = []
    for message in payloads(publish):
        header = message[: publish[3]]
        sequence = headers.number(headers.get(header, b"Nats-Last-Stream"))
        number = headers.number(headers.get(header, b"Nats-Last-Consumer"))
        if sequence:
            deliveries.append(Delivery(1, sequence, number or 0))
    return deliveries


def parse_delay_ns(text: bytes) -> int:
    """Return how long a NAK asks to wait, as JSON or as a duration; 0 if it does not."""
    text = text.strip()
    if not text:
        return 0
    try:
        if text.startswith(b"{"):
            delay_ns = json.loads(text).get("delay", 0)
            is_delay = isinstance(delay_ns, int) and abs(delay_ns) <= DURATION_NS_MAX
            return delay_ns if is_delay else 0
        return parse_duration(text.decode())
    except (ValueError, RecursionError):
        log.warning("Bad NAK delay value: %r", text)
        return 0
