"""
Housekeeping of complete segments: write trailers, and win back space.

A segment with few messages left is written again without the others, together with its neighbours
if they are small; so is one with a message to erase. A removal record is copied only while an older
segment still has a record that it removes: without it, that message would come back.

The slow parts run in a thread. They read files that no longer change, and columns and marks from
the time the work was planned.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import NamedTuple

from penstock.hot import decode_messages
from penstock.jetstream.store.block import Block
from penstock.jetstream.store.columns import Places, SubjectColumn
from penstock.jetstream.store.file.disk import Disk, read_whole
from penstock.jetstream.store.file.segment import (
    HEADER_BYTES,
    Header,
    Removal,
    encode_header,
    encode_removal,
)
from penstock.jetstream.store.file.segmentfile import (
    DRAFT,
    PLACES,
    SUMMARY,
    read_header,
    read_part,
    segment_path,
)
from penstock.jetstream.store.file.trailer import (
    decode_places,
    decode_summary,
    encode_trailer,
    summarize,
)
from penstock.jetstream.store.values import Message

DECODE_COUNT = 256
"""Messages to decode at once: the server's own thread has to wait meanwhile."""


class CompactedSegment(NamedTuple):
    """A complete segment, in its state when a compaction was planned."""

    block: Block
    places: Places
    topics: SubjectColumn
    mask: bytes
    """One byte a position, 1 where the message exists."""
    scrub: bool


class Older(NamedTuple):
    """A segment before the compacted ones: enough to tell which records it has."""

    number: int
    first_sequence: int
    last_sequence: int
    total: int
    dense: bool


@dataclass
class Compacted:
    """The result of a compaction."""

    block: Block
    damaged: list[tuple[Block, int]] = field(default_factory=list)
    """Messages that could not be copied: segment, position."""
    removals: tuple[Removal, ...] = ()
    parts: list[bytes] = field(default_factory=list)
    end: int = HEADER_BYTES


def choose(
    blocks: Sequence[Block], segment_bytes_max: int, messages_max: int
) -> tuple[int, int] | None:
    """Return the neighbours to write again as one, as a range; None if there are none."""
    for index, block in enumerate(blocks):
        if _wasteful(block):
            return index, _with_small_neighbours(blocks, index, segment_bytes_max, messages_max)
    for index in range(len(blocks) - 1):
        stop = _with_small_neighbours(blocks, index, segment_bytes_max, messages_max)
        if stop - index > 1:
            return index, stop
    return None


def _wasteful(block: Block) -> bool:
    """Tell whether a segment should be written again, regardless of its neighbours."""
    if block.scrub or (block.total and not block.count):
        return True
    # A shrinking front soon goes as a whole: only holes count.
    return block.live is not None and 2 * block.size_bytes < block.stored_bytes


def _with_small_neighbours(
    blocks: Sequence[Block], index: int, segment_bytes_max: int, messages_max: int
) -> int:
    """Return where to stop when segments from an index on are merged."""
    stop = index + 1
    size_bytes, count = blocks[index].size_bytes, blocks[index].count
    small_bytes = segment_bytes_max // 4
    while stop < len(blocks) and size_bytes < small_bytes:
        size_bytes += blocks[stop].size_bytes
        count += blocks[stop].count
        if blocks[stop].size_bytes >= small_bytes or count > messages_max:
            break
        stop += 1
    return stop


