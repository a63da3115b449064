"""Acks and deliveries worth trying, and what a twin of `consuming` makes of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

from penstock.hot.wire import PUB, Op

NUMBERS = [0, 1, 7, 10**18, 2**63 - 2, 2**63 - 1]
EDGES = [-(2**63) - 1, -1, 2**63, 2**64, 2**70]
PREFIXES = [b"$JS.ACK.S.C.", b"$JS.ACK.S.", b"", b"1"]
DATA = [b"+ACK\r\n", b"+ACK\r\n", b"\r\n", b"+OK\r\n", b"-NAK\r\n", b"+ACK", b"", b"+ack\r\n"]
TOKENS = [b"1", b"7", b"", b"x", b"-1", b"0" * 19, b"0" * 20, b"9" * 19, b"9223372036854775807"]


class Example(NamedTuple):
    """What the functions of `consuming` are given."""

    publishes: list[Op]
    prefix: bytes
    start: int
    messages: list[tuple[int, int, bytes, bytes, bytes]]
    consumer_sequence: int
    pending: int


def examples(seed: int) -> Iterator[Example]:
    """Yield examples without end."""
    rng = random.Random(seed)
    while True:
        yield Example(
            publishes=[_ack(rng) for _ in range(rng.randrange(6))],
            prefix=PREFIXES[0] if rng.random() < 0.7 else rng.choice(PREFIXES),
            start=rng.randrange(7) if rng.random() < 0.3 else 0,
            messages=[_message(rng) for _ in range(rng.randrange(5))],
            consumer_sequence=_number(rng),
            pending=_number(rng),
        )


def _number(rng: random.Random) -> int:
    return rng.choice(EDGES) if rng.random() < 0.05 else rng.choice(NUMBERS)


def _ack(rng: random.Random) -> Op:
    if rng.random() < 0.7:
        subject = PREFIXES[0] + b"1.%d.3.17.0" % rng.choice(NUMBERS)
    else:
        tokens = rng.choices(TOKENS, k=rng.randrange(5))
        subject = rng.choice(PREFIXES) + b".".join(tokens)
    data = DATA[0] if rng.random() < 0.7 else rng.choice(DATA)
    return PUB, subject, b"r" if rng.random() < 0.1 else b"", 0, len(data), data


def _message(rng: random.Random) -> tuple[int, int, bytes, bytes, bytes]:
    subject, header, payload = (rng.randbytes(rng.randrange(20)) for _ in range(3))
    return _number(rng), _number(rng), subject, header, payload


def outcomes(twin: ModuleType, example: Example) -> list[object]:
    """Return everything a twin says about an example, errors included."""
    publishes, prefix, start, messages, consumer_sequence, pending = example
    acks = [twin.have_prefix(publishes, prefix), twin.plain_acks(publishes, prefix, start)]
    batch = (messages, prefix, consumer_sequence, pending)
    try:
        encoded = twin.encode_deliveries(*batch, b"1", start + 1)
        return [*acks, twin.first_deliveries(*batch), encoded]
    except ValueError as error:
        return [*acks, str(error)]
