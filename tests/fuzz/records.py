"""Records worth trying, whole and broken, and what a twin makes of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple
from zlib import crc32

from tests.fuzz.twins import exactly

from penstock.hot import records
from penstock.hot.records import RECORD, RECORD_BODY, RECORD_MARK, U32, Entry

EDGES = [-(2**63) - 1, -(2**63), -1, 0, 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1, 2**64]


class Example(NamedTuple):
    """What `encode_records` and `decode_messages` are given."""

    first_sequence: int
    entries: list[Entry]
    salt: int
    buffer: bytes
    offsets: list[int]
    base: int


def examples(seed: int) -> Iterator[Example]:
    """Yield examples without end."""
    rng = random.Random(seed)
    while True:
        salt = rng.choice([0, 1, -1, 2**32 - 1, 2**40, rng.randrange(2**32)])
        base = rng.choice([0, 64, -3, 2**70])
        runs = [_record(rng, salt) for _ in range(rng.randrange(6))]
        starts = [sum(map(len, runs[:index])) for index in range(len(runs))]
        buffer = b"".join(runs)
        if rng.random() < 0.3:
            buffer = buffer[: rng.randrange(len(buffer) + 1)]
        wild = [rng.randrange(-40, len(buffer) + 40), rng.choice(EDGES)]
        yield Example(
            first_sequence=rng.choice(EDGES) if rng.random() < 0.2 else rng.randrange(2**40),
            entries=[_entry(rng) for _ in range(rng.randrange(5))],
            salt=salt,
            buffer=buffer,
            offsets=[base + start for start in [*starts, *wild]],
            base=base,
        )


def _entry(rng: random.Random) -> Entry:
    subject_bytes = rng.choice([65535, 65536]) if rng.random() < 0.02 else rng.randrange(40)
    time_ns = rng.choice(EDGES) if rng.random() < 0.05 else rng.randrange(2**62)
    headers = rng.randbytes(rng.choice([0, 0, 1, 12, 30]))
    return rng.randbytes(subject_bytes), headers, rng.randbytes(rng.randrange(100)), time_ns


def _record(rng: random.Random, salt: int) -> bytes:
    """A record of which any part may be wrong, though its checksum mostly is right."""
    kind = rng.choice([1, 1, 1, 2, 2, 2, 0, 3, 255])
    subject, rest = rng.randbytes(rng.randrange(20)), rng.randbytes(rng.randrange(60))
    if kind == 2 and rng.random() < 0.9:
        rest = U32.pack(_near(rng, rng.randrange(len(rest) + 1), 2**32 - 1)) + rest
    subject_length = _near(rng, len(subject), 2**16 - 1)
    length = _near(rng, RECORD.size + len(subject) + len(rest), 2**32 - 1)
    mark = RECORD_MARK if rng.random() < 0.95 else rng.randrange(2**16)
    sequence, time_ns = rng.randrange(2**64), rng.randrange(-(2**63), 2**63)
    head = RECORD_BODY.pack(length, mark, kind, 0, subject_length, sequence, time_ns)
    body = head + subject + rest
    checksum = crc32(body[: max(length - 4, 0)], salt)
    return U32.pack(checksum if rng.random() < 0.95 else rng.randrange(2**32)) + body


def _near(rng: random.Random, number: int, largest: int) -> int:
    """Return the number itself, or sometimes one that is a little or very wrong."""
    if rng.random() < 0.8:
        return number
    return rng.choice([0, max(number - 1, 0), number + 1, number + 4, largest])


def outcomes(twin: ModuleType, example: Example) -> list[object]:
    """Return everything a twin says about an example, errors included."""
    # The reference slices what it is given, and is held to bytes; it cannot read past them.
    buffer = example.buffer if twin is records else exactly(example.buffer)
    messages = twin.decode_messages(buffer, example.offsets, example.base, example.salt)
    publishes = [
        (0, subject, subject, len(headers), len(payload), payload + b"\r\n")
        for subject, headers, payload, _ in example.entries
    ]
    plain = twin.plain_entries(publishes, example.salt)
    try:
        return [
            messages,
            plain,
            twin.encode_records(example.first_sequence, example.entries, example.salt),
        ]
    except ValueError as error:
        return [messages, plain, str(error)]
