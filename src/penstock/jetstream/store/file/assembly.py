"""Assemble the segments found on disk: which of their messages still exist."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from penstock.errors import StoreError
from penstock.jetstream.store.block import Block
from penstock.jetstream.store.catalog import Catalog
from penstock.jetstream.store.columns import SubjectColumn
from penstock.jetstream.store.file.compression import is_compressed
from penstock.jetstream.store.file.recovery import Loaded, Recovered, floor_sequence
from penstock.jetstream.store.file.segment import HEADER_BYTES
from penstock.jetstream.store.file.segmentfile import segment_path
from penstock.jetstream.store.file.tail import Tail
from penstock.jetstream.store.subjecttable import CountedSubjects

if TYPE_CHECKING:
    from penstock.jetstream.store.file.log import FileLog


def assemble(log: FileLog, found: Recovered, per_subject_max: int, *, goes_on: bool) -> Tail | None:
    """Fill a log's catalog; return the segment to continue, if there is one and it may be."""
    catalog = log.catalog
    tail = None
    for segment in found.segments:
        _add_block(catalog, segment, log.directory)
        is_last = segment is found.segments[-1]
        takes_more = goes_on and is_last and _takes_more(segment, log.settings.segment_bytes_max)
        if takes_more and not _is_compressed(log, segment):
            tail = _reopen(log, segment)
        elif segment.summary is None:
            # After the damage, not over it: somebody may still want to examine it.
            end = segment.records_end if is_last else segment.file_bytes
            log.upkeep.seal_later(segment.block, end, list(segment.removals))
    floor = floor_sequence(found)
    _apply(catalog, _ranges(found, erase=False))
    _apply_erasures(catalog, _ranges(found, erase=True))
    for block in catalog.blocks:
        _cut_below(catalog, block, floor)
    catalog.restore(
        floor,
        last_sequence=_last_sequence(found, floor),
        last_time_ns=_last_time_ns(found),
        lost=found.lost,
    )
    catalog.reset_subjects(per_subject_max)
    for segment in found.segments:
        _tabulate(catalog, segment)
    catalog.settle()
    return tail


def _add_block(catalog: Catalog, segment: Loaded, directory: str) -> None:
    block = segment.block
    if catalog.blocks and block.first_sequence <= catalog.blocks[-1].last_sequence:
        raise StoreError(
            f"`{segment_path(directory, block.number)}` has messages that the segment before it "
            "has too; hint: files of two stores may have been mixed up"
        )
    catalog.blocks.append(block)


def _takes_more(segment: Loaded, segment_bytes_max: int) -> bool:
    # Opening a complete segment again pays only if much fits in: its columns must be read.
    room_from = segment_bytes_max if segment.summary is None else segment_bytes_max // 2
    # A segment written by compaction keeps its trailer from the start: see `recovery`.
    is_original = segment.header.base_sequence < segment.block.first_sequence
    return is_original and segment.block.dense and segment.records_end < room_from


def _is_compressed(log: FileLog, segment: Loaded) -> bool:
    file = log.disk.open(segment_path(log.directory, segment.block.number))
    try:
        return is_compressed(file)
    finally:
        file.close()


def _reopen(log: FileLog, segment: Loaded) -> Tail:
    block = segment.block
    if block.places is None:
        log.cache.load_places(block)
    if block.topics is None:
        log.cache.load_topics(block)
    assert block.topics is not None
    block.topics = SubjectColumn(block.topics.slice(0, block.total))
    log.cache.disown(block)
    tail = Tail(block)
    tail.file = log.disk.open(segment_path(log.directory, block.number))
    if segment.file_bytes != segment.records_end:
        tail.file.truncate(segment.records_end)
    tail.end = tail.records_end = tail.written_end = tail.durable_end = segment.records_end
    tail.removals = [(HEADER_BYTES, removal) for removal in segment.removals]
    return tail


def _ranges(found: Recovered, *, erase: bool) -> list[tuple[int, int]]:
    removals = [removal for segment in found.segments for removal in segment.removals]
    return [pair for removal in removals if removal.erase is erase for pair in removal.ranges]


def _last_sequence(found: Recovered, floor: int) -> int:
    ends = [
        max(s.block.last_sequence, s.header.base_sequence, s.synced_sequence)
        for s in found.segments
    ]
    # A sequence that a removal names was given before, even if it never was a message.
    removals = [removal for segment in found.segments for removal in segment.removals]
    ends += [last for removal in removals for _, last in removal.ranges]
    return max(floor - 1, found.noted.last_sequence, *ends)


def _last_time_ns(found: Recovered) -> int:
    times = [max(s.block.last_time_ns, s.header.base_time_ns) for s in found.segments]
    return max(times, default=0)


def _apply(catalog: Catalog, ranges: list[tuple[int, int]]) -> None:
    """Mark the messages of removal records as gone."""
    singles = sorted(first for first, last in ranges if first == last)
    wide = [pair for pair in ranges if pair[0] != pair[1]]
    for block in catalog.blocks:
        start = bisect_left(singles, block.first_sequence)
        stop = bisect_right(singles, block.last_sequence)
        inside = [
            pair
            for pair in wide
            if pair[0] <= block.last_sequence and pair[1] >= block.first_sequence
        ]
        if block.total and (start < stop or inside):
            _mark(catalog.positioned(block), singles[start:stop], inside)


def _apply_erasures(catalog: Catalog, ranges: list[tuple[int, int]]) -> None:
    """Find the segments that still have the bytes of messages to be erased."""
    for first, last in ranges:
        for block in catalog.blocks:
            if block.total and first <= block.last_sequence and last >= block.first_sequence:
                catalog.positioned(block)
                found = block.position(first) < block.position(last + 1)
                block.scrub = block.scrub or found


def _mark(block: Block, singles: list[int], wide: list[tuple[int, int]]) -> None:
    for first, last in wide:
        block.clear(block.position(first), block.position(last + 1))
    if singles:
        # Compaction dropped most of them: looking each one up would take long.
        gone = set(singles)
        marks = [sequence not in gone for sequence in block.sequences(range(block.total))]
        both = int.from_bytes(bytes(marks), "little") & int.from_bytes(block.marks(), "little")
        block.live = bytearray(both.to_bytes(block.total, "little"))


def _cut_below(catalog: Catalog, block: Block, floor: int) -> None:
    if block.last_sequence < floor:
        block.clear(0, block.total)
    elif block.first_sequence < floor:
        block.clear(0, catalog.positioned(block).position(floor))
    if block.start >= block.total:
        block.count = block.size_bytes = 0
    elif block.start or block.live is not None:
        catalog.placed(block).recount()


def _tabulate(catalog: Catalog, segment: Loaded) -> None:
    block, summary, subjects = segment.block, segment.summary, catalog.subjects
    if not block.count:
        return
    if summary is not None and block.count == block.total and isinstance(subjects, CountedSubjects):
        rows = zip(summary.subjects, summary.last_deltas, summary.counts, strict=True)
        for subject, delta, count in rows:
            subjects.merge(subject, summary.first_sequence + delta, count)
    else:
        catalog.tabulate_block(block)
