"""
The bytes of a segment: its header and its records. Pure functions over bytes.

    segment = header, records, and once it is complete a trailer (`trailer.py`)

A record is a *message* (`penstock/hot/records.py`), exactly as long as nats-server counts it, or a
*removal*, which starts with the same 30 bytes and lists removed messages: its sequence is the
floor, below which nothing is left; its body is pairs of first and last sequence.

The checksum starts from the store's `salt`: a record that strayed in from the files of another
stream does not check out. docs/internals/file-format.md has it all, byte by byte.
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

from penstock.hot.records import (
    BATCH,
    MESSAGE,
    MESSAGE_WITH_HEADERS,
    RECORD,
    RECORD_BODY,
    RECORD_BYTES_MIN,
    RECORD_MARK,
    REMOVAL,
    SYNCED,
    U32,
)

FORMAT_VERSION = 1
SEGMENT_MAGIC = b"PENSTOCK"
HEADER_BYTES = 64
ERASE = 1
REPLACES = 1

_HEADER = struct.Struct("<8sHHIQQQQqII")


class Header(NamedTuple):
    """The content of a segment's first bytes."""

    number: int
    covers: int
    """The last segment number whose messages are in this one: compaction merges segments."""
    salt: int
    base_sequence: int
    """This sequence and all below it were given; known even when the messages are gone."""
    floor_sequence: int
    base_time_ns: int
    records_end: int = 0
    """Where the records end, if that was known when the header was written; else 0."""


class Removal(NamedTuple):
    """Removed messages: all below the floor, and the ranges (first, last)."""

    floor_sequence: int
    ranges: tuple[tuple[int, int], ...]
    erase: bool = False


class UnfinishedBatch(NamedTuple):
    """An atomic batch whose end was not found yet."""

    offset: int
    last_sequence: int
    replaces: bool
    """Whether a removal belongs to it, which is then its end."""
    messages_before: int
    removals_before: int
    """The number of messages and removals found before it, and the time of the last message."""
    time_ns_before: int


@dataclass
class Scan:
    """The findings of a walk over the records of a segment."""

    sequences: array[int] = field(default_factory=lambda: array("Q"))
    offsets: array[int] = field(default_factory=lambda: array("I"))
    lengths: array[int] = field(default_factory=lambda: array("I"))
    subjects: list[bytes] = field(default_factory=list)
    removals: list[Removal] = field(default_factory=list)
    first_time_ns: int = 0
    last_time_ns: int = 0
    end: int = 0
    """Where the last good record ends."""
    synced_end: int = 0
    synced_sequence: int = 0
    """Everything before this place, and this sequence, was synced, according to the records."""
    damaged: list[tuple[int, int]] = field(default_factory=list)
    """Stretches of bytes that are not records: offset, length."""
    batch: UnfinishedBatch | None = None
    """The incomplete batch."""

    def begin_batch(self, offset: int, last_sequence: int, *, replaces: bool) -> None:
        """Note that the following messages count together or not at all."""
        self.batch = UnfinishedBatch(
            offset,
            last_sequence,
            replaces,
            len(self.sequences),
            len(self.removals),
            self.last_time_ns,
        )

    def drop_batch(self, batch: UnfinishedBatch) -> None:
        """Forget a batch whose end is missing."""
        for column in (self.sequences, self.offsets, self.lengths, self.subjects):
            del column[batch.messages_before :]
        del self.removals[batch.removals_before :]
        self.last_time_ns = batch.time_ns_before
        self.end = batch.offset


