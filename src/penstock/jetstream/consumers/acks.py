"""Acks, as their subjects and payloads say it."""

from __future__ import annotations

import json
import logging
from typing import NamedTuple

from penstock.core.runs import payloads
from penstock.hot.wire import HEADER_BYTES, Op
from penstock.protocol import headers
from penstock.protocol.times import DURATION_NS_MAX, parse_duration

log = logging.getLogger("penstock")

ACKS = (b"", b"+ACK", b"+OK")
NAK, NEXT, PROGRESS, TERM = b"-NAK", b"+NXT", b"+WPI", b"+TERM"


class AckedDelivery(NamedTuple):
    """The delivery that an ack refers to, from its subject."""

    deliveries: int
    sequence: int
    consumer_sequence: int


def parse(numbers: bytes) -> AckedDelivery | None:
    """Return the delivery of `<delivered>.<stream seq>.<consumer seq>.<time>.<pending>`."""
    found = [headers.number(field) for field in numbers.split(b".")[:5]]
    delivered, sequence, consumer_sequence, *rest = found + [None] * (5 - len(found))
    if delivered is None or sequence is None or consumer_sequence is None or None in rest:
        return None
    return AckedDelivery(delivered, sequence, consumer_sequence)


def parse_flow(publish: Op) -> list[AckedDelivery]:
    """Return the positions that a client confirms with its answers to flow control requests."""
    deliveries = []
    for message in payloads(publish):
        header = message[: publish[HEADER_BYTES]]
        sequence = headers.number(headers.get(header, b"Nats-Last-Stream"))
        number = headers.number(headers.get(header, b"Nats-Last-Consumer"))
        if sequence:
            deliveries.append(AckedDelivery(1, sequence, number or 0))
    return deliveries


def parse_delay_ns(text: bytes) -> int:
    """Return the delay that a NAK asks for, as JSON or as a duration; 0 without one."""
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
