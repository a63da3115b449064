"""
Read a store's directory: its segments, and the repairs they need.

A segment with a good trailer is trusted. Any other is walked. Synced records must be there: one
that does not check out is damage, and the walk continues after it. That applies to all of every
segment but the last, and to the last one up to the sync that its own records or the reserve report.
After that point, the walk ends at the first record that does not check out: half of a tick must not
count without the other half.

`load` only reads; `mend` changes files, and reports it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from penstock.errors import StoreError
from penstock.hot.records import RECORD_BYTES_MIN
from penstock.jetstream.store.block import Block
from penstock.jetstream.store.columns import columns_of
from penstock.jetstream.store.file.compression import is_compressed
from penstock.jetstream.store.file.disk import Disk, read_whole, write_whole
from penstock.jetstream.store.file.keptids import id_faults
from penstock.jetstream.store.file.reserve import Kept, Noted, Reserve, read_noted
from penstock.jetstream.store.file.segment import (
    Header,
    Removal,
    Scan,
    encode_header,
    find_record,
    scan,
)
from penstock.jetstream.store.file.segmentfile import (
    DRAFT,
    SUMMARY,
    read_footer,
    read_header,
    read_header_copy,
    read_part,
    segment_number,
    segment_path,
)
from penstock.jetstream.store.file.trailer import Summary, decode_summary

SET_ASIDE = ".lost"


@dataclass
class Loaded:
    """One segment, as it was found."""

    header: Header
    block: Block
    removals: tuple[Removal, ...]
    records_end: int
    file_bytes: int
    summary: Summary | None
    """The summary in the trailer; None when the records were walked."""
    synced_sequence: int = 0
    """This sequence and all below it were given, whether their messages can be read or not."""
    synced_end: int = 0
    """The end of the records that are known to be synced."""


@dataclass
class Recovered:
    """A store's directory, as it was found."""

    segments: list[Loaded] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """The usual leftovers of a crash."""
    faults: list[str] = field(default_factory=list)
    """Damage, and missing files."""
    missing: list[str] = field(default_factory=list)
    """Those faults that show only where files are compared with each other."""
    stale: list[str] = field(default_factory=list)
    """Leftover files that can go: drafts, and segments merged into others."""
    torn: Loaded | None = None
    """The last segment, if it ends in bytes that are not a record."""
    headless: list[Loaded] = field(default_factory=list)
    """Segments whose header does not check out, with a substitute header."""
    noted: Noted = field(default_factory=Noted)
    """How far the store was durable, at least."""
    kept: Kept = field(default_factory=Kept)
    """The files of ids that should exist."""
    is_cut: bool = False
    """Whether the last segment was longer."""
    incomplete: str | None = None
    """The last segment's file, if nothing in it checks out."""
    next_number: int = 1
    salt: int | None = None
    lost: int = 0
    compressed: list[str] = field(default_factory=list)
    """Compressed segments whose trailer does not check out."""


def load(disk: Disk, directory: str, salt: int | None = None) -> Recovered:
    """Read a directory, and change nothing. `salt` helps where headers are damaged."""
    found = Recovered()
    names = disk.names(directory)
    found.stale = [f"{directory}/{name}" for name in names if name.endswith(DRAFT)]
    numbers = [number for name in names if (number := segment_number(name)) is not None]
    headers = {number: _read_header(read_header, disk, directory, number) for number in numbers}
    headless = {number for number, header in headers.items() if header is None}
    for number in headless:
        headers[number] = _read_header(read_header_copy, disk, directory, number)
    salts = [header.salt for header in headers.values() if header is not None]
    found.salt = salt if salt in salts or not salts else salts[0]
    found.noted, found.kept = read_noted(disk, directory, found.salt or 0)
    foreign = [n for n, header in headers.items() if header and header.salt != found.salt]
    numbers = [number for number in numbers if number not in foreign]
    found.next_number = max(numbers, default=0) + 1
    covered = 0
    for number in numbers:
        header = headers[number]
        if number <= covered:
            found.stale.append(segment_path(directory, number))
            continue
        _load_segment(
            disk,
            directory,
            number,
            header,
            found,
            is_last=number == numbers[-1],
            is_headless=number in headless,
        )
        covered = max(covered, header.covers if header else number)
    # A number that a merged segment covers is not given again: its file would count as merged too.
    found.next_number = max(found.next_number, covered + 1)
    for segment, following in pairwise(found.segments):
        if segment.summary is None:
            _report_missing(directory, segment, following, found)
        _report_missing_files(directory, segment, following, found, names)
    _report_missing_front(directory, found)
    _report_missing_last(directory, found, names)
    _report_cut(directory, found)
    for number in foreign:
        path = segment_path(directory, number)
        found.missing.append(f"`{path}` is of another stream: left alone")
        found.next_number = max(found.next_number, number + 1)
    if found.salt is not None:
        found.missing += id_faults(disk, directory, found.salt, found.kept)
    found.faults += found.missing
    return found