def ranges_above(floor: int, ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the ranges that reach above a floor, joined where they meet."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(pair for pair in ranges if pair[1] >= floor):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return tuple(joined)


def encode_header(header: Header) -> bytes:
    """Return the first `HEADER_BYTES` of a segment."""
    body = _HEADER.pack(
        SEGMENT_MAGIC,
        FORMAT_VERSION,
        0,
        header.salt,
        header.number,
        header.covers,
        header.base_sequence,
        header.floor_sequence,
        header.base_time_ns,
        header.records_end,
        0,
    )[:-4]
    return body + U32.pack(crc32(body))


def decode_header(data: bytes) -> Header | None:
    """Return the header, or None if these are not the first bytes of a segment we know."""
    if len(data) < HEADER_BYTES:
        return None
    magic, version, _, salt, number, covers, base, floor, time_ns, end, checksum = (
        _HEADER.unpack_from(data)
    )
    if magic != SEGMENT_MAGIC or version != FORMAT_VERSION:
        return None
    if checksum != crc32(data[: HEADER_BYTES - 4]):
        return None
    return Header(number, covers, salt, base, floor, time_ns, end)


def encode_removal(removal: Removal, salt: int) -> bytes:
    """Return the record of a removal."""
    pairs = array("Q", [edge for pair in removal.ranges for edge in pair])
    flags = ERASE if removal.erase else 0
    length = RECORD_BYTES_MIN + 8 * len(pairs)
    head = RECORD_BODY.pack(length, RECORD_MARK, REMOVAL, flags, 0, removal.floor_sequence, 0)
    body = head + little_endian(pairs)
    return U32.pack(crc32(body, salt)) + body


def encode_batch(last_sequence: int, salt: int, *, replaces: bool = False) -> bytes:
    """
    Return the record that begins an atomic batch, whose last message has this sequence.

    If it `replaces` others, their removal follows and is part of it.
    """
    flags = REPLACES if replaces else 0
    body = RECORD_BODY.pack(RECORD_BYTES_MIN, RECORD_MARK, BATCH, flags, 0, last_sequence, 0)
    return U32.pack(crc32(body, salt)) + body


def encode_synced(distance: int, last_sequence: int, salt: int) -> bytes:
    """
    Return the record of a sync that has finished.

    Everything up to `distance` bytes before the record was synced, `last_sequence` with it.
    """
    body = RECORD_BODY.pack(RECORD_BYTES_MIN, RECORD_MARK, SYNCED, 0, 0, distance, last_sequence)
    return U32.pack(crc32(body, salt)) + body


def scan(buffer: bytes, salt: int, *, synced_end: int = 0, offset: int = HEADER_BYTES) -> Scan:
    """
    Walk over the records of a segment.

    The walk ends at the first record that does not check out, and before an incomplete batch.
    Before `synced_end` a bad record is damage, not the end: there the walk continues with the next
    good record.
    """
    found = Scan(end=offset)
    last_sequence = 0
    while offset < len(buffer):
        last_sequence, offset = _scan_run(buffer, offset, salt, found, last_sequence)
        if offset == len(buffer) or offset >= synced_end:
            break
        behind = find_record(buffer, offset + 1, salt, last_sequence)
        if behind is None or behind > synced_end:
            found.damaged.append((offset, synced_end - offset))
            break
        found.damaged.append((offset, behind - offset))
        offset = behind
    if found.batch is not None and found.batch.offset >= synced_end:
        found.drop_batch(found.batch)
    return found


def _scan_run(
    buffer: bytes, offset: int, salt: int, found: Scan, last_sequence: int
) -> tuple[int, int]:
    """Add records until one does not check out; return the last sequence and the place."""
    unpack = RECORD.unpack_from
    view = memoryview(buffer)
    limit = len(buffer)
    sequences, offsets = found.sequences.append, found.offsets.append
    lengths, subjects = found.lengths.append, found.subjects.append
    while offset + RECORD_BYTES_MIN <= limit:
        checksum, length, mark, kind, flags, subject_length, sequence, time_ns = unpack(
            buffer, offset
        )
        end = offset + length
        if mark != RECORD_MARK or length < RECORD_BYTES_MIN or end > limit:
            break
        if crc32(view[offset + 4 : end], salt) != checksum:
            break
        if kind == BATCH:
            found.begin_batch(offset, sequence, replaces=bool(flags & REPLACES))
        elif kind == SYNCED:
            found.synced_end = max(found.synced_end, offset - sequence)
            found.synced_sequence = max(found.synced_sequence, time_ns)
        elif kind == REMOVAL:
            found.removals.append(_decode_removal(buffer, offset, end, sequence, flags))
            if found.batch is not None and last_sequence >= found.batch.last_sequence:
                found.batch = None
        elif sequence > last_sequence and kind in (MESSAGE, MESSAGE_WITH_HEADERS):
            sequences(sequence)
            offsets(offset)
            lengths(length)
            subject_at = offset + RECORD_BYTES_MIN
            subjects(buffer[subject_at : subject_at + subject_length])
            if not last_sequence:
                found.first_time_ns = time_ns
            found.last_time_ns = time_ns
            last_sequence = sequence
            batch = found.batch
            if batch is not None and not batch.replaces and sequence >= batch.last_sequence:
                found.batch = None
        else:
            break
        found.end = offset = end
    return last_sequence, offset


def _decode_removal(buffer: bytes, offset: int, end: int, floor: int, flags: int) -> Removal:
    pairs = from_little_endian("Q", buffer[offset + RECORD_BYTES_MIN : end])
    ranges = tuple(zip(pairs[::2], pairs[1::2], strict=True))
    return Removal(floor, ranges, bool(flags & ERASE))


def find_record(buffer: bytes, offset: int, salt: int, above_sequence: int = 0) -> int | None:
    """Return the start of the next good record, at or after an offset."""
    mark = struct.pack("<H", RECORD_MARK)
    view = memoryview(buffer)
    while (at := buffer.find(mark, offset + 8)) >= 0:
        offset = at - 8
        if offset + RECORD_BYTES_MIN > len(buffer):
            return None
        checksum, length, _, kind, _, _, sequence, _ = RECORD.unpack_from(buffer, offset)
        fits = RECORD_BYTES_MIN <= length <= len(buffer) - offset
        if fits and (kind in (REMOVAL, BATCH, SYNCED) or sequence > above_sequence):
            if crc32(view[offset + 4 : offset + length], salt) == checksum:
                return offset
        offset += 1
    return None


def little_endian(values: array[int]) -> bytes:
    """Return the bytes of an array in little-endian order, on any machine."""
    assert array("I").itemsize == 4
    if struct.pack("=H", 1) != struct.pack("<H", 1):  # pragma: no cover - big-endian machines
        values = array(values.typecode, values)
        values.byteswap()
    return values.tobytes()


def from_little_endian(typecode: str, data: bytes) -> array[int]:
    """Return the array stored in some bytes."""
    values: array[int] = array(typecode)
    values.frombytes(data)
    if struct.pack("=H", 1) != struct.pack("<H", 1):  # pragma: no cover - big-endian machines
        values.byteswap()
    return values
