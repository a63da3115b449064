"""
The per-message loops of a JetStream consumer: the reference implementation.

Messages leave as publishes with a descriptive reply subject, and come back as acks on that
subject:

    $JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>

A `prefix` is everything before `<delivered>`, with the dot.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.hot.wire import CRLF, NUMBER_MAX, PUB, SIZE, SUBJECT, Op, message_pieces

PLAIN = frozenset((b"+ACK\r\n", b"\r\n", b"+OK\r\n"))
"""The data of a plain ack."""

_NUMBERS = re.compile(rb"([0-9]{1,19})\.([0-9]{1,19})\.")


def have_prefix(publishes: list[Op], prefix: bytes, /) -> bool:
    """
    Tell whether the subjects of all publishes have a prefix, as acks for one consumer do.

    The compiled twin is 8 x as fast.
    """
    return all([publish[SUBJECT].startswith(prefix) for publish in publishes])


def plain_acks(publishes: list[Op], prefix: bytes, start: int, /) -> tuple[list[int], int]:
    """
    Return the sequences of the plain acks from `start` on, and the index after them.

    A plain ack is for this consumer, has no reply and only acknowledges its message.

    The compiled twin is 26 x as fast.
    """
    sequences: list[int] = []
    skip = len(prefix)
    for index in range(start, len(publishes)):
        _, subject, reply, _, _, data = publishes[index]
        if reply or data not in PLAIN or not subject.startswith(prefix):
            return sequences, index
        numbers = _NUMBERS.match(subject, skip)
        if numbers is None or max(map(int, numbers.groups())) > NUMBER_MAX:
            return sequences, index
        sequences.append(int(numbers[2]))
    return sequences, max(start, len(publishes))


def first_deliveries(
    messages: Sequence[tuple[int, int, bytes, bytes, bytes]],
    prefix: bytes,
    consumer_sequence: int,
    pending: int,
    /,
) -> list[Op]:
    """
    Return messages as first deliveries.

    A message is sequence, time, subject, header block and payload. The messages get
    consumer sequences from `consumer_sequence` on. `pending` counts the messages before the
    first of these is delivered, and falls by one with each.

    The compiled twin is 5 x as fast.
    """
    operations: list[Op] = []
    pending = min(pending, NUMBER_MAX)
    for sequence, time_ns, subject, header, payload in messages:
        if not (
            0 <= sequence <= NUMBER_MAX
            and 0 <= consumer_sequence <= NUMBER_MAX
            and 0 <= time_ns <= NUMBER_MAX
        ):
            raise ValueError("sequences and times are not negative, and fit 64 bits")
        pending = max(pending - 1, 0)
        numbers = b"1.%d.%d.%d.%d" % (sequence, consumer_sequence, time_ns, pending)
        data = header + payload + CRLF
        size = len(data) - len(CRLF)
        operations.append((PUB, subject, prefix + numbers, len(header), size, data))
        consumer_sequence += 1
    return operations


def encode_deliveries(
    messages: Sequence[tuple[int, int, bytes, bytes, bytes]],
    prefix: bytes,
    consumer_sequence: int,
    pending: int,
    sid: bytes,
    request_count: int,
    /,
) -> tuple[bytes, int, list[int]]:
    """
    Return first deliveries as encoded for one subscriber, and two kinds of totals.

    The totals are the bytes of all headers and payloads, and for each of `request_count`
    pull requests, which get the messages in turn, the bytes that count against its
    `max_bytes`.

    The compiled twin is 18 x as fast.
    """
    if request_count < 1:
        raise ValueError("there is at least one request")
    operations = first_deliveries(messages, prefix, consumer_sequence, pending)
    sizes = [len(subject) + len(reply) + size for _, subject, reply, _, size, _ in operations]
    return (
        sid.join(message_pieces(operations)),
        sum([operation[SIZE] for operation in operations]),
        [sum(sizes[index::request_count]) for index in range(request_count)],
    )