def report_empty(disk: Disk, directory: str, found: Recovered) -> None:
    """Report a directory without any file: a store has at least its reserve, or a segment."""
    if not disk.names(directory):
        fault = f"`{directory}` is missing or empty, and all messages with it"
        found.missing.append(fault)
        found.faults.append(fault)
        found.lost += 1


def floor_sequence(found: Recovered) -> int:
    """Return the sequence below which nothing is left, according to the records."""
    floors = [segment.header.floor_sequence for segment in found.segments]
    for segment in found.segments:
        floors += [removal.floor_sequence for removal in segment.removals]
    return max(floors, default=1) or 1


def _report_missing_front(directory: str, found: Recovered) -> None:
    """
    Report messages missing before the first: the recorded floor should be a message.

    They do not count as lost: a purge on a failing disk removes files before it is recorded.
    """
    given = max((s.header.base_sequence for s in found.segments), default=-1)
    first = next((s.block.first_sequence for s in found.segments if s.block.total), given + 1)
    floor = floor_sequence(found)
    if floor < first and not found.lost:
        found.missing.append(f"`{directory}`: messages {floor} to {first - 1} are missing")


def _report_missing_last(directory: str, found: Recovered, names: list[str]) -> None:
    last = found.noted.number
    if last >= found.next_number and not _is_set_aside(last, names):
        path = segment_path(directory, last)
        found.missing.append(f"`{path}` is missing, and the last messages with it")
        found.lost += _lost_at_end(found)
        found.next_number = last + 1


def _report_cut(directory: str, found: Recovered) -> None:
    """Report a last segment that was longer: no power cut takes what was durable."""
    noted, end, durable_end = found.noted, 0, 0
    path = segment_path(directory, noted.number)
    last = found.segments[-1] if found.segments else None
    if found.incomplete == path:
        durable_end = noted.end
    elif last is not None and last.summary is None:
        path, end = segment_path(directory, last.block.number), last.records_end
        noted_end = noted.end if last.block.number == noted.number else 0
        durable_end = max(noted_end, last.header.records_end)
    found.is_cut = end < durable_end
    if found.is_cut:
        lost = _lost_at_end(found)
        found.missing.append(
            f"`{path}` was cut short: {durable_end - end} bytes at its end are missing, and up to "
            f"{lost} messages with them"
        )
        found.lost += lost


def _lost_at_end(found: Recovered) -> int:
    """Return how many messages are missing at the end, at most."""
    noted = found.noted
    left = max([floor_sequence(found) - 1, *(s.block.last_sequence for s in found.segments)])
    return max(min(noted.last_sequence - left, noted.messages), 0)


def _is_set_aside(number: int, names: list[str]) -> bool:
    return segment_path("", number)[1:] + SET_ASIDE in names


def _read_header(
    read: Callable[[Disk, str], Header | None], disk: Disk, directory: str, number: int
) -> Header | None:
    header = read(disk, segment_path(directory, number))
    return header if header is not None and header.number == number else None


def _load_segment(
    disk: Disk,
    directory: str,
    number: int,
    header: Header | None,
    found: Recovered,
    *,
    is_last: bool,
    is_headless: bool,
) -> None:
    path = segment_path(directory, number)
    if is_headless:
        _note_compressed(disk, path, found)
    if header is not None:
        summarized = _by_trailer(disk, path, header)
        if is_headless:
            found.faults.append(f"`{path}`: the header is damaged, its copy takes its place")
        if summarized is not None:
            if is_headless:
                found.headless.append(summarized)
            found.segments.append(summarized)
            return
    data = read_whole(disk, path) or b""
    if not is_headless:
        _note_compressed(disk, path, found)
    header = header or _guess_header(number, data, found, is_last=is_last, path=path)
    if header is None:
        return
    noted_end = found.noted.end if number == found.noted.number else 0
    walked = _walk_last(data, header.salt, noted_end) if is_last else _walk(data, header.salt)
    segment = _by_walk(header, walked, len(data))
    if walked.damaged:
        _report_damage(path, header, walked, found)
    if is_last and walked.end < len(data):
        found.torn = segment
        if len(data) - walked.end > RECORD_BYTES_MIN:
            # No note for the record of a sync: it is not synced itself.
            found.notes.append(_describe_torn(path, data, walked, header.salt))
    if is_headless:
        found.headless.append(segment)
    found.segments.append(segment)


