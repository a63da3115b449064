"""
A stream on disk: a directory of append-only segments.

The rules that make an acknowledgement reliable:

1. Records go to one file at a time, in order. The next segment's file is made only after the last
   one is synced. So a crash leaves everything up to some record, at least everything synced, and
   nothing after it.
2. `flush` writes; the work it returns syncs, and covers everything written before it began. There
   is one such work at a time: with two, one could swallow the error of the other.
3. Records stay in memory until they are durable. After a failed write or sync nobody knows the
   content of the file after its last good sync (Linux reports a failed fsync once and then forgets
   the pages), so the file is cut off there, and the records in memory are written to a new segment.
   Until that is synced, appends are refused. No sequence is given twice, and no message is taken
   back. A store that `takes_back` does the opposite: it takes all of them back and continues with
   the rest (`retreat`).
4. Only a durable message replaces another: the file of a dropped or compacted segment is removed
   only once everything appended before is synced, because a limit may have dropped it in favour of
   a message not yet on disk. The exception is a purge while the disk is failing, of a store that
   takes nothing back: the disk may be full, and a purge makes room. If everything was purged,
   messages that never reached the disk are left out, and the record of the purge takes the place of
   the reserve.
5. A trailer is written only after synced records. It repeats what they say; without it they are
   walked.
6. Removals are records too, in the same order as the messages. So is the beginning of an atomic
   batch: if a crash cuts a batch off, the stream ends before it. A message that replaces others is
   such a batch, together with their removal; nothing is written between the two, so that no sync
   can cover only the first.
7. A finished sync is recorded too, to tell damage in synced data from the torn end of unsynced
   data. That record itself waits for no sync.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter

from penstock.errors import StoreError, reason
from penstock.hot import decode_messages, encode_records
from penstock.hot.records import record_bytes
from penstock.jetstream.store.block import Block
from penstock.jetstream.store.catalog import Catalog
from penstock.jetstream.store.file.assembly import assemble
from penstock.jetstream.store.file.compression import transparent
from penstock.jetstream.store.file.disk import Disk, File
from penstock.jetstream.store.file.keptids import KeptIds, ids_of, segment_messages
from penstock.jetstream.store.file.progress import FileProgress
from penstock.jetstream.store.file.recovery import Recovered, load, mend, report_empty, secure
from penstock.jetstream.store.file.reserve import Reserve
from penstock.jetstream.store.file.segment import (
    HEADER_BYTES,
    Header,
    Removal,
    encode_batch,
    encode_header,
    encode_removal,
    encode_synced,
)
from penstock.jetstream.store.file.segmentcache import SegmentCache
from penstock.jetstream.store.file.segmentfile import segment_path, stretches
from penstock.jetstream.store.file.tail import Tail
from penstock.jetstream.store.file.upkeep import Upkeep
from penstock.jetstream.store.log import LogOptions
from penstock.jetstream.store.retreat import cut, probe
from penstock.jetstream.store.store import Store
from penstock.jetstream.store.values import (
    Entry,
    Findings,
    Independent,
    Known,
    Message,
    StoreLimits,
    Work,
    complete,
)

PROBE_BYTES_MAX = 1024 * 1024
"""The most bytes to write when testing whether the disk takes messages again."""

RECLAIM_BYTES_MIN = 1024 * 1024
"""An empty segment is given up once it is this large."""

_subject = _sequence = itemgetter(0)
"""Each is the first field: of an entry, and of a message."""


@dataclass(frozen=True, kw_only=True)
class FileSettings:
    """The bounds of a file store."""

    segment_bytes_max: int = 32 * 1024 * 1024
    segment_messages_max: int = 256 * 1024
    compressed_segment_bytes_max: int = 8 * 1024 * 1024
    """The same for compressed streams: only complete segments are compressed."""
    index_bytes_max: int = 64 * 1024 * 1024
    """Memory for finding messages in complete segments, per stream."""
    tail_bytes_max: int = 256 * 1024
    """Memory for recent messages, per stream, besides those not yet durable."""
    write_ahead_bytes: int = 64 * 1024
    """Data collected during a sync is written once it reaches this size."""
    reserve_bytes: int = 16 * 1024
    """Room kept for the record of a purge on a full disk, per stream; 0 keeps none."""
    files_max: int = 16
    """Open files of complete segments, per stream."""


def open_file_store(
    disk: Disk,
    directory: str,
    *,
    limits: StoreLimits | None = None,
    salt: int = 0,
    settings: FileSettings | None = None,
    is_new: bool = True,
) -> tuple[Store, Findings]:
    """
    Open the store in a directory, or make one; return it with its condition.

    `salt` tells streams apart:
    files with another salt are ignored. If it is not `is_new`, its files should be there.
    """
    disk = transparent(disk)
    disk.make_directory(directory)
    limits = limits or StoreLimits()
    found = load(disk, directory, salt)
    if not is_new:
        report_empty(disk, directory, found)
    if salt and found.salt not in (None, salt):
        raise StoreError(
            f"`{directory}` has the messages of another stream; "
            "hint: put the `messages` directory of this stream back"
        )
    mend(disk, directory, found)
    with suppress(OSError):
        secure(disk, directory, found)
    salt = salt if found.salt is None else found.salt
    log = FileLog(disk, directory, salt=salt, settings=settings or FileSettings())
    tail = assemble(log, found, limits.messages_per_subject_max, goes_on=True)
    log.start(found, tail)
    if log.reserve.is_missing:
        with suppress(OSError):
            log.reserve.keep()
    return Store(log, limits, record_bytes), Findings(found.faults, found.notes)


class Sync(Independent):
    """The work that makes written records durable."""

    def __init__(self, log: FileLog, file: File, directory: str | None) -> None:
        self._log = log
        self._file = file
        self._directory = directory
        self.is_first = directory is not None
        """Whether it is the first of a segment, whose name has to become durable too."""
        self.recovers = log.progress.failure is not None
        self.covers: tuple[int, int] = log.written
        self._overdue = log.upkeep.overdue()
        self._overdue_error: Exception | None = None

    def run(self) -> None:
        """Return once it would survive a power cut."""
        # One read of one attribute: the loop may be writing meanwhile.
        self.covers = self._log.written
        self._file.sync()
        if self._directory is not None:
            self._log.disk.sync_directory(self._directory)
        if self._overdue is not None:
            try:
                self._overdue.run()
            except Exception as error:
                self._overdue_error = error

    def finish(self, error: Exception | None = None) -> None:
        """Move `durable_sequence` up, or mark the store as failed."""
        try:
            if self._overdue is not None:
                self._overdue.finish(error or self._overdue_error)
        finally:
            # Even if housekeeping fails: a sync that does not end would be the last one.
            self._log.synced(self, error)


class FileLog:
    """Writes and reads the segments of one stream. The catalog does the counting."""

    def __init__(self, disk: Disk, directory: str, *, salt: int, settings: FileSettings) -> None:
        self.disk = disk
        self.directory = directory
        self.settings = settings
        self.salt = salt
        self.options = LogOptions()
        self.refused_bytes = 0
        """The bytes that could not be written, after a failure."""
        self.reserve = Reserve(disk, directory, settings.reserve_bytes, salt)
        self.kept = KeptIds(disk, directory, salt, self.reserve)
        """The ids of messages that are not in any segment any more."""
        self.found_sequence = 0  # The last message when the store was opened.
        self.written = (0, 0)
        """The written part: end in the file of the first tail, and position."""
        self.cache = SegmentCache(
            disk,
            directory,
            salt=salt,
            memory_bytes_max=settings.index_bytes_max,
            files_max=settings.files_max,
        )
        self.catalog = Catalog(self.cache)
        self.progress = FileProgress(self.catalog)
        self.tails: list[Tail] = []
        """Segments that are not complete and durable, in order; the last one takes records."""
        self.upkeep = Upkeep(self)
        self._next_number = 1
        self._floor_durable = 1
        self._write_ahead_bytes = settings.write_ahead_bytes
        self._sync: Sync | None = None
        self._replacing = False
        """Whether the last batch still waits for its removal."""

    def start(self, found: Recovered, tail: Tail | None) -> None:
        """Continue after the segments found on disk; `tail` takes the next records."""
        self._next_number = found.next_number
        self.reserve.noted, self.reserve.kept = found.noted, self.kept.numbers
        self._floor_durable = self.catalog.first_sequence
        self.progress.durable_sequence = self.found_sequence = self.catalog.last_sequence
        if tail is not None:
            self.tails.append(tail)

    @property
    def segment_bytes_max(self) -> int:
        """Return the maximum size of a segment."""
        settings = self.settings
        if not self.options.compresses:
            return settings.segment_bytes_max
        return min(settings.segment_bytes_max, settings.compressed_segment_bytes_max)

    def append(
        self,
        first_sequence: int,
        entries: Sequence[Entry],
        *,
        is_atomic: bool = False,
        replaces: bool = False,
    ) -> None:
        """Buffer messages and tell the catalog."""
        progress, catalog = self.progress, self.catalog
        if progress.failure is not None:
            raise StoreError(progress.failure)
        tail = self.tails[-1] if self.tails else None
        if (
            tail is None
            or tail.full
            or self._replacing
            or tail.block.last_sequence + 1 != first_sequence
        ):
            tail = self._tail_from(first_sequence)
        last_sequence = first_sequence + len(entries) - 1
        if is_atomic or replaces:
            self._begin_batch(tail, last_sequence, replaces=replaces)
        data, lengths = encode_records(first_sequence, entries, self.salt)
        offset = tail.add(data, last_sequence)
        progress.position += len(data)
        block = tail.block
        if not block.total:
            block.first_time_ns = entries[0][3]
        block.last_time_ns = entries[-1][3]
        catalog.append(block, offset, list(map(_subject, entries)), lengths)
        if tail.end - tail.written_end >= self._write_ahead_bytes and not replaces:
            self._write_ahead()

    def _write_ahead(self) -> None:
        """Write the buffer while the disk is busy, so that the next sync has less to wait for."""
        if self._sync is not None and self.progress.failure is None:
            try:
                self._write()
            except OSError as error:
                self._fail(error)

    def _begin_batch(self, tail: Tail, last_sequence: int, *, replaces: bool) -> None:
        data = encode_batch(last_sequence, self.salt, replaces=replaces)
        tail.add(data, self.catalog.last_sequence)
        self.progress.position += len(data)
        self._replacing = replaces

    def _tail_from(self, sequence: int) -> Tail:
        """Return the tail that takes the message with this sequence, where that is not plain."""
        blocks = self.catalog.blocks
        has_gap = blocks and blocks[-1].last_sequence + 1 != sequence
        if has_gap or self._replacing:
            # A purge moved the sequence on: that is recorded before the gap shows.
            self._note_removals()
        tail = self.tails[-1] if self.tails else None
        if tail is None or tail.full:
            return self._new_tail(sequence)
        block = tail.block
        if not block.total:
            block.first_sequence, block.last_sequence = sequence, sequence - 1
        elif block.last_sequence + 1 != sequence and not block.count:
            # All its messages were purged: its file can go once another has begun.
            tail.full = True
            return self._new_tail(sequence)
        elif block.last_sequence + 1 != sequence:
            block.leave_gap(sequence)
        return tail

    def _new_tail(self, sequence: int) -> Tail:
        tail = Tail(Block(0, sequence))
        self.tails.append(tail)
        self.catalog.add_block(tail.block)
        return tail

    def fetch(self, block: Block, positions: Sequence[int]) -> list[Message | None]:
        """Return messages of one block; None for each whose bytes are damaged."""
        places = block.places
        assert places is not None
        if len(positions) == 1:
            return [self.fetch_one(block, positions[0])]
        self.cache.touch(block)
        if isinstance(positions, range):
            offsets: Sequence[int] = places.offsets[positions.start : positions.stop]
            lengths: Sequence[int] = places.lengths[positions.start : positions.stop]
        else:
            offsets = [places.offsets[position] for position in positions]
            lengths = [places.lengths[position] for position in positions]
        messages: list[Message | None] = []
        for first, stop in stretches(offsets, lengths):
            start, end = offsets[first], offsets[stop - 1] + lengths[stop - 1]
            data = self._bytes(block, start, end)
            messages += decode_messages(data, offsets[first:stop], start, self.salt)
        expected = block.sequences(positions)
        whole = list(filter(None, messages))
        if len(whole) == len(messages) and list(map(_sequence, whole)) == expected:
            return messages
        pairs = zip(messages, expected, strict=True)
        return [m if m is not None and m[0] == sequence else None for m, sequence in pairs]

    def fetch_one(self, block: Block, position: int) -> Message | None:
        """Return one message. A get of a key does only this, so it has to be quick."""
        places = block.places
        assert places is not None
        self.cache.touch(block)
        offset = places.offsets[position]
        data = self._bytes(block, offset, offset + places.lengths[position])
        message = decode_messages(data, (0,), 0, self.salt)[0]
        if message is None or message[0] != block.sequence(position):
            return None
        return message

    def _bytes(self, block: Block, start: int, end: int) -> bytes:
        try:
            for tail in self.tails:
                if tail.block is block:
                    return tail.read(start, end)
            return self.cache.file(block).read(start, end - start)
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> StoreError:
        return StoreError(f"cannot read from `{self.directory}`: {error}")

    def gone_ids(self) -> list[Known]:
        """Return the ids of messages that are not in any of the catalog's blocks any more."""
        found = ids_of(self.gone_messages())
        try:
            # Last: the ids of a segment are saved before its file goes.
            return found + self.kept.read()
        except OSError as error:
            raise self._unreadable(error) from error

    def gone_messages(self) -> Iterator[Message]:
        """Return the messages of empty segments whose files still exist."""
        going = [*self.catalog.emptied, *self.upkeep.going]
        for path in [segment_path(self.directory, each.number) for each in going if each.number]:
            try:
                yield from segment_messages(self.disk, path, self.salt)
            except OSError as error:
                raise self._unreadable(error) from error

    def flush(self) -> Work | None:
        """Write the buffer; return the work that makes it durable."""
        try:
            catalog = self.catalog
            if self._replacing or catalog.has_removals:
                self._note_removals()
            if catalog.emptied:
                self.upkeep.doom(catalog.take_emptied())
            self.retire()
            if not self.tails:
                return None
            if self.progress.failure is not None:
                if self._sync is not None:
                    return None
                self._salvage()
                if not catalog.messages:
                    self._leave_out_purged()
                    self.upkeep.doom(catalog.take_emptied())
            self._write()
        except Exception as error:
            # Unforeseen errors too: the content of the file is then just as unknown (rule 3).
            self._fail(error)
            return self.flush() if self._frees_room() and self.reserve.give() else None
        return self._start_sync()

    def _frees_room(self) -> bool:
        """Tell whether the unwritten records are a purge that makes room."""
        return not self.catalog.messages or (self.options.takes_back and bool(self.upkeep.going))

    def mark(self) -> int:
        """Return the position behind everything appended and removed so far."""
        self._note_removals()
        return self.progress.position

    def retreat(self) -> FileLog:
        """Cut off records that are not durable, and return the remaining log. Any thread."""
        for tail in self.tails:
            cut(self.disk, self.directory, tail)
        found = load(self.disk, self.directory, self.salt)
        mend(self.disk, self.directory, found)
        log = FileLog(self.disk, self.directory, salt=self.salt, settings=self.settings)
        # Not to the file that failed, which may be the trouble.
        assemble(log, found, self.catalog.subjects.per_subject_max, goes_on=False)
        log.start(found, None)
        progress = self.progress
        log.options = self.options
        log.progress.failure = progress.failure
        dirty_bytes = progress.position - progress.durable_position
        log.refused_bytes = min(max(dirty_bytes, 1), PROBE_BYTES_MAX)
        log.progress.position = log.progress.durable_position = progress.position
        return log

    def probe(self) -> None:
        """Raise OSError if the disk does not take as much as it refused. Any thread."""
        probe(self.disk, self.directory, self.refused_bytes)

    def _note_removals(self) -> None:
        removals = self.catalog.take_removals()
        if self._replacing and not removals:
            # There was nothing to replace, but the batch ends only with a removal.
            removals = [Removal(self.catalog.first_sequence, ())]
        self._replacing = False
        for removal in removals:
            self._note_removal(self._tail_for_removal(), removal)

    def _note_removal(self, tail: Tail, removal: Removal) -> None:
        data = encode_removal(removal, self.salt)
        tail.removals.append((tail.add(data, self.catalog.last_sequence), removal))
        self.progress.position += len(data)

    def _tail_for_removal(self) -> Tail:
        tail = self.tails[-1] if self.tails else None
        if tail is not None and not tail.full:
            block = tail.block
            if block.count or block.stored_bytes < RECLAIM_BYTES_MIN or not tail.durable:
                return tail
            tail.full = True
        fresh = self._new_tail(self.catalog.last_sequence + 1)
        self.catalog.settle()
        return fresh

    def _write(self) -> None:
        """Write to the first tail; the next one has to wait until that is durable."""
        tail = self.tails[0]
        if tail.file is None:
            self._create_file(tail)
        tail.write(b"" if tail.written_end else encode_header(self._header(tail)))
        position = self.progress.position
        if len(self.tails) > 1:
            position -= sum([later.end - HEADER_BYTES for later in self.tails[1:]])
        self.written = (tail.written_end, position)
        has_many = tail.block.total >= self.settings.segment_messages_max
        if has_many or tail.end >= self.segment_bytes_max:
            tail.full = True

    def _create_file(self, tail: Tail) -> None:
        if not tail.block.number:
            tail.block.number = tail.block.covers = self._next_number
            self._next_number += 1
        tail.file = self.disk.create(segment_path(self.directory, tail.block.number))

    def _header(self, tail: Tail) -> Header:
        return Header(
            number=tail.block.number,
            covers=tail.block.covers,
            salt=self.salt,
            # The records that moved these further may be in this very file, after the header, and
            # get lost.
            base_sequence=min(tail.block.first_sequence - 1, self.progress.durable_sequence),
            floor_sequence=self._floor_durable,
            base_time_ns=self.catalog.last_time_ns,
        )

    def _start_sync(self) -> Sync | None:
        tail = self.tails[0]
        if self._sync is not None or tail.durable:
            return None
        assert tail.file is not None
        is_new = tail.durable_end == 0
        self._sync = Sync(self, tail.file, self.directory if is_new else None)
        self.progress.is_syncing = True
        return self._sync

    def synced(self, sync: Sync, error: Exception | None) -> None:
        """Take note of the outcome of a sync."""
        assert sync is self._sync, "a sync is finished once"
        self._sync = None
        self.progress.is_syncing = False
        if error is not None:
            self._fail(error)
            return
        tail = self.tails[0]
        end, self.progress.durable_position = sync.covers
        self.progress.durable_sequence = max(self.progress.durable_sequence, tail.synced(end))
        for offset, removal in tail.removals:
            if offset < end:
                self._floor_durable = max(self._floor_durable, removal.floor_sequence)
        if sync.recovers:
            self.upkeep.make_room()
            self.progress.failure = None
        if sync.is_first:
            self.upkeep.note_end()
        tail.trim(self.settings.tail_bytes_max)
        self.retire()
        if not tail.full:
            synced = encode_synced(tail.end - end, self.progress.durable_sequence, self.salt)
            tail.mark(synced, self.catalog.last_sequence)
        self.upkeep.advance()

    def retire(self) -> None:
        """Release tails that take no more records and are durable."""
        while self.tails and self.tails[0].full and self.tails[0].durable:
            tail = self.tails.pop(0)
            assert tail.file is not None
            self.cache.adopt_file(tail.block, tail.file)
            self.upkeep.seal_later(tail.block, tail.end, [removal for _, removal in tail.removals])

    def _fail(self, error: Exception) -> None:
        self.progress.failure = f"cannot store messages in `{self.directory}`: {reason(error)}"

    def _salvage(self) -> None:
        """Cut the failed file off at its last good sync; the rest goes to a new segment."""
        tail = self.tails[0]
        if tail.file is None:
            return
        if tail.durable_end == 0:
            # Nothing in it counts: it is made again under the same name.
            tail.file.close()
            tail.file = None
            tail.written_end = 0
            return
        tail.file.truncate(tail.durable_end)
        tail.file.sync()
        if tail.end > tail.durable_end:
            fresh = tail.split(0)
            self.catalog.insert_block(fresh.block, after=tail.block)
            self.tails.insert(1, fresh)
        self.retire()

    def _leave_out_purged(self) -> None:
        """Record only the purge if all messages that wait for the disk were purged."""
        first = self.tails[0]
        if first.durable_end or not any(tail.block.total for tail in self.tails):
            return
        # A failed write may have left a file of that number: it is made again.
        fresh = Tail(Block(first.block.number, self.catalog.last_sequence + 1))
        fresh.block.covers = first.block.covers
        purged = [tail.block for tail in self.tails]
        self.tails = [fresh]
        self.catalog.supersede(purged, fresh.block)
        self.upkeep.spare(purged)
        self._note_removal(fresh, Removal(self.catalog.first_sequence, ()))

    def maintain(self) -> Work | None:
        """Return the next piece of housekeeping, if there is one."""
        return self.upkeep.next()

    def close(self, *, saves: bool = True) -> None:
        """Close the files; if it `saves`, first make everything durable and complete."""
        if not saves:
            self._let_go()
            return
        try:
            for _ in range(2 + len(self.tails)):
                complete(self.flush())
            if self.progress.failure is None:
                self.upkeep.note_end()
                for tail in self.tails:
                    tail.full = True
                self.retire()
                self.upkeep.seal_all()
        finally:
            self._let_go()
        if self.progress.failure is not None:
            raise StoreError(self.progress.failure)

    def _let_go(self) -> None:
        for tail in self.tails:
            if tail.file is not None:
                tail.file.close()
        self.cache.close()