class Sealer:
    """Writes the trailer of a segment that takes no more records."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        block: Block,
        *,
        records_end: int,
        removals: Iterable[Removal],
        salt: int,
    ) -> None:
        assert block.places is not None
        assert block.topics is not None
        self._disk = disk
        self._path = segment_path(directory, block.number)
        self._block = block
        self._places, self._topics = block.places, block.topics
        self._records_end = records_end
        self._removals = tuple(removals)
        self._salt = salt

    def run(self) -> None:
        """Write and sync the trailer."""
        block = self._block
        times_ns = (block.first_time_ns, block.last_time_ns)
        summary, topics = summarize(
            block.first_sequence,
            self._places,
            self._topics,
            times_ns=times_ns,
            removals=self._removals,
        )
        trailer = encode_trailer(
            summary,
            self._places,
            topics,
            header=read_header(self._disk, self._path),
            records_end=self._records_end,
            salt=self._salt,
        )
        file = self._disk.open(self._path)
        try:
            file.truncate(self._records_end)
            file.write(trailer, self._records_end)
            file.sync()
        finally:
            file.close()


class Compactor:
    """Writes neighbouring segments again as one, without removed messages. Any thread."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        sources: Sequence[CompactedSegment],
        older: Sequence[Older],
        *,
        floor_sequence: int,
        salt: int,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._sources = sources
        self._older = older
        self._floor = floor_sequence
        self._salt = salt
        self.path = segment_path(directory, sources[0].block.number)
        self.draft = self.path + DRAFT

    def run(self) -> Compacted:
        """Write the draft, and sync it."""
        first, last = self._sources[0].block, self._sources[-1].block
        block = Block(first.number, first.first_sequence)
        block.covers = last.covers
        out = Compacted(block)
        out.removals = self._removals_needed()
        for removal in out.removals:
            self._add(out, encode_removal(removal, self._salt))
        self._copy_all(out)
        self._write(out)
        return out

    def _header(self, records_end: int) -> Header:
        """Return a header with everything that the headers of the sources say."""
        blocks = [source.block for source in self._sources]
        paths = [segment_path(self._directory, block.number) for block in blocks]
        old = [header for path in paths if (header := read_header(self._disk, path)) is not None]
        return Header(
            number=blocks[0].number,
            covers=blocks[-1].covers,
            salt=self._salt,
            # The last messages may be gone, but their sequences are not given again.
            base_sequence=max([blocks[-1].last_sequence, *(each.base_sequence for each in old)]),
            floor_sequence=max([0, *(each.floor_sequence for each in old)]),
            base_time_ns=max([blocks[-1].last_time_ns, *(each.base_time_ns for each in old)]),
            records_end=records_end,
        )

    def _add(self, out: Compacted, data: bytes) -> None:
        out.parts.append(data)
        out.end += len(data)

    def _copy_all(self, out: Compacted) -> None:
        sequences, offsets, lengths = array("Q"), array("I"), array("I")
        subjects: list[bytes] = []
        times_ns: list[int] = []
        for source in self._sources:
            data = read_whole(self._disk, segment_path(self._directory, source.block.number)) or b""
            kept = list(compress(range(source.block.total), source.mask))
            places = [source.places.offsets[position] for position in kept]
            messages: list[Message | None] = []
            for first in range(0, len(places), DECODE_COUNT):
                batch = places[first : first + DECODE_COUNT]
                messages += decode_messages(data, batch, 0, self._salt)
            for position, offset, message in zip(kept, places, messages, strict=True):
                if message is None:
                    out.damaged.append((source.block, position))
                    continue
                length = source.places.lengths[position]
                sequences.append(message[0])
                offsets.append(out.end)
                lengths.append(length)
                subjects.append(message[2])
                times_ns.append(message[1])
                self._add(out, data[offset : offset + length])
        _describe(out.block, sequences, Places(offsets, lengths), SubjectColumn(subjects), times_ns)

    def _write(self, out: Compacted) -> None:
        block, header = out.block, self._header(out.end)
        assert block.places is not None
        assert block.topics is not None
        summary, block.topics = summarize(
            block.first_sequence,
            block.places,
            block.topics,
            times_ns=(block.first_time_ns, block.last_time_ns),
            removals=out.removals,
        )
        trailer = encode_trailer(
            summary,
            block.places,
            block.topics,
            header=header,
            records_end=out.end,
            salt=self._salt,
        )
        file = self._disk.create(self.draft)
        try:
            file.write(b"".join((encode_header(header), *out.parts, trailer)), 0)
            file.sync()
        finally:
            file.close()
        out.parts.clear()

    def _removals_needed(self) -> tuple[Removal, ...]:
        """Return the removals of records that older segments still have."""
        present = [self._presence(older) for older in self._older]
        floor = self._floor
        needed: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
        for source in self._sources:
            for removal in self._removals_of(source.block):
                floor = max(floor, removal.floor_sequence)
                for pair in removal.ranges:
                    if pair[1] >= self._floor and any(p.meets(*pair) for p in present):
                        needed[removal.erase].append(pair)
        plain = [Removal(floor, tuple(needed[False]))]
        if needed[True]:
            plain.append(Removal(floor, tuple(needed[True]), erase=True))
        return tuple(plain)

    def _presence(self, older: Older) -> Presence:
        if older.dense:
            return Presence(older.first_sequence, older.last_sequence, None)
        try:
            file = self._disk.open(segment_path(self._directory, older.number))
        except FileNotFoundError:
            # The segment was removed meanwhile, with everything in it.
            return Presence(older.first_sequence, older.last_sequence, array("Q"))
        try:
            data = read_part(file, self._salt, PLACES)
        finally:
            file.close()
        deltas = None if data is None else decode_places(data, older.total, dense=False).deltas
        return Presence(older.first_sequence, older.last_sequence, deltas)

    def _removals_of(self, block: Block) -> tuple[Removal, ...]:
        file = self._disk.open(segment_path(self._directory, block.number))
        try:
            data = read_part(file, self._salt, SUMMARY)
        finally:
            file.close()
        if data is None:
            raise OSError(f"the trailer of segment {block.number} is damaged")
        return decode_summary(data).removals


class Presence(NamedTuple):
    """The sequences that have a record in a segment; without deltas, all in between."""

    first: int
    last: int
    deltas: array[int] | None

    def meets(self, first: int, last: int) -> bool:
        """Tell whether some record of the segment lies in a range."""
        if first > self.last or last < self.first:
            return False
        if self.deltas is None:
            return True
        place = bisect_left(self.deltas, max(first - self.first, 0))
        return place < len(self.deltas) and self.first + self.deltas[place] <= last


def _describe(
    block: Block, sequences: array[int], places: Places, topics: SubjectColumn, times_ns: list[int]
) -> None:
    """Fill in a block from the columns of the copied messages."""
    total = len(sequences)
    if total:
        block.first_sequence, block.last_sequence = sequences[0], sequences[-1]
        block.first_time_ns, block.last_time_ns = times_ns[0], times_ns[-1]
    else:
        block.last_sequence = block.first_sequence - 1
    block.dense = block.last_sequence - block.first_sequence + 1 == total
    if not block.dense:
        first = block.first_sequence
        places.deltas = array("Q", [sequence - first for sequence in sequences])
    block.places, block.topics = places, topics
    block.total = block.count = total
    block.size_bytes = block.stored_bytes = sum(places.lengths)
