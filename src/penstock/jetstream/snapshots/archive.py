"""
A snapshot as bytes: nats-server's archive of a stream, in the frames of S2.

    NATSARC1                                              then one entry after the other:
        state.json                                        the figures of the stream
        consumers/<name>                                  a consumer: configuration and state
        <subject>, time, sequence, headers, payload       a message
        an entry without anything                         the end

An entry begins with five varints: the length of its name, its time (zigzag), its sequence, and the
lengths of headers and payload. Our archives are compressed as Snappy, which is valid S2, if the
extra `s2` is installed; otherwise their frames are uncompressed. Archives of nats-server can be
read either way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock import hot
from penstock.core import snappy
from penstock.core.snappy import COMPRESSED, PLAIN, checksum

MAGIC = b"NATSARC1"
STATE, CONSUMERS = b"state.json", b"consumers/"

STREAM_IDENTIFIER = b"\xff\x06\x00\x00S2sTwO"
STREAM_IDENTIFIERS = (STREAM_IDENTIFIER[4:], b"sNaPpY")
SKIPPABLE, IDENTIFIER = 0x80, 0xFF
NAME_BYTES_MAX = 1 << 20
ENTRY_BYTES_MAX = 1 << 27


class ArchiveEntry(NamedTuple):
    """One entry of an archive."""

    name: bytes
    time_ns: int = 0
    sequence: int = 0
    header: bytes = b""
    payload: bytes = b""


END = ArchiveEntry(b"")


# Writing.


def encode_entry(entry: ArchiveEntry) -> bytes:
    """Return the bytes of an entry."""
    name, time_ns, sequence, header, payload = entry
    numbers = (len(name), time_ns << 1 if time_ns >= 0 else ~(time_ns << 1), sequence)
    lengths = (len(header), len(payload))
    return b"".join(map(_varint, numbers + lengths)) + name + header + payload


class ArchiveWriter:
    """Makes an archive of entries; its pieces are the bytes of a file, one after the other."""

    def __init__(self) -> None:
        self._compress = snappy.compressor()
        self._data = bytearray(MAGIC)

    def start(self) -> bytes:
        """Return the beginning of the archive."""
        return STREAM_IDENTIFIER

    def add(self, entry: ArchiveEntry) -> bytes:
        """Add an entry; return the frames that are full by now."""
        self._data += encode_entry(entry)
        return self._flush() if len(self._data) >= snappy.FRAME_BYTES else b""

    def end(self) -> bytes:
        """Return the end of the archive."""
        return self._flush() + snappy.frames(encode_entry(END))

    def _flush(self) -> bytes:
        framed = snappy.frames(bytes(self._data), self._compress)
        self._data.clear()
        return framed


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


# Reading.


class ArchiveReader:
    """Takes an archive in pieces of any size, and returns its entries."""

    def __init__(self) -> None:
        self._framed = bytearray()
        self._data = bytearray()
        self._is_framed = self._has_magic = False
        self.is_complete = False
        """Whether the end of the archive was read."""

    def feed(self, chunk: bytes) -> Iterator[ArchiveEntry]:
        """
        Yield the entries that are complete by now; raise ValueError for invalid bytes.

        One frame is unpacked at a time: a chunk may unpack to a thousand times its size.
        """
        self._framed += chunk
        if not self._is_framed and chunk:
            self._is_framed = chunk[0] == IDENTIFIER
            if not self._is_framed:
                raise ValueError("this is no snapshot of a stream")
        for data in self._take_frames():
            self._data += data
            if not self._has_magic and not self._take_magic():
                continue
            for entry in self._take_entries():
                if self.is_complete:
                    raise ValueError("the snapshot goes on behind its end")
                if entry == END:
                    self.is_complete = True
                else:
                    yield entry

    def _take_frames(self) -> Iterator[bytes]:
        framed, position = self._framed, 0
        try:
            while len(framed) >= position + 4:
                end = position + 4 + int.from_bytes(framed[position + 1 : position + 4], "little")
                if len(framed) < end:
                    break
                yield _unframed(framed[position], bytes(framed[position + 4 : end]))
                position = end
        finally:
            del framed[:position]

    def _take_magic(self) -> bool:
        start = bytes(self._data[: len(MAGIC)])
        if start == MAGIC:
            del self._data[: len(MAGIC)]
            self._has_magic = True
        elif not MAGIC.startswith(start):
            raise ValueError(
                "the snapshot is in the format of nats-server before 2.15: "
                "restore it there, and take a snapshot with 2.15 or newer"
            )
        return self._has_magic

    def _take_entries(self) -> Iterator[ArchiveEntry]:
        position, data = 0, self._data
        while position < len(data):
            numbers = _numbers(data, position, 5)
            if numbers is None:
                break
            (name_bytes, time, sequence, header_bytes, payload_bytes), start = numbers
            size = name_bytes + header_bytes + payload_bytes
            if name_bytes > NAME_BYTES_MAX or size > ENTRY_BYTES_MAX:
                raise ValueError("the snapshot is damaged: an entry is too large")
            if len(data) < start + size:
                break
            header, payload = start + name_bytes, start + name_bytes + header_bytes
            position = start + size
            yield ArchiveEntry(
                bytes(data[start:header]),
                time >> 1 if time & 1 == 0 else ~(time >> 1),
                sequence,
                bytes(data[header:payload]),
                bytes(data[payload:position]),
            )
        del data[:position]


def _unframed(kind: int, frame: bytes) -> bytes:
    """Return the content of a frame."""
    if kind in (COMPRESSED, PLAIN):
        data = frame[4:] if kind == PLAIN else hot.decode_s2(frame[4:])
        if checksum(data) != frame[:4]:
            raise ValueError("the snapshot is damaged: a checksum is wrong")
        return data
    if kind == IDENTIFIER and frame not in STREAM_IDENTIFIERS:
        raise ValueError("this is no snapshot of a stream")
    if kind < SKIPPABLE:
        raise ValueError("this is no snapshot of a stream")
    return b""


def _numbers(data: bytearray, position: int, count: int) -> tuple[list[int], int] | None:
    """Return `count` varints and their end; None if they are not complete yet."""
    numbers: list[int] = []
    number = shift = 0
    for index in range(position, min(position + 10 * count, len(data))):
        byte = data[index]
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            if len(numbers) == count:
                return numbers, index + 1
            number = shift = 0
        elif shift >= 70:
            raise ValueError("the snapshot is damaged: a number is too long")
    return None
