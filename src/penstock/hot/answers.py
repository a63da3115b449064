"""
The most frequent answers of JetStream: the reference implementation.

A publisher with a thousand messages in flight waits for a thousand PubAcks, each to its own
inbox and each with the next sequence. They are encoded in one go. A direct get, as
key-value reads use it, is answered with the stored message; headers name its stream,
subject, sequence and time.
"""

from __future__ import annotations

from penstock.hot.wire import CRLF, NUMBER_MAX, PUB, Op
from penstock.protocol import headers
from penstock.protocol.times import timestamp


def are_siblings(subjects: list[bytes], parent: bytes, /) -> bool:
    """
    Tell whether all subjects are `parent`, a dot and one token; without a parent, one token.

    The compiled twin is 28 x as fast.
    """
    prefix = parent + b"." if parent else b""
    return all(
        [
            subject.startswith(prefix)
            and len(subject) > len(prefix)
            and subject.find(b".", len(prefix)) < 0
            for subject in subjects
        ]
    )


def numbered_answers(
    replies: list[bytes], sid: bytes, before: bytes, after: bytes, first_number: int, /
) -> tuple[bytes, int]:
    """
    Return one encoded answer to each reply subject, and the total bytes of their payloads.

    A payload is `before`, a number and `after`; the numbers count up from `first_number`.

    The compiled twin is 14 x as fast.
    """
    if not 0 <= first_number <= NUMBER_MAX - len(replies):
        raise ValueError("numbers are not negative, and fit 64 bits")
    encoded: list[bytes] = []
    payload_bytes = 0
    for number, reply in enumerate(replies, first_number):
        payload = b"%b%d%b" % (before, number, after)
        payload_bytes += len(payload)
        encoded.append(b"MSG %b %b %d\r\n%b%b" % (reply, sid, len(payload), payload, CRLF))
    return b"".join(encoded), payload_bytes


def stored_answer(
    reply: bytes, stream: bytes, message: tuple[int, int, bytes, bytes, bytes], /
) -> Op:
    """
    Return a stored message of a stream as the answer to a direct get.

    The compiled twin is 6 x as fast.
    """
    sequence, time_ns, subject, header, payload = message
    if not (0 <= sequence <= NUMBER_MAX and 0 <= time_ns <= NUMBER_MAX):
        raise ValueError("sequences and times are not negative, and fit 64 bits")
    block = (
        b"%bNats-Stream: %b\r\nNats-Subject: %b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b\r\n\r\n"
        % (
            header.removesuffix(CRLF) if header else headers.VERSION + CRLF,
            stream,
            subject,
            sequence,
            timestamp(time_ns).encode(),
        )
    )
    return PUB, reply, b"", len(block), len(block) + len(payload), block + payload + CRLF
