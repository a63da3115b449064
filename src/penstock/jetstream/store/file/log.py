"""
A stream on disk: a directory of append-only segments.

The rules that make an acknowledgement mean something:

1. Records go to one file at a time, in order. The next segment's file is not
   made before the last one is synced. So whatever a crash leaves is everything
   up to some record, at least everything synced, and then nothing.
2. `flush` writes; the work it returns syncs, and covers what was written before
   it began. There is one such work at a time: of two, one could swallow the
   error that belongs to the other.
3. What is not durable is kept in memory. After a failed write or sync nobody
   knows what the file holds behind its last good sync (Linux reports a failed
   fsync once and then forgets the pages), so it is cut off there, and what was
   kept is written to a new segment. Until that is synced, appends are refused.
   Nothing is given a second time and nothing is taken back.
4. A message is replaced only by one that is durable: the file of a dropped or
   compacted segment is removed only once all that was appended before is synced,
   because a limit may have dropped it in favour of a message not yet on disk.
   The exception is a purge while the disk is failing: it may be full, and a
   purge is what makes room. Where everything was purged, what never was on disk is
   left out, and the record of the purge takes the place of the reserve.
5. A trailer is written only behind records that are synced. It repeats what they
   say; without it they are walked.
6. Removals are records too, in the same order as the messages. So is the begin of
   an atomic batch: if what a crash leaves ends before the batch does, it ends there.
   A message that replaces others is such a batch, together with their removal; nothing
   is written between the two, so that no sync can cover only the first.
7. A finished sync goes on record too, so that damage in what was synced can be told
   from the torn end of what was not. That record waits for no sync itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from penstock.errors import StoreError, reason
from penstock.hot import decode_messages, encode_records
from penstock.jetstream.store.block import Block
from penstock.jetstream.store.catalog import Catalog
from penstock.jetstream.store.file.assembly import assemble
from penstock.jetstream.store.file.compression import TransparentDisk
from penstock.jetstream.store.file.disk import Disk, File
from penstock.jetstream.store.file.recovery import load, mend
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
from penstock.jetstream.store.file.segmentfile import segment_path
from penstock.jetstream.store.file.tail import Tail
from penstock.jetstream.store.file.upkeep import Upkeep
from penstock.jetstream.store.store import MessageStore
from penstock.jetstream.store.values import Entry, Message, StoreLimits, Work, complete

READ_GAP_BYTES = 16 * 1024
"""Bytes between two messages that are cheaper to read than to skip."""

RECLAIM_BYTES_MIN = 1024 * 1024
"""A segment of which nothing is left is given up once it is this large."""


@dataclass(frozen=True, kw_only=True)
class FileSettings:
    """The bounds of a file store."""

    segment_bytes_max: int = 32 * 1024 * 1024
    segment_messages_max: int = 256 * 1024
    compressed_segment_bytes_max: int = 8 * 1024 * 1024
    """The same where they are to be compressed: only complete ones are."""
    index_bytes_max: int = 64 * 1024 * 1024
    """Memory for finding messages in complete segments, per stream."""
    tail_bytes_max: int = 256 * 1024
    """Memory for messages just stored, per stream, beside those not yet durable."""
    write_ahead_bytes: int = 64 * 1024
    """What collects during a sync is written as soon as it is this much."""
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
) -> tuple[MessageStore, list[str]]:
    """
    Open the store in a directory, or make one.

    Returns it with notes about what was repaired or lost, in words for people.
    `salt` tells streams apart: files with another one are not taken for this stream's.
    """
    disk = TransparentDisk(disk)
    disk.make_directory(directory)
    limits = limits or StoreLimits()
    found = load(disk, directory, salt)
    if salt and found.salt not in (None, salt):
        raise StoreError(
            f"`{directory}` has the messages of another stream; "
            "hint: put the `messages` directory of this stream back"
        )
    mend(disk, directory, found)
    salt = salt if found.salt is None else found.salt
    log = FileLog(disk, directory, salt=salt, settings=settings or FileSettings())
    log.start(found.next_number, assemble(log, found, limits.messages_per_subject_max))
    if log.upkeep.reserve.is_missing:
        with suppress(OSError):
            log.upkeep.reserve.keep()
    return MessageStore(log.catalog, log, limits), found.notes


class Sync:
    """The work that makes what was written durable."""

    def __init__(self, log: FileLog, file: File, directory: str | None) -> None:
        self._log = log
        self._file = file
        self._directory = directory
        self.is_first = directory is not None
        """Whether it is the first of a segment, whose name has to become durable too."""
        self.recovers = log.failure is not None
        self.covers: tuple[int, int] = log.written
        self._overdue = log.upkeep.overdue()
        self._overdue_error: Exception | None = None

    def run(self) -> None:
        """Return once it would survive a power cut."""
        # One read of one attribute: the loop may be writing on meanwhile.
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
            # Whatever becomes of the housekeeping: a sync that does not end is the last one.
            self._log.synced(self, error)


class FileLog:
    """Writes and reads the segments of one stream. The catalog does the counting."""

    def __init__(self, disk: Disk, directory: str, *, salt: int, settings: FileSettings) -> None:
        self.disk = disk
        self.directory = directory
        self.settings = settings
        self.salt = salt
        self.failure: str | None = None
        self.compresses = False
        """Whether complete segments are to be compressed."""
        self.durable_sequence = 0
        self.durable_position = 0
        self.position = 0
        """Bytes appended since the store was opened."""
        self.written = (0, 0)
        """What is written: end in the file of the first tail, and position."""
        self.cache = SegmentCache(
            disk,
            directory,
            salt=salt,
            memory_bytes_max=settings.index_bytes_max,
            files_max=settings.files_max,
        )
        self.catalog = Catalog(self.cache)
        self.tails: list[Tail] = []
        """Segments that are not complete and durable, in order; the last takes records."""
        self.upkeep = Upkeep(self)
        self._next_number = 1
        self._floor_durable = 1
        self._sync: Sync | None = None
        self._replacing = False
        """Whether the last batch still waits for the removal that belongs to it."""

    def start(self, next_number: int, tail: Tail | None) -> None:
        """Go on after the segments found on disk; `tail` takes the next records."""
        self._next_number = next_number
        self._floor_durable = self.catalog.first_sequence
        self.durable_sequence = self.catalog.last_sequence
        if tail is not None:
            self.tails.append(tail)

    @property
    def segment_bytes_max(self) -> int:
        """Return how large a segment may grow."""
        settings = self.settings
        if not self.compresses:
            return settings.segment_bytes_max
        return min(settings.segment_bytes_max, settings.compressed_segment_bytes_max)

    @property
    def dirty_bytes(self) -> int:
        """Return the bytes that are not durable yet."""
        return self.position - self.durable_position

    def append(
        self,
        first_sequence: int,
        entries: Sequence[Entry],
        *,
        is_atomic: bool = False,
        replaces: bool = False,
    ) -> None:
        """Buffer messages and tell the catalog."""
        if self.failure is not None:
            raise StoreError(self.failure)
        blocks = self.catalog.blocks
        has_gap = blocks and blocks[-1].last_sequence + 1 != first_sequence
        if has_gap or self._replacing:
            # A purge moved the sequence on: that goes on record before the gap shows.
            self._note_removals()
        tail = self._tail_from(first_sequence)
        if is_atomic or replaces:
            self._begin_batch(tail, first_sequence + len(entries) - 1, replaces=replaces)
        data, lengths = encode_records(first_sequence, entries, self.salt)
        offset = tail.add(data, first_sequence + len(entries) - 1)
        self.position += len(data)
        block = tail.block
        if not block.total:
            block.first_time_ns = entries[0][3]
        block.last_time_ns = entries[-1][3]
        self.catalog.append(block, offset, [entry[0] for entry in entries], lengths)
        if self._sync is not None and self.failure is None and not replaces:
            self._write_ahead()

    def _write_ahead(self) -> None:
        """Hand over what came while the disk is busy, lest the next sync has to wait for it."""
        tail = self.tails[0]
        if tail.end - tail.written_end >= self.settings.write_ahead_bytes:
            try:
                self._write()
            except OSError as error:
                self._fail(error)

    def _begin_batch(self, tail: Tail, last_sequence: int, *, replaces: bool) -> None:
        data = encode_batch(last_sequence, self.salt, replaces=replaces)
        tail.add(data, self.catalog.last_sequence)
        self.position += len(data)
        self._replacing = replaces

    def _tail_from(self, sequence: int) -> Tail:
        """Return the tail that takes the message with this sequence."""
        tail = self.tails[-1] if self.tails else None
        if tail is None or tail.full:
            return self._new_tail(sequence)
        block = tail.block
        if not block.total:
            block.first_sequence, block.last_sequence = sequence, sequence - 1
        elif block.last_sequence + 1 != sequence and not block.count:
            # All in it was purged: its file can go once another has begun.
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
        for first, stop in _stretches(offsets, lengths):
            start, end = offsets[first], offsets[stop - 1] + lengths[stop - 1]
            data = self._bytes(block, start, end)
            messages += decode_messages(data, offsets[first:stop], start, self.salt)
        expected = block.sequences(positions)
        if [message and message[0] for message in messages] == expected:
            return messages
        pairs = zip(messages, expected, strict=True)
        return [m if m is not None and m[0] == sequence else None for m, sequence in pairs]

    def fetch_one(self, block: Block, position: int) -> Message | None:
        """Return one message; a get of a key is just that, and wants to be quick."""
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
            raise StoreError(f"cannot read from `{self.directory}`: {error}") from error

    def flush(self) -> Work | None:
        """Write what is buffered; return what makes it durable."""
        try:
            self._note_removals()
            self.upkeep.doom(self.catalog.take_emptied())
            self.retire()
            if not self.tails:
                return None
            if self.failure is not None:
                if self._sync is not None:
                    return None
                self._salvage()
                if not self.catalog.messages:
                    self._leave_out_purged()
                    self.upkeep.doom(self.catalog.take_emptied())
            self._write()
        except Exception as error:
            # Also what nobody foresaw: then too, nobody knows what the file holds (rule 3).
            self._fail(error)
            is_worth_a_try = not self.catalog.messages and self.upkeep.reserve.give()
            return self.flush() if is_worth_a_try else None
        return self._start_sync()

    def _note_removals(self) -> None:
        removals = self.catalog.take_removals()
        if self._replacing and not removals:
            # Nothing was there to be replaced, but the batch ends only with a removal.
            removals = [Removal(self.catalog.first_sequence, ())]
        self._replacing = False
        for removal in removals:
            self._note_removal(self._tail_for_removal(), removal)

    def _note_removal(self, tail: Tail, removal: Removal) -> None:
        data = encode_removal(removal, self.salt)
        tail.removals.append((tail.add(data, self.catalog.last_sequence), removal))
        self.position += len(data)

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
        behind = sum([later.end - HEADER_BYTES for later in self.tails[1:]])
        self.written = (tail.written_end, self.position - behind)
        if (
            tail.end >= self.segment_bytes_max
            or tail.block.total >= self.settings.segment_messages_max
        ):
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
            # What moved these further may be in this very file, behind the header, and get lost.
            base_sequence=min(tail.block.first_sequence - 1, self.durable_sequence),
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
        return self._sync

    def synced(self, sync: Sync, error: Exception | None) -> None:
        """Take note of how a sync went."""
        assert sync is self._sync, "a sync is finished once"
        self._sync = None
        if error is not None:
            self._fail(error)
            return
        tail = self.tails[0]
        end, self.durable_position = sync.covers
        self.durable_sequence = max(self.durable_sequence, tail.synced(end))
        for offset, removal in tail.removals:
            if offset < end:
                self._floor_durable = max(self._floor_durable, removal.floor_sequence)
        if sync.is_first:
            self.upkeep.reserve.note(tail.block.number)
        if sync.recovers:
            self.upkeep.make_room()
            self.failure = None
        tail.trim(self.settings.tail_bytes_max)
        self.retire()
        if not tail.full:
            synced = encode_synced(tail.end - end, self.durable_sequence, self.salt)
            tail.mark(synced, self.catalog.last_sequence)
        self.upkeep.advance()

    def retire(self) -> None:
        """Let go of tails that take no more records and are durable."""
        while self.tails and self.tails[0].full and self.tails[0].durable:
            tail = self.tails.pop(0)
            assert tail.file is not None
            self.cache.adopt_file(tail.block, tail.file)
            self.upkeep.seal_later(tail.block, tail.end, [removal for _, removal in tail.removals])

    def _fail(self, error: Exception) -> None:
        self.failure = f"cannot store messages in `{self.directory}`: {reason(error)}"

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
        """Put only the purge on record where all that waits for the disk was purged."""
        first = self.tails[0]
        if first.durable_end or not any(tail.block.total for tail in self.tails):
            return
        # A file of that number may be there, of a write that failed: it is made again.
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

    def close(self) -> None:
        """Make everything durable and complete, and let go of the files."""
        try:
            for _ in range(2 + len(self.tails)):
                complete(self.flush())
            if self.failure is None:
                for tail in self.tails:
                    tail.full = True
                self.retire()
                self.upkeep.seal_all()
        finally:
            self.discard()
        if self.failure is not None:
            raise StoreError(self.failure)

    def discard(self) -> None:
        """Let go of the files as they are."""
        for tail in self.tails:
            if tail.file is not None:
                tail.file.close()
        self.cache.close()


def _stretches(offsets: Sequence[int], lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Return which messages to read in one go: those with little between them."""
    if not offsets:
        return []
    span = offsets[-1] + lengths[-1] - offsets[0]
    if span - sum(lengths) <= READ_GAP_BYTES:
        return [(0, len(offsets))]
    stretches: list[tuple[int, int]] = []
    first = 0
    for index in range(1, len(offsets)):
        if offsets[index] - offsets[index - 1] - lengths[index - 1] > READ_GAP_BYTES:
            stretches.append((first, index))
            first = index
    return [*stretches, (first, len(offsets))]
