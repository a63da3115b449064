"""
JetStream deliveries as columns: the reference implementation.

A bulk reader wants columns, not messages. `collect_deliveries` reads deliveries of a
consumer without acks from the start of a buffer, and gathers their parts. It stops at
anything else: a status line, a PING, a gap, the end of the range, half a message. That is
rare, so the caller leaves it to `parse_messages`.

A column is a byte string in Arrow's layout, with numbers in native byte order: the bytes of
all rows in one piece, and the 32-bit offset of each row, with one more at the end.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

from penstock.hot.wire import CRLF, NUMBER_MAX, Buffer

SUBJECTS, DATA, HEADERS = 1, 2, 4
"""Optional columns: `wanted` is their sum. Sequences and times always come."""


_NAME = rb"[!-\-/-~\x80-\xff]+"
_NUMBER = rb"([0-9]{1,19})"
# $JS.ACK.[domain.account.]stream.consumer.deliveries.sequence.consumer sequence.time.pending[.any]
_REPLY = rb"\$JS\.ACK\.(?:%b\.%b\.)?%b\.%b\.[0-9]{1,19}\.%b\.%b\.%b\.%b(?:\.%b)?"
_FIELD = rb"[!-~\x80-\xff]+"
DELIVERY = re.compile(
    rb"(H?)MSG (%b) %b %b (?:([0-9]{1,9}) )?([0-9]{1,9})\r\n"
    % (_FIELD, _FIELD, _REPLY % (*[_NAME] * 4, *[_NUMBER] * 4, _NAME))
)


class Columns(NamedTuple):
    """The result of `collect_deliveries`."""

    row_count: int
    consumed: int
    pending: int
    """The number of messages that the consumer still has after the last row."""
    sequences: bytes
    times: bytes
    """Microseconds since 1970."""
    subject_offsets: bytes
    subjects: bytes
    data_offsets: bytes
    data: bytes
    header_offsets: bytes
    """The offset of each row's first header."""
    key_offsets: bytes
    keys: bytes
    value_offsets: bytes
    values: bytes


def collect_deliveries(
    buffer: Buffer, wanted: int, consumer_sequence: int, sequence_max: int, /
) -> Columns:
    """
    Gather the deliveries from `consumer_sequence` on, up to `sequence_max` in the stream.

    The compiled twin is 26 x as fast.
    """
    buffer = bytes(buffer)
    subjects: list[bytes] = []
    data: list[bytes] = []
    blocks: list[bytes] = []
    sequences: list[int] = []
    times: list[int] = []
    position, pending = 0, 0
    while match := DELIVERY.match(buffer, position):
        has_headers, subject, sequence, delivery, time_ns, left, header_bytes, size = match.groups()
        numbers = (int(sequence), int(delivery), int(time_ns), int(left))
        start = match.end()
        middle = start + int(header_bytes or 0)
        end = start + int(size)
        if (
            bool(has_headers) != (header_bytes is not None)
            or middle > end
            or not buffer.startswith(CRLF, end)
            or max(numbers) > NUMBER_MAX
            or numbers[0] > sequence_max
            or numbers[1] != consumer_sequence + len(sequences)
        ):
            break
        subjects.append(subject)
        data.append(buffer[middle:end])
        blocks.append(buffer[start:middle])
        sequences.append(numbers[0])
        times.append(numbers[2] // 1000)
        pending = numbers[3]
        position = end + 2
    return Columns(
        len(sequences),
        position,
        pending,
        array("q", sequences).tobytes(),
        array("q", times).tobytes(),
        *(_column(subjects) if wanted & SUBJECTS else (b"", b"")),
        *(_column(data) if wanted & DATA else (b"", b"")),
        *(_header_columns(blocks) if wanted & HEADERS else (b"",) * 5),
    )


def _column(rows: list[bytes]) -> tuple[bytes, bytes]:
    return _offsets(map(len, rows)), b"".join(rows)


def _offsets(sizes: Iterable[int]) -> bytes:
    return array("i", accumulate(sizes, initial=0)).tobytes()


def _header_columns(blocks: list[bytes]) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """Split header blocks like `headers.decode`, but keep the bytes unchanged."""
    keys: list[bytes] = []
    values: list[bytes] = []
    counts = []
    for block in blocks:
        before = len(keys)
        for line in block.split(CRLF)[1:] if block else ():
            key, colon, value = line.partition(b":")
            if colon:
                keys.append(key)
                values.append(value.strip())
        counts.append(len(keys) - before)
    return _offsets(counts), *_column(keys), *_column(values)
