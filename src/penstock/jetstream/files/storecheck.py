"""
Check a store that nobody uses, and repair damage that opening it would refuse or cut off.

`check` reads every byte and changes nothing. `repair` only moves data aside and never throws it
away: data that does not check out is kept in files ending in `.lost`. Opening a store repairs the
ordinary damage of a crash by itself; `repair` is for the rest: foreign files, lost headers, a bad
spot in the middle of the last segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.hot.records import RECORD_BYTES_MIN
from penstock.jetstream.consumers.consumerlog import read_log
from penstock.jetstream.consumers.consumerrecords import replay
from penstock.jetstream.store.columns import Places, SubjectColumn, columns_of
from penstock.jetstream.store.file.compression import is_compressed, transparent
from penstock.jetstream.store.file.disk import Disk, read_whole, write_whole
from penstock.jetstream.store.file.recovery import SET_ASIDE, load, mend
from penstock.jetstream.store.file.reserve import NAME as RESERVE
from penstock.jetstream.store.file.segment import (
    HEADER_BYTES,
    Header,
    Removal,
    Scan,
    encode_header,
    encode_removal,
    find_record,
    scan,
)
from penstock.jetstream.store.file.segmentfile import (
    DRAFT,
    PLACES,
    SUMMARY,
    TOPICS,
    read_footer,
    read_header,
    read_header_copy,
    read_part,
    segment_number,
    segment_path,
)
from penstock.jetstream.store.file.trailer import (
    FOOTER_BYTES,
    decode_ids,
    decode_places,
    decode_summary,
    encode_trailer,
    summarize,
)

CONSUMER_LOG = "consumers-"


@dataclass
class StoreReport:
    """The findings in one directory."""

    directory: str
    segments: int = 0
    messages: int = 0
    """Records of messages, whether removed since or not."""
    first_sequence: int = 0
    last_sequence: int = 0
    file_bytes: int = 0
    consumers: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass
class _Segment:
    """A segment, completely read."""

    path: str
    number: int
    header: Header | None
    data: bytes
    found: Scan
    salt: int

    @property
    def ends_clean(self) -> bool:
        """Whether only a trailer follows the last record."""
        return all(offset >= self.found.end for offset, _ in self.found.damaged)


def is_store(names: list[str]) -> bool:
    """Tell whether a directory with these names in it holds messages or consumers."""
    return RESERVE in names or any(
        segment_number(name) is not None or name.startswith(CONSUMER_LOG) for name in names
    )


def check(disk: Disk, directory: str) -> StoreReport:
    """Read everything in a directory, and report what does not check out."""
    report = StoreReport(directory)
    disk = transparent(disk)
    segments = list(_segments(disk, directory))
    previous = 0
    for segment in segments:
        _tally(report, segment)
        report.problems += _faults(disk, segment, is_last=segment is segments[-1])
        sequences = segment.found.sequences
        if sequences and sequences[0] <= previous:
            report.problems.append(f"`{segment.path}`: has messages of the segment before it")
        previous = max(previous, sequences[-1] if sequences else 0)
    for name in disk.names(directory):
        if name.endswith(SET_ASIDE):
            report.problems.append(f"`{directory}/{name}`: bytes that were set aside earlier")
        if name.startswith(CONSUMER_LOG):
            _check_consumers(disk, f"{directory}/{name}", report)
    return report


def _segments(disk: Disk, directory: str) -> Iterator[_Segment]:
    numbers = [n for name in disk.names(directory) if (n := segment_number(name)) is not None]
    headers = {n: read_header(disk, segment_path(directory, n)) for n in numbers}
    salt = next((header.salt for header in headers.values() if header is not None), 0)
    for number, header in headers.items():
        path = segment_path(directory, number)
        data = read_whole(disk, path) or b""
        own_salt = header.salt if header is not None else salt
        found = scan(data, own_salt, synced_end=len(data))
        yield _Segment(path, number, header, data, found, own_salt)


def _tally(report: StoreReport, segment: _Segment) -> None:
    sequences = segment.found.sequences
    report.segments += 1
    report.messages += len(sequences)
    report.file_bytes += len(segment.data)
    if sequences:
        report.first_sequence = report.first_sequence or sequences[0]
        report.last_sequence = max(report.last_sequence, sequences[-1])


def _faults(disk: Disk, segment: _Segment, *, is_last: bool) -> list[str]:
    """Return the faults of a segment, in words."""
    path, found = segment.path, segment.found
    faults = []
    if segment.header is None:
        faults.append(f"`{path}`: the header does not check out")
    elif segment.header.number != segment.number:
        faults.append(f"`{path}`: the header is that of segment {segment.header.number}")
    for offset, length in found.damaged:
        if offset < found.end:
            faults.append(f"`{path}`: {length} bytes at {offset} are damaged")
    faults += _trailer_faults(disk, segment)
    rest = max(len(segment.data) - found.end, 0)
    trailer_start = _footer_end(disk, segment)
    # If more than one short record lies there, it is an older trailer, damaged and replaced.
    if trailer_start is not None and 0 < trailer_start - found.end <= RECORD_BYTES_MIN:
        faults.append(f"`{path}`: {trailer_start - found.end} bytes at {found.end} are damaged")
    if rest and trailer_start is None:
        fate = "opening cuts them off" if is_last else "the records are walked"
        faults.append(f"`{path}`: ends in {rest} bytes that are no record or trailer; {fate}")
    return faults


def _footer_end(disk: Disk, segment: _Segment) -> int | None:
    file = disk.open(segment.path)
    try:
        footer = read_footer(file, segment.salt)
    finally:
        file.close()
    return None if footer is None else footer.records_end


def _trailer_faults(disk: Disk, segment: _Segment) -> list[str]:
    """Compare a trailer with the records."""
    end = _footer_end(disk, segment)
    if end is None:
        return []
    if segment.header is not None and read_header_copy(disk, segment.path) != segment.header:
        return [f"`{segment.path}`: the copy of the header in the trailer is damaged"]
    file = disk.open(segment.path)
    try:
        parts = [read_part(file, segment.salt, part) for part in (SUMMARY, PLACES, TOPICS)]
    finally:
        file.close()
    summary_data, places_data, topics_data = parts
    if summary_data is None or places_data is None or topics_data is None:
        return [f"`{segment.path}`: the trailer is damaged; the records are walked instead"]
    summary = decode_summary(summary_data)
    places = decode_places(places_data, summary.total, dense=summary.dense)
    ids = decode_ids(topics_data, summary.total)
    found_places, _ = columns_of(segment.found)
    same = places.offsets == found_places.offsets and places.lengths == found_places.lengths
    if not same and segment.ends_clean:
        return [f"`{segment.path}`: the trailer does not say what the records say"]
    if any(place >= len(summary.subjects) for place in ids):
        return [f"`{segment.path}`: the trailer names subjects it does not have"]
    return []


def _check_consumers(disk: Disk, path: str, report: StoreReport) -> None:
    found = read_log(disk, path)
    report.consumers += len(replay(found.changes))
    report.problems += found.faults
    if found.torn_bytes:
        report.problems.append(f"`{path}`: the last {found.torn_bytes} bytes are no record")


def repair(disk: Disk, directory: str) -> list[str]:
    """Make a store fit to be opened, and return the repairs."""
    done: list[str] = []
    disk = transparent(disk)
    segments = list(_segments(disk, directory))
    previous = 0
    for segment in segments:
        sequences = segment.found.sequences
        has_records = find_record(segment.data, 0, segment.salt) is not None
        is_foreign = segment.header is not None and segment.header.number != segment.number
        if not has_records and segment.header is None:
            _set_aside(disk, segment, "nothing in it checks out", done)
        elif is_foreign or (sequences and sequences[0] <= previous):
            _set_aside(disk, segment, "it belongs to another place", done)
        else:
            _repair_segment(disk, segment, is_last=segment is segments[-1], done=done)
            previous = max(previous, sequences[-1] if sequences else 0)
    found = load(disk, directory)
    mend(disk, directory, found)
    disk.sync_directory(directory)
    # Missing files cannot be repaired: `check` reports them.
    told = found.faults + found.notes
    return done + [each for each in told if each not in found.missing]


def _set_aside(disk: Disk, segment: _Segment, why: str, done: list[str]) -> None:
    disk.rename(segment.path, segment.path + SET_ASIDE)
    done.append(f"`{segment.path}`: set aside as `{segment.path}{SET_ASIDE}`: {why}")


def _repair_segment(disk: Disk, segment: _Segment, *, is_last: bool, done: list[str]) -> None:
    if is_last and not segment.ends_clean:
        _rewrite(disk, segment, done)
    elif _trailer_faults(disk, segment):
        file = disk.open(segment.path)
        if is_compressed(file):
            # Mending writes it again, uncompressed.
            file.close()
            return
        try:
            # Without a footer the segment is walked, and gets a new trailer.
            file.truncate(len(segment.data) - FOOTER_BYTES)
            file.sync()
        finally:
            file.close()
        done.append(f"`{segment.path}`: the trailer was taken off, the records are walked")


def _rewrite(disk: Disk, segment: _Segment, done: list[str]) -> None:
    """
    Write the last segment again without its damage.

    Opening it would cut it off there. Messages after the damage are saved; removals there are
    ignored, because the messages they made room for may be lost.
    """
    found = segment.found
    hole = min(offset for offset, _ in found.damaged)
    believed = scan(segment.data[:hole], segment.salt).removals
    prefix = [encode_removal(removal, segment.salt) for removal in believed]
    write_whole(disk, segment.path + SET_ASIDE, segment.data)
    records = [
        segment.data[offset : offset + length]
        for offset, length in zip(found.offsets, found.lengths, strict=True)
    ]
    header = segment.header or Header(segment.number, segment.number, segment.salt, 0, 0, 0)
    base_sequence = max([header.base_sequence, *found.sequences[-1:]])
    moved = Scan(sequences=found.sequences, lengths=found.lengths, subjects=found.subjects)
    at = HEADER_BYTES + sum(map(len, prefix))
    for length in found.lengths:
        moved.offsets.append(at)
        at += length
    places, topics = columns_of(moved)
    header = header._replace(base_sequence=base_sequence, records_end=at)
    trailer = _trailer(found, places, topics, removals=tuple(believed), header=header)
    draft = segment.path + DRAFT
    write_whole(disk, draft, b"".join((encode_header(header), *prefix, *records, trailer)))
    disk.rename(draft, segment.path)
    lost = sum(length for _, length in found.damaged)
    forgotten = len(found.removals) - len(believed)
    done.append(
        f"`{segment.path}`: {len(records)} messages saved, {lost} bytes could not be, "
        f"{forgotten} removals forgotten; the original is `{segment.path}{SET_ASIDE}`"
    )


def _trailer(
    found: Scan,
    places: Places,
    topics: SubjectColumn,
    *,
    removals: tuple[Removal, ...],
    header: Header,
) -> bytes:
    first = found.sequences[0] if found.sequences else 1
    times_ns = (found.first_time_ns, found.last_time_ns)
    summary, topics = summarize(first, places, topics, times_ns=times_ns, removals=removals)
    return encode_trailer(
        summary, places, topics, header=header, records_end=header.records_end, salt=header.salt
    )
