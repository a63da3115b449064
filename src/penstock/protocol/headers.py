"""
The NATS/1.0 header block ⇄ its status line and pairs.

Keys keep their case and their order, and a key may come more than once (ADR-4).
"""

from __future__ import annotations

from collections.abc import Iterable

VERSION = b"NATS/1.0"
NUMBER_MAX = 2**63 - 1
NUMBER_DIGITS_MAX = 19
EMPTY = VERSION + b"\r\n\r\n"


def encode(pairs: Iterable[tuple[str, str]], *, status: str = "") -> bytes:
    """Return the block for `pairs`, with an optional status such as `503 No Responders`."""
    lines = [f"NATS/1.0 {status}" if status else "NATS/1.0"]
    lines.extend(f"{key}: {value}" for key, value in pairs)
    block = "\r\n".join(lines)
    if not block.count("\r") == block.count("\n") == len(lines) - 1:
        raise ValueError("a header is one line: its key and value have no line breaks")
    return block.encode() + b"\r\n\r\n"


def decode(block: bytes) -> list[tuple[str, str]]:
    """Return the pairs of a block; skip lines that are not headers."""
    pairs = []
    for line in block.split(b"\r\n")[1:]:
        key, colon, value = line.partition(b":")
        if colon:
            pairs.append((key.decode(errors="replace"), value.strip().decode(errors="replace")))
    return pairs


def status(block: bytes) -> tuple[int, str]:
    """Return the status code and description; `(0, "")` for a block without status."""
    first = block.partition(b"\r\n")[0][len(VERSION) :].strip()
    code, _, description = first.partition(b" ")
    if len(code) != 3 or not code.isdigit():
        return 0, ""
    return int(code), description.strip().decode(errors="replace")


def add(block: bytes, key: bytes, value: bytes) -> bytes:
    """Return the block with one more line at its end; an empty block becomes valid."""
    return b"%b%b: %b\r\n\r\n" % (lines(block), key, value)


def remove(block: bytes, key: bytes) -> bytes:
    """Return the block without the first line of a key; empty if no line is left."""
    start = block.find(b"\r\n" + key + b":")
    if start < 0:
        return block
    left = block[:start] + block[_line_end(block, start + 2) :]
    return b"" if left == EMPTY else left


def without_prefixes(block: bytes, prefixes: tuple[bytes, ...]) -> bytes:
    """Return the block without lines that start with a prefix; empty if no line is left."""
    if not any(b"\r\n" + prefix in block for prefix in prefixes):
        return block
    kept = [line for line in block.split(b"\r\n") if not line.startswith(prefixes)]
    left = b"\r\n".join(kept)
    return b"" if left == EMPTY else left


def put(block: bytes, key: bytes, value: bytes) -> bytes:
    """Return the block with a key's first value replaced, or added if the key is missing."""
    start = block.find(b"\r\n" + key + b":")
    if start < 0:
        return add(block, key, value)
    end = _line_end(block, start + 2)
    return b"%b\r\n%b: %b%b" % (block[:start], key, value, block[end:])


def lines(block: bytes) -> bytes:
    """Return the block up to the point where another line can follow."""
    return (block.rstrip(b"\r\n") or VERSION) + b"\r\n"


def number(value: bytes | None) -> int | None:
    """
    Return the number that a client wrote; None if it is not one.

    A number above 64 bits becomes the largest one: no sequence, count or level reaches it,
    and nobody has to read a million digits to know.
    """
    if not value or not value.isdigit():
        return None
    return min(int(value), NUMBER_MAX) if len(value) <= NUMBER_DIGITS_MAX else NUMBER_MAX


def _line_end(block: bytes, start: int) -> int:
    end = block.find(b"\r\n", start)
    return end if end >= 0 else len(block)


def get(block: bytes, key: bytes) -> bytes | None:
    """Return the first value of `key` without decoding the rest, for the hot path."""
    start = block.find(b"\r\n" + key + b":")
    if start < 0:
        return None
    start += len(key) + 3
    end = block.find(b"\r\n", start)
    return block[start : end if end >= 0 else len(block)].strip()