def _walk(data: bytes, salt: int) -> Scan:
    return scan(data, salt, synced_end=len(data))


def _walk_last(data: bytes, salt: int, noted_end: int) -> Scan:
    """Walk the segment that was being written; what was synced tells if a bad spot is damage."""
    strict = scan(data, salt)
    if strict.end == len(data):
        return strict
    synced_end = max(_walk(data, salt).synced_end, min(noted_end, len(data)))
    return scan(data, salt, synced_end=synced_end)


def _note_compressed(disk: Disk, path: str, found: Recovered) -> None:
    file = disk.open(path)
    try:
        if is_compressed(file):
            found.compressed.append(path)
    finally:
        file.close()


def _by_trailer(disk: Disk, path: str, header: Header) -> Loaded | None:
    file = disk.open(path)
    try:
        size = file.size()
        footer = read_footer(file, header.salt)
        data = read_part(file, header.salt, SUMMARY)
    finally:
        file.close()
    if footer is None or data is None:
        return None
    summary = decode_summary(data)
    block = Block(header.number, summary.first_sequence)
    block.covers = header.covers
    block.last_sequence = summary.last_sequence
    block.first_time_ns, block.last_time_ns = summary.first_time_ns, summary.last_time_ns
    block.total = block.count = summary.total
    block.size_bytes = block.stored_bytes = summary.stored_bytes
    block.dense = summary.dense
    return Loaded(header, block, summary.removals, footer.records_end, size, summary)


def _by_walk(header: Header, walked: Scan, file_bytes: int) -> Loaded:
    first = walked.sequences[0] if walked.sequences else header.base_sequence + 1
    block = Block(header.number, first)
    block.covers = header.covers
    block.places, block.topics = columns_of(walked)
    block.dense = block.places.deltas is None
    block.last_sequence = walked.sequences[-1] if walked.sequences else first - 1
    block.first_time_ns, block.last_time_ns = walked.first_time_ns, walked.last_time_ns
    block.total = block.count = len(walked.sequences)
    block.size_bytes = block.stored_bytes = sum(walked.lengths)
    removals = tuple(walked.removals)
    return Loaded(
        header,
        block,
        removals,
        walked.end,
        file_bytes,
        summary=None,
        synced_sequence=walked.synced_sequence,
        synced_end=walked.synced_end,
    )


def _guess_header(
    number: int, data: bytes, found: Recovered, *, is_last: bool, path: str
) -> Header | None:
    """Return a substitute for a damaged header; None if the segment has no records."""
    salt = found.salt
    first = None if salt is None else find_record(data, 0, salt)
    if first is None or salt is None:
        if not is_last:
            raise StoreError(
                f"`{path}` is no segment of this store, or its header is damaged and no record "
                "in it checks out; hint: `penstock store repair` sets it aside"
            )
        was_written = found.noted.number == number and found.noted.end
        why = "nothing in it checks out" if was_written else "it was never completely written"
        found.notes.append(f"`{path}` is set aside: {why}")
        found.incomplete = path
        return None
    found.faults.append(f"`{path}`: the header is damaged, the records are walked")
    last = found.segments[-1].block.last_sequence if found.segments else 0
    return Header(number, number, salt, last, 0, 0)


def _report_damage(path: str, header: Header, walked: Scan, found: Recovered) -> None:
    # The trailer follows the last record of a complete segment.
    damaged = [(offset, length) for offset, length in walked.damaged if offset < walked.end]
    for offset, length in damaged:
        found.faults.append(f"`{path}`: {length} bytes at {offset} are damaged")
    lost = sum(length > RECORD_BYTES_MIN for _, length in damaged)
    sequences = walked.sequences
    if sequences and header.base_sequence < sequences[0]:
        # Where nothing was skipped, each missing sequence is a damaged message.
        last = max(sequences[-1], walked.synced_sequence)
        known = [each.removals for each in found.segments] + [tuple(walked.removals)]
        there = [(sequence, sequence) for sequence in sequences]
        there += [pair for removals in known for each in removals for pair in each.ranges]
        # Below the floor nothing is left, and a purge may have moved it past the last message.
        floor = max((each.floor_sequence for removals in known for each in removals), default=0)
        missing = _without(max(sequences[0], floor), last, there)
        lost = max(lost, sum(end - start + 1 for start, end in missing))
    found.lost += lost


