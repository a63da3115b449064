"""
The Snappy framing format, which S2 reads too: for stream snapshots and for traces.

Each frame has a kind, a length and the checksum of its content. It is compressed if the
extra `s2` is installed and that makes it smaller; else it holds plain bytes, which is valid
Snappy too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, TypeAlias

from penstock import hot

Codec: TypeAlias = Callable[[bytes], bytes]

IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
"""The start of a stream of frames."""
COMPRESSED, PLAIN = 0x00, 0x01
FRAME_BYTES = 64 * 1024
CHECKSUM_MASK = 0xA282EAD8


def package() -> Any:
    """Return the Snappy package; None without the extra `s2`."""
    with suppress(ImportError):
        return import_module("cramjam").snappy
    return None


def compressor() -> Codec | None:
    """Return the Snappy compressor; None without the extra `s2`."""
    snappy = package()
    return None if snappy is None else lambda plain: bytes(snappy.compress_raw(plain))


def frames(data: bytes, compress: Codec | None = None) -> bytes:
    """Return bytes in frames, compressed where that makes them smaller."""
    pieces = (data[start : start + FRAME_BYTES] for start in range(0, len(data), FRAME_BYTES))
    return b"".join(_frame(piece, compress) for piece in pieces)


def _frame(data: bytes, compress: Codec | None) -> bytes:
    kind, content = PLAIN, data
    block = compress(data) if compress is not None else data
    if len(block) < len(data):
        kind, content = COMPRESSED, block
    length = (len(content) + 4).to_bytes(3, "little")
    return bytes((kind,)) + length + checksum(data) + content


def checksum(data: bytes) -> bytes:
    """Return the checksum of a frame's content."""
    found = hot.crc32c(data)
    rotated = (found >> 15 | found << 17) & 0xFFFFFFFF
    return ((rotated + CHECKSUM_MASK) & 0xFFFFFFFF).to_bytes(4, "little")
