"""
Answers that differ in a number, as PubAcks do: the reference implementation.

A publisher with a thousand messages in flight waits for a thousand answers, each to
an inbox of its own and each with the next sequence. They are encoded in one go.
"""

from __future__ import annotations

from penstock.wire import CRLF

NUMBER_MAX = 2**63 - 1


def numbered_answers(
    replies: list[bytes], sid: bytes, before: bytes, after: bytes, first_number: int, /
) -> tuple[bytes, int]:
    """
    Return the deliveries of one answer to each reply subject, and the bytes of their payloads.

    A payload is `before`, a number and `after`; the numbers count from `first_number` up.
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