def _report_missing(directory: str, segment: Loaded, following: Loaded, found: Recovered) -> None:
    """Report messages missing at the end of a segment, according to the next one."""
    path = segment_path(directory, segment.block.number)
    block = segment.block
    if segment.header.records_end:
        # Compaction leaves gaps, so sequences say nothing.
        if segment.records_end < segment.header.records_end:
            found.faults.append(f"`{path}` has lost its end, and maybe messages with it")
            found.lost += 1
        return
    removals = [removal for each in found.segments for removal in each.removals]
    floor = max((removal.floor_sequence for removal in removals), default=0)
    first = max(block.last_sequence, segment.header.base_sequence, floor - 1) + 1
    last = min(following.header.base_sequence, following.block.first_sequence - 1)
    missing = _without(first, last, [pair for removal in removals for pair in removal.ranges])
    if missing:
        span = f"{missing[0][0]} to {missing[-1][1]}"
        found.faults.append(f"`{path}`: messages {span} are missing")
        found.lost += sum(end - start + 1 for start, end in missing)


def _report_missing_files(
    directory: str, segment: Loaded, following: Loaded, found: Recovered, names: list[str]
) -> None:
    """Report the files between two segments, if they are gone and messages with them."""
    first, last = segment.header.covers + 1, following.header.number - 1
    known = max(segment.block.last_sequence, floor_sequence(found) - 1)
    lost = following.block.first_sequence - 1 - known
    if first <= last and lost > 0 and not _is_set_aside(first, names):
        paths = f"`{segment_path(directory, first)}` to `{segment_path(directory, last)}`"
        found.missing.append(f"{paths} are missing, and up to {lost} messages with them")
        found.lost += lost


def _without(first: int, last: int, removed: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the rest of a range, as ranges; a gap may be far too wide to list."""
    left = []
    for start, end in sorted(removed):
        if start > last:
            break
        if first < start:
            left.append((first, start - 1))
        first = max(first, end + 1)
    return [*left, (first, last)] if first <= last else left


def _describe_torn(path: str, data: bytes, walked: Scan, salt: int) -> str:
    dropped = len(data) - walked.end
    note = f"`{path}`: the last {dropped} bytes are no complete record: dropped"
    if find_record(data, walked.end + 1, salt) is not None:
        note += f"; records behind them are set aside in `{path}{SET_ASIDE}`"
    return note


def mend(disk: Disk, directory: str, found: Recovered) -> None:
    """Cut off a torn tail, write missing headers, and remove leftovers."""
    torn = found.torn
    if torn is not None:
        path = segment_path(directory, torn.block.number)
        data = read_whole(disk, path) or b""
        if find_record(data, torn.records_end + 1, torn.header.salt) is not None:
            write_whole(disk, path + SET_ASIDE, data[torn.records_end :])
        file = disk.open(path)
        try:
            file.truncate(torn.records_end)
            file.sync()
        finally:
            file.close()
        torn.file_bytes = torn.records_end
    for path in found.compressed:
        # A damaged compressed file cannot be mended in place: from now on it is uncompressed.
        write_whole(disk, path + DRAFT, read_whole(disk, path) or b"")
        disk.rename(path + DRAFT, path)
    for segment in found.headless:
        _write_header(disk, directory, segment.header)
    if found.incomplete is not None:
        disk.rename(found.incomplete, found.incomplete + SET_ASIDE)
    if found.is_cut:
        reserve = Reserve(disk, directory, 0, found.salt or 0)
        reserve.kept = found.kept
        reserve.forget_end(found.noted.last_sequence)
        found.noted = reserve.noted
    for path in found.stale:
        disk.remove(path)


def _write_header(disk: Disk, directory: str, header: Header) -> None:
    file = disk.open(segment_path(directory, header.number))
    try:
        file.write(encode_header(header), 0)
        file.sync()
    finally:
        file.close()


def secure(disk: Disk, directory: str, found: Recovered) -> None:
    """
    Make the found records durable: a killed server may not have synced them.

    They are written again, because a sync may have failed before: Linux then takes the data for
    written, and the next sync succeeds without it.
    """
    if found.segments and found.segments[-1].summary is None:
        last = found.segments[-1]
        file = disk.open(segment_path(directory, last.block.number))
        try:
            file.write(
                file.read(last.synced_end, last.records_end - last.synced_end), last.synced_end
            )
            file.sync()
        finally:
            file.close()
        disk.sync_directory(directory)
