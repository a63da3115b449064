"""Deliveries worth trying, and what a twin of `collect_deliveries` makes of them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from tests.fuzz.twins import exactly

HEADER_BLOCKS = [
    *[
        b"NATS/1.0\r\n\r\n",
        b"NATS/1.0\r\nA: 1\r\n\r\n",
        b"NATS/1.0\r\nA:1\r\nA: 2\r\nB : x \r\n\r\n",
    ],
    *[b"NATS/1.0 503\r\n\r\n", b"NATS/1.0\r\nno colon\r\n: empty\r\nA:\r\n", b"\r\n", b"x", b":"],
    *[b"NATS/1.0\r\nK: a:b\t\r\n\r", b"NATS/1.0\r\n\xff: \xfe\r\n\r\n", b"NATS/1.0\nA: 1\r\nB: 2"],
]
REPLIES = [
    *[b"$JS.ACK.S.C.1.%d.%d.1763190000123456789.%d", b"$JS.ACK._.hash.S.C.1.%d.%d.17.%d"],
    *[b"$JS.ACK._.hash.S.C.1.%d.%d.17.%d.random", b"$JS.ACK.S.C.1.%d.%d.9223372036854775808.%d"],
    *[b"$JS.ACK.S.C.x.%d.%d.1.%d", b"$JS.ACK.S..1.%d.%d.1.%d", b"$JS.ACK.S.C.1.%d.%d.1.%d.1"],
    *[b"_INBOX.%d.%d.%d", b"$JS.ACK.S.C.1.%d.%d.1.%d.", b"$JS.ACK.a.b.c.d.e.f.1.%d.%d.1.%d"],
]
OTHERS = [
    b"PING\r\n",
    b"+OK\r\n",
    b"MSG a 1 2\r\nhi\r\n",
    b"HMSG i.1 1 16 16\r\nNATS/1.0 404\r\n\r\n\r\n",
]


def streams(seed: int) -> Iterator[bytes]:
    """Yield what a consumer might send, mostly well formed, without end."""
    rng = random.Random(seed)
    while True:
        strange = rng.random() < 0.5
        pieces = []
        for number in range(1, rng.randrange(1, 8)):
            pieces.append(_delivery(rng, number, strange=strange))
            if strange and rng.random() < 0.1:
                pieces.append(rng.choice(OTHERS))
        data = b"".join(pieces)
        if strange and data:
            cut = rng.randrange(len(data))
            data = data[:cut] + rng.choice([b"", b" ", b"9", b".", b"\x7f", b"\r\n"]) + data[cut:]
        yield data[: rng.randrange(len(data) + 1)] if rng.random() < 0.3 else data


def _delivery(rng: random.Random, number: int, *, strange: bool) -> bytes:
    reply = rng.choice(REPLIES) if strange and rng.random() < 0.3 else REPLIES[0]
    sequences = (number * rng.choice([1, 1, 3]), number, rng.randrange(5))
    subject = rng.choice([b"a", b"orders.eu.1", b"caf\xc3\xa9", b"\xff"])
    data = rng.choice([b"", b"x", b"MSG a 1 1\r\nx\r\n", rng.randbytes(rng.randrange(40))])
    if rng.random() < 0.4:
        block = rng.choice(HEADER_BLOCKS)
        sizes = b"%d %d" % (len(block), len(block) + len(data))
        return b"HMSG %b 1 %b %b\r\n%b%b\r\n" % (subject, reply % sequences, sizes, block, data)
    return b"MSG %b 1 %b %d\r\n%b\r\n" % (subject, reply % sequences, len(data), data)


def outcomes(twin: ModuleType, data: bytes) -> list[Any]:
    """Return everything a twin says about `data`."""
    buffer = exactly(data)
    wanted, firsts, lasts = (0, 1, 2, 4, 7), (1, 2), (2, 2**62)
    return [
        tuple(twin.collect_deliveries(buffer, *arguments))
        for arguments in itertools.product(wanted, firsts, lasts)
    ]
