"""
The trailer of a complete segment: the result of a walk over its records.

    records · summary · places · topics · copy of the header · footer

The footer, at the very end, has the length and the checksum of each part. Start-up reads only the
summary: counts, times, removals, and for each subject its number of messages and its last one.
Places and topics are read when a message is looked for. A trailer is written only after the records
before it were synced, and can always be made again: if it does not check out, the segment is walked
instead.
"""

from __future__ import annotations

import struct
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from penstock.jetstream.store.columns import Places, SubjectColumn
from penstock.jetstream.store.file.segment import (
    FORMAT_VERSION,
    HEADER_BYTES,
    Header,
    Removal,
    encode_header,
    from_little_endian,
    little_endian,
)

FOOTER_MAGIC = b"PENSTAIL"
FOOTER_BYTES = 48

_FOOTER = struct.Struct("<8sHHIIIIIIIII")
_SUMMARY = struct.Struct("<QQqqQQQIII")


@dataclass(frozen=True, kw_only=True)
class Footer:
    """The places of a trailer's parts, and their checksums."""

    records_end: int
    lengths: tuple[int, int, int]
    checksums: tuple[int, int, int]

    @property
    def offsets(self) -> tuple[int, int, int]:
        """Return the starts of summary, places and topics."""
        summary, places, _ = self.lengths
        end = self.records_end
        return end, end + summary, end + summary + places


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The facts about a complete segment that start-up needs."""

    first_sequence: int
    last_sequence: int
    first_time_ns: int
    last_time_ns: int
    stored_bytes: int
    total: int
    removals: tuple[Removal, ...]
    subjects: list[bytes]
    counts: array[int]
    """Messages of each subject, removed or not."""
    last_deltas: array[int]
    """The last sequence of each subject, counted from the first sequence."""

    @property
    def dense(self) -> bool:
        """Tell whether there is a message for every sequence."""
        return self.last_sequence - self.first_sequence + 1 == self.total


def encode_trailer(
    summary: Summary,
    places: Places,
    topics: SubjectColumn,
    *,
    header: Header | None,
    records_end: int,
    salt: int,
) -> bytes:
    """Return the bytes that complete a segment."""
    assert topics.ids is not None
    assert len(places.offsets) == len(places.lengths) == len(topics.ids) == summary.total
    parts = (_encode_summary(summary), _encode_places(places), little_endian(topics.ids))
    footer = _FOOTER.pack(
        FOOTER_MAGIC,
        FORMAT_VERSION,
        0,
        records_end,
        *map(len, parts),
        *(crc32(part, salt) for part in parts),
        FOOTER_BYTES,
        0,
    )[:-4]
    copy = encode_header(header) if header is not None else bytes(HEADER_BYTES)
    return b"".join((*parts, copy, footer, struct.pack("<I", crc32(footer, salt))))


def decode_footer(data: bytes, file_bytes: int, salt: int) -> Footer | None:
    """Return the footer from the last bytes of a complete segment; None without a footer."""
    if len(data) != FOOTER_BYTES:
        return None
    magic, version, _, end, *rest, size, checksum = _FOOTER.unpack(data)
    if magic != FOOTER_MAGIC or version != FORMAT_VERSION or size != FOOTER_BYTES:
        return None
    if checksum != crc32(data[:-4], salt):
        return None
    footer = Footer(
        records_end=end,
        lengths=(rest[0], rest[1], rest[2]),
        checksums=(rest[3], rest[4], rest[5]),
    )
    size_bytes = end + sum(footer.lengths) + HEADER_BYTES + FOOTER_BYTES
    return footer if end >= HEADER_BYTES and size_bytes == file_bytes else None


def _encode_summary(summary: Summary) -> bytes:
    floor = max((removal.floor_sequence for removal in summary.removals), default=0)
    plain, erased = _pairs(summary.removals, erase=False), _pairs(summary.removals, erase=True)
    fixed = _SUMMARY.pack(
        summary.first_sequence,
        summary.last_sequence,
        summary.first_time_ns,
        summary.last_time_ns,
        summary.stored_bytes,
        floor,
        summary.total,
        len(plain),
        len(erased),
        len(summary.subjects),
    )
    columns = (plain, erased, summary.last_deltas, summary.counts)
    lines = b"\n".join(summary.subjects)
    assert lines.count(b"\n") == max(len(summary.subjects) - 1, 0), "a subject is one line"
    return b"".join((fixed, *map(little_endian, columns), lines))


def _pairs(removals: tuple[Removal, ...], *, erase: bool) -> array[int]:
    chosen = (removal for removal in removals if removal.erase is erase)
    return array("Q", [edge for removal in chosen for pair in removal.ranges for edge in pair])


def decode_summary(data: bytes) -> Summary:
    """Return the summary from bytes whose checksum is right."""
    first, last, first_ns, last_ns, stored, floor, total, plain, erased, subjects = (
        _SUMMARY.unpack_from(data)
    )
    cut = _Cutter(data, _SUMMARY.size)
    removals = [Removal(floor, _ranges(cut.take("Q", plain)))] if plain or floor else []
    if erased:
        removals.append(Removal(floor, _ranges(cut.take("Q", erased)), erase=True))
    last_deltas, counts = cut.take("Q", subjects), cut.take("I", subjects)
    return Summary(
        first_sequence=first,
        last_sequence=last,
        first_time_ns=first_ns,
        last_time_ns=last_ns,
        stored_bytes=stored,
        total=total,
        removals=tuple(removals),
        subjects=cut.lines() if subjects else [],
        counts=counts,
        last_deltas=last_deltas,
    )


def _ranges(pairs: array[int]) -> tuple[tuple[int, int], ...]:
    return tuple(zip(pairs[::2], pairs[1::2], strict=True))


class _Cutter:
    """Cuts one column after the other off some bytes."""

    def __init__(self, data: bytes, offset: int) -> None:
        self._data = data
        self._offset = offset

    def take(self, typecode: str, count: int) -> array[int]:
        end = self._offset + count * array(typecode).itemsize
        column = from_little_endian(typecode, self._data[self._offset : end])
        assert len(column) == count, "a summary that checks out is as long as it says"
        self._offset = end
        return column

    def lines(self) -> list[bytes]:
        return self._data[self._offset :].split(b"\n")


def _encode_places(places: Places) -> bytes:
    columns = [places.offsets, places.lengths]
    if places.deltas is not None:
        columns.append(places.deltas)
    return b"".join(map(little_endian, columns))


def decode_places(data: bytes, summary_total: int, *, dense: bool) -> Places:
    """Return offsets, lengths and, unless dense, deltas."""
    cut = _Cutter(data, 0)
    offsets, lengths = cut.take("I", summary_total), cut.take("I", summary_total)
    return Places(offsets, lengths, None if dense else cut.take("Q", summary_total))


def decode_ids(data: bytes, total: int) -> array[int]:
    """Return the index of each message's subject in the table."""
    typecode = {1: "B", 2: "H", 4: "I"}[len(data) // total if total else 1]
    return from_little_endian(typecode, data)


def summarize(
    block_first: int,
    places: Places,
    topics: SubjectColumn,
    *,
    times_ns: tuple[int, int],
    removals: tuple[Removal, ...],
) -> tuple[Summary, SubjectColumn]:
    """Return the summary of a segment from its columns, and its subjects, each once."""
    was_growing = topics.ids is None
    topics = topics.condensed()
    assert topics.ids is not None
    is_each_alone = was_growing and len(topics.table) == len(topics.ids)
    total, deltas = len(topics.ids), places.deltas
    last = range(total) if deltas is None else deltas
    if is_each_alone:
        # As in a bucket that was just filled.
        counts, last_deltas = array("I", [1]) * total, array("Q", last)
    else:
        counts, last_deltas = _by_subject(topics.ids, last, len(topics.table))
    return Summary(
        first_sequence=block_first,
        last_sequence=block_first + last[-1] if total else block_first - 1,
        first_time_ns=times_ns[0],
        last_time_ns=times_ns[1],
        stored_bytes=sum(places.lengths),
        total=total,
        removals=removals,
        subjects=topics.table,
        counts=counts,
        last_deltas=last_deltas,
    ), topics


def _by_subject(
    ids: array[int], deltas: Sequence[int], subjects: int
) -> tuple[array[int], array[int]]:
    """Return the number of messages of each subject, and the last delta of each."""
    counts, last = Counter(ids), dict(zip(ids, deltas, strict=True))
    order = range(subjects)
    return array("I", map(counts.__getitem__, order)), array("Q", map(last.__getitem__, order))
