"""
The segment a store is writing.

New records stay in memory as chunks until they are durable, so that they can be written again
elsewhere when the disk fails. A few more stay as a cache, because consumers mostly read recent
messages.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import NamedTuple

from penstock.jetstream.store.block import Block
from penstock.jetstream.store.columns import Places, SubjectColumn
from penstock.jetstream.store.file.disk import File
from penstock.jetstream.store.file.segment import HEADER_BYTES, Removal

OFFSET_MAX = 0xFFFF_FFFF


class TailChunk(NamedTuple):
    """Some records of a segment that are in memory."""

    offset: int
    data: bytes
    last_sequence: int
    """The last sequence of the stream when they were added."""

    @property
    def end(self) -> int:
        """Return the offset after them."""
        return self.offset + len(self.data)


class Tail:
    """A growing segment: its buffered, written and durable parts."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.file: File | None = None
        self.end = HEADER_BYTES
        self.records_end = HEADER_BYTES
        """The end without marks after the last record: nobody waits for marks to be synced."""
        self.written_end = 0
        self.durable_end = 0
        self.full = False
        """Whether the next record goes to another segment."""
        self.removals: list[tuple[int, Removal]] = []
        self.chunks: list[TailChunk] = []
        if block.places is None:
            block.places = Places(array("I"), array("I"))
            block.topics = SubjectColumn([])

    @property
    def durable(self) -> bool:
        """Tell whether everything added would survive a power cut."""
        return self.durable_end >= self.records_end

    def add(self, data: bytes, last_sequence: int) -> int:
        """Add records; return their offset."""
        offset = self.end
        self.chunks.append(TailChunk(offset, data, last_sequence))
        self.end = self.records_end = end = offset + len(data)
        assert end <= OFFSET_MAX, "offsets are 32 bits"
        return offset

    def mark(self, data: bytes, last_sequence: int) -> None:
        """
        Add a record that is not worth a sync of its own.

        It leaves with the next write, or immediately if there is nothing to write. If that fails it
        is left out, and the next write takes its place.
        """
        records_end, is_idle = self.records_end, self.written_end == self.end
        self.add(data, last_sequence)
        self.records_end = records_end
        if is_idle:
            try:
                self.write(b"")
            except OSError:
                self.end = self.chunks.pop().offset

    def write(self, header: bytes) -> None:
        """Write the unwritten part in one write; first a header."""
        assert self.file is not None
        written_end = self.written_end
        assert len(header) == (0 if written_end else HEADER_BYTES)
        if written_end == self.end:
            return
        chunks = self.chunks
        if chunks and chunks[-1].offset > (written_end or HEADER_BYTES):
            self._join_unwritten()
        data = chunks[-1].data if self.end > HEADER_BYTES else b""
        self.file.write(header + data if header else data, written_end)
        self.written_end = self.end

    def _join_unwritten(self) -> None:
        """Make one chunk of the records that are not written yet."""
        chunks, written_end = self.chunks, self.written_end
        first = len(chunks) - 1
        while first and chunks[first - 1].offset >= written_end:
            first -= 1
        data = b"".join([chunk.data for chunk in chunks[first:]])
        chunks[first:] = [TailChunk(chunks[first].offset, data, chunks[-1].last_sequence)]

    def synced(self, end: int) -> int:
        """Note that everything before an offset is durable; return the last sequence in it."""
        assert self.durable_end <= end <= self.written_end
        self.durable_end = end
        covered = bisect_right(self.chunks, end, key=_end)
        return self.chunks[covered - 1].last_sequence if covered else 0

    def trim(self, cache_bytes_max: int) -> None:
        """Drop durable chunks that exceed the cache."""
        keep_from = min(self.durable_end, self.end - cache_bytes_max)
        surplus = 0
        while surplus < len(self.chunks) and self.chunks[surplus].end <= keep_from:
            surplus += 1
        del self.chunks[:surplus]

    def read(self, start: int, end: int) -> bytes:
        """Return bytes, from memory if possible."""
        memory_from = self.chunks[0].offset if self.chunks else self.end
        if start < memory_from:
            assert self.file is not None
            head = self.file.read(start, min(end, memory_from) - start)
            return head if end <= memory_from else head + self.read(memory_from, end)
        index = bisect_right(self.chunks, start, key=_offset) - 1
        chunk = self.chunks[index]
        if end <= chunk.end:
            return chunk.data[start - chunk.offset : end - chunk.offset]
        joined = b"".join(following.data for following in self.chunks[index:])
        return joined[start - chunk.offset : end - chunk.offset]

    def split(self, number: int) -> Tail:
        """Move the part that is not durable to a segment of its own, and return that."""
        block = self.block
        assert block.places is not None
        assert block.topics is not None
        lost_from = bisect_right(block.places.offsets, self.durable_end - 1)
        other = Tail(split_block(block, lost_from, number, self.durable_end - HEADER_BYTES))
        moved = self.durable_end - HEADER_BYTES
        other.chunks = [
            TailChunk(chunk.offset - moved, chunk.data, chunk.last_sequence)
            for chunk in self.chunks
            if chunk.offset >= self.durable_end
        ]
        other.end = self.end - moved
        other.records_end = max(self.records_end - moved, HEADER_BYTES)
        other.full = self.full
        other.removals = [(at - moved, r) for at, r in self.removals if at >= self.durable_end]
        self.removals = [(at, r) for at, r in self.removals if at < self.durable_end]
        self.end = self.records_end = self.written_end = self.durable_end
        self.chunks = []
        self.full = True
        return other


def split_block(block: Block, position: int, number: int, moved: int) -> Block:
    """Cut a block in two at a position; return the second part, moved to the front."""
    assert block.places is not None
    assert block.topics is not None
    assert block.topics.ids is None
    places, table = block.places, block.topics.table
    cut = block.sequence(position) if position < block.total else block.last_sequence + 1
    kept = block.sequence(position - 1) if position else block.first_sequence - 1
    other = Block(number, cut)
    other.last_sequence = block.last_sequence
    other.places = Places(
        array("I", [offset - moved for offset in places.offsets[position:]]),
        places.lengths[position:],
    )
    if places.deltas is not None:
        skipped = cut - block.first_sequence
        other.places.deltas = array("Q", [delta - skipped for delta in places.deltas[position:]])
        other.dense = False
        del places.deltas[position:]
    other.topics = SubjectColumn(table[position:])
    other.first_time_ns, other.last_time_ns = block.first_time_ns, block.last_time_ns
    other.start = max(block.start - position, 0)
    other.live = None if block.live is None else block.live[position:]
    other.scrub = block.scrub
    _measure(other)
    del places.offsets[position:], places.lengths[position:], table[position:]
    block.last_sequence = kept
    block.start = min(block.start, position)
    if block.live is not None:
        del block.live[position:]
    _measure(block)
    return other


def _measure(block: Block) -> None:
    assert block.places is not None
    block.total = len(block.places.lengths)
    block.stored_bytes = sum(block.places.lengths)
    block.recount()


def _offset(chunk: TailChunk) -> int:
    return chunk.offset


def _end(chunk: TailChunk) -> int:
    return chunk.end
