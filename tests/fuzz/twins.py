"""What both twins of the wire protocol make of an input, and inputs worth trying."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from penstock.hot import wire

CORPUS = sorted((Path(__file__).parent / "corpus").glob("[!.]*"))

LIMITS = [(1024 * 1024, 4096), (4, 12), (0, 0)]
"""Payload and control line: what a server has, and what makes small inputs hit the bounds."""

TOKENS = [
    *[b"PUB ", b"HPUB ", b"SUB ", b"UNSUB ", b"CONNECT ", b"PING", b"PONG", b"+OK"],
    *[b"MSG ", b"HMSG ", b"INFO ", b"-ERR ", b"pub\t", b"msg\x0b"],
    *[b" ", b"\t", b"\r", b"\n", b"\r\n", b"\x0b", b"\x0c", b"\x1c", b"\x00", b"\xff", b"'"],
    *[b"0", b"1", b"2", b"5", b"09", b"-1", b"999999999", b"1000000000", b"18446744073709551617"],
    *[b"a", b"a.b", b"_INBOX.1", b"{}", b"hello"],
    *[b"PUB a 1\r\nx\r\n", b"HPUB a r 1 2\r\nhx\r\n", b"MSG a 1 1\r\nx\r\n", b"SUB a 1\r\n"],
]


def outcomes(twin: ModuleType, data: bytes) -> list[object]:
    """Return everything a twin says about `data`, errors included."""
    buffer = exactly(data)
    results: list[object] = []
    for limits in LIMITS:
        commands = twin.parse_commands(buffer, *limits)
        publishes = [operation for operation in commands[0] if operation[0] == wire.PUB]
        results += [commands, twin.parse_messages(buffer, *limits), pieces(twin, publishes)]
        results.append(twin.publish_totals(publishes, (b"_INBOX.", b"r")))
    return results


def exactly(data: bytes) -> memoryview:
    """Return `data` in memory that ends with it, where a sanitizer sees a read past the end."""
    # `bytes` and `bytearray` own a byte more; what is in front keeps ctypes from storing it inline.
    front = bytes(32)
    owner = (ctypes.c_char * (len(front) + len(data))).from_buffer_copy(front + data)
    return memoryview(owner)[len(front) :]


def pieces(twin: ModuleType, publishes: list[wire.Op]) -> object:
    """Return the pieces, or the kind of error there was."""
    try:
        return twin.message_pieces(publishes)
    except (ValueError, TypeError) as error:
        return type(error)


def mutations(seed: int) -> Iterator[bytes]:
    """Yield inputs without end: the corpus, broken in small ways."""
    rng = random.Random(seed)
    corpus = [path.read_bytes() for path in CORPUS]
    while True:
        data = rng.choice(corpus) if rng.random() < 0.7 else b""
        for _ in range(rng.randrange(1, 8)):
            data = _mutate(rng, data, corpus)
        yield data


def broken_publishes(rng: random.Random) -> list[wire.Op]:
    """Return publishes whose sizes may not fit their data."""
    sizes = [-3, -2, -1, 0, 1, 2, 3, 7, 2**31, 2**63 - 1, 2**63]
    return [
        (
            wire.PUB,
            bytes(rng.randrange(20)),
            bytes(rng.randrange(3)),
            rng.choice(sizes) if rng.random() < 0.2 else rng.randrange(3),
            rng.choice(sizes),
            bytes(rng.randrange(40)),
        )
        for _ in range(rng.randrange(1, 4))
    ]


def _mutate(rng: random.Random, data: bytes, corpus: list[bytes]) -> bytes:
    start = rng.randrange(len(data) + 1)
    end = min(len(data), start + rng.choice([0, 1, 1, 2, 10, 1000]))
    match rng.randrange(5):
        case 0:
            return data[:start] + data[end:]
        case 1:
            return data[:start] + rng.choice(TOKENS) + data[end:]
        case 2:
            return data[:end] + data[start:end] * rng.randrange(1, 4) + data[end:]
        case 3:
            return data[:start] + rng.randbytes(end - start) + data[end:]
        case _:
            return data[:start] + rng.choice(corpus) + data[start:]
