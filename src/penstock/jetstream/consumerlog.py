"""
What consumers have been given and have acknowledged: a small log for all of a stream's.

The truth is in memory, with the consumers; the log says what changed, and one
sync covers the acks of all of them. When it has grown, or after the disk failed,
the next `flush` begins a new file with the whole state of every consumer and
goes on behind that. The old file goes once the new one is durable. So a failure
needs no repair, and a torn end costs only what was never synced.

    consumers-00000007.log = start · one state a consumer · changes …

A file counts only if its start and all the states it announces check out.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

from penstock.errors import StoreError
from penstock.jetstream.disk import Disk, File, read_whole
from penstock.jetstream.segment import from_little_endian, little_endian
from penstock.jetstream.store import Work, complete

FORMAT_VERSION = 1
LOG_BYTES_MIN = 256 * 1024
"""A log smaller than this is never begun anew."""

START, STATE, DELIVERED, ACKED, ADVANCED, REMOVED, GIVEN_UP = 1, 2, 3, 4, 5, 6, 7

_RECORD = struct.Struct("<IIBBHQQq")
_BODY = struct.Struct("<IBBHQQq")


@dataclass
class ConsumerState:
    """How far a consumer is. Pairs are consumer sequence and stream sequence."""

    delivered_consumer_sequence: int = 0
    delivered_stream_sequence: int = 0
    ack_floor_consumer_sequence: int = 0
    ack_floor_stream_sequence: int = 0
    pending: dict[int, tuple[int, int]] = field(default_factory=dict)
    """
    Delivered but not acknowledged: stream sequence to the consumer sequence of the first
    delivery and the time of the last.
    """
    redelivered: dict[int, int] = field(default_factory=dict)
    """How often again: stream sequence to deliveries after the first."""

    def deliver(
        self, consumer_sequence: int, stream_sequences: Sequence[int], time_ns: int
    ) -> None:
        """Take note of messages delivered, the first of them as `consumer_sequence`."""
        pending = self.pending
        for stream_sequence in stream_sequences:
            first = consumer_sequence
            if stream_sequence in pending:
                self.redelivered[stream_sequence] = self.redelivered.get(stream_sequence, 0) + 1
                first = pending[stream_sequence][0]
            pending[stream_sequence] = (first, time_ns)
            consumer_sequence += 1
        self.delivered_consumer_sequence = consumer_sequence - 1
        last = max(stream_sequences, default=0)
        self.delivered_stream_sequence = max(self.delivered_stream_sequence, last)

    def ack(self, stream_sequences: Sequence[int]) -> None:
        """Take note of messages acknowledged, and move the floor if it can be."""
        for stream_sequence in stream_sequences:
            self.pending.pop(stream_sequence, None)
            self.redelivered.pop(stream_sequence, None)
        self._raise_floor()

    def give_up(self, stream_sequences: Sequence[int]) -> None:
        """Take note of messages that are not delivered again although they are not acked."""
        for stream_sequence in stream_sequences:
            self.pending.pop(stream_sequence, None)
            self.redelivered.setdefault(stream_sequence, 0)
        self._raise_floor()

    def advance(self, consumer_sequence: int, stream_sequence: int) -> None:
        """Take note that everything up to here was delivered and is settled."""
        for pending in [each for each in self.pending if each <= stream_sequence]:
            del self.pending[pending]
            self.redelivered.pop(pending, None)
        self.delivered_consumer_sequence = max(self.delivered_consumer_sequence, consumer_sequence)
        self.delivered_stream_sequence = max(self.delivered_stream_sequence, stream_sequence)
        self.ack_floor_consumer_sequence = max(self.ack_floor_consumer_sequence, consumer_sequence)
        self.ack_floor_stream_sequence = max(self.ack_floor_stream_sequence, stream_sequence)

    def _raise_floor(self) -> None:
        if not self.pending:
            self.ack_floor_consumer_sequence = self.delivered_consumer_sequence
            self.ack_floor_stream_sequence = self.delivered_stream_sequence
            return
        first = min(self.pending)
        lowest = min(consumer_sequence for consumer_sequence, _ in self.pending.values())
        self.ack_floor_stream_sequence = max(self.ack_floor_stream_sequence, first - 1)
        self.ack_floor_consumer_sequence = max(self.ack_floor_consumer_sequence, lowest - 1)


class Change(NamedTuple):
    """One record: what it is about, and its numbers."""

    kind: int
    name: str
    first: int
    second: int
    time_ns: int
    numbers: array[int]


def encode(change: Change) -> bytes:
    """Return the record of a change."""
    name = change.name.encode()
    length = _RECORD.size + len(name) + 8 * len(change.numbers)
    head = _BODY.pack(
        length, change.kind, FORMAT_VERSION, len(name), change.first, change.second, change.time_ns
    )
    body = b"".join((head, name, little_endian(change.numbers)))
    return struct.pack("<I", crc32(body)) + body


def scan(data: bytes) -> tuple[list[Change], int]:
    """
    Return the records that check out, and how many bytes belong to none.

    The walk goes on behind what is damaged. That is right even for what was never
    synced: an acknowledgement holds without the record before it.
    """
    changes: list[Change] = []
    offset = damaged = 0
    while offset < len(data):
        found = _record_at(data, offset)
        if found is None:
            damaged += 1
            offset += 1
        else:
            change, offset = found
            changes.append(change)
    return changes, damaged


def _record_at(data: bytes, offset: int) -> tuple[Change, int] | None:
    """Return the record at an offset and where it ends; None if there is none."""
    if offset + _RECORD.size > len(data):
        return None
    checksum, length, kind, version, name_length, first, second, time_ns = _RECORD.unpack_from(
        data, offset
    )
    end = offset + length
    name_at = offset + _RECORD.size
    if version != FORMAT_VERSION or not START <= kind <= REMOVED or end > len(data):
        return None
    if end < name_at + name_length or crc32(data[offset + 4 : end]) != checksum:
        return None
    name = data[name_at : name_at + name_length].decode()
    numbers = from_little_endian("Q", data[name_at + name_length : end])
    return Change(kind, name, first, second, time_ns, numbers), end


def encode_state(name: str, state: ConsumerState) -> bytes:
    """Return the record of everything known of a consumer."""
    numbers = array("Q", (state.ack_floor_consumer_sequence, state.ack_floor_stream_sequence))
    numbers.extend((len(state.pending), len(state.redelivered)))
    for stream_sequence, (consumer_sequence, time_ns) in state.pending.items():
        numbers.extend((stream_sequence, consumer_sequence, time_ns))
    for stream_sequence, count in state.redelivered.items():
        numbers.extend((stream_sequence, count))
    delivered = state.delivered_consumer_sequence, state.delivered_stream_sequence
    return encode(Change(STATE, name, *delivered, 0, numbers))


def decode_state(change: Change) -> ConsumerState:
    """Return what the record of a state says."""
    floor_consumer, floor_stream, pending_count, _ = change.numbers[:4]
    pending_end = 4 + 3 * pending_count
    pending = change.numbers[4:pending_end]
    redelivered = change.numbers[pending_end:]
    return ConsumerState(
        change.first,
        change.second,
        floor_consumer,
        floor_stream,
        {
            stream: (consumer, time_ns)
            for stream, consumer, time_ns in zip(
                pending[::3], pending[1::3], pending[2::3], strict=True
            )
        },
        dict(zip(redelivered[::2], redelivered[1::2], strict=True)),
    )


def is_complete(changes: Sequence[Change]) -> bool:
    """Tell whether a file starts with the state of every consumer there was."""
    if not changes or changes[0].kind != START:
        return False
    announced = changes[0].second
    return [change.kind for change in changes[1 : 1 + announced]] == [STATE] * announced


def replay(changes: Sequence[Change]) -> dict[str, ConsumerState]:
    """Return the states that records lead to."""
    states: dict[str, ConsumerState] = {}
    for change in changes:
        if change.kind == STATE:
            states[change.name] = decode_state(change)
        elif change.kind == REMOVED:
            states.pop(change.name, None)
        elif change.name in states:
            _apply(states[change.name], change)
    return states


def _apply(state: ConsumerState, change: Change) -> None:
    if change.kind == DELIVERED:
        # Behind a gap nobody knows what else was delivered, and it must be delivered again.
        if change.first == state.delivered_consumer_sequence + 1:
            state.deliver(change.first, change.numbers, change.time_ns)
    elif change.kind == ACKED:
        state.ack(change.numbers)
    elif change.kind == GIVEN_UP:
        state.give_up(change.numbers)
    elif change.kind == ADVANCED:
        state.advance(change.first, change.second)


def log_path(directory: str, generation: int) -> str:
    """Return the path of a log file."""
    return f"{directory}/consumers-{generation:08d}.log"


def open_consumer_log(
    disk: Disk, directory: str
) -> tuple[ConsumerLog, dict[str, ConsumerState], list[str]]:
    """Open the log in a directory, or make one; return it with the states and notes."""
    disk.make_directory(directory)
    generations = _generations(disk, directory)
    notes: list[str] = []
    files = {each: scan(read_whole(disk, log_path(directory, each)) or b"") for each in generations}
    complete_ones = [each for each, (changes, _) in files.items() if is_complete(changes)]
    log = ConsumerLog(disk, directory, max(generations, default=0))
    if not generations:
        return log, {}, notes
    chosen = max(complete_ones, default=generations[-1])
    path = log_path(directory, chosen)
    changes, damaged = files[chosen]
    if not complete_ones:
        notes.append(f"`{path}` is not complete: a consumer missing in it starts over")
    if damaged:
        notes.append(f"`{path}`: {damaged} bytes are no record: dropped")
    log.resume(chosen, is_whole=not damaged and chosen == generations[-1] and bool(complete_ones))
    return log, replay(changes), notes


def _generations(disk: Disk, directory: str) -> list[int]:
    stems = [name.removesuffix(".log").removeprefix("consumers-") for name in disk.names(directory)]
    return sorted(int(stem) for stem in stems if len(stem) == 8 and stem.isdecimal())


class ConsumerSync:
    """The work that makes what was written durable."""

    def __init__(self, log: ConsumerLog, file: File, directory: str | None) -> None:
        self._log = log
        self._file = file
        self._directory = directory
        self.covers = log.written_bytes

    def run(self) -> None:
        """Return once it would survive a power cut."""
        self.covers = self._log.written_bytes
        self._file.sync()
        if self._directory is not None:
            self._log.disk.sync_directory(self._directory)

    def finish(self, error: OSError | None = None) -> None:
        """Tell the log how it went."""
        self._log.synced(self, error)


class ConsumerLog:
    """
    The log of a stream's consumers.

    `snapshot` must be set to what returns the state of every consumer now. Every
    other method notes a change that was already made to that state.
    """

    def __init__(self, disk: Disk, directory: str, generation: int) -> None:
        self.disk = disk
        self.directory = directory
        self.snapshot: Callable[[], Mapping[str, ConsumerState]] = dict
        self.failure: str | None = None
        self.written_bytes = 0
        """Bytes handed to the operating system since the log was opened."""
        self._generation = generation
        self._file: File | None = None
        self._file_end = 0
        self._file_bytes_max = LOG_BYTES_MIN
        self._buffer: list[bytes] = []
        self._durable_bytes = 0
        self._sync: ConsumerSync | None = None
        self._is_new = False
        self._outdated: list[str] = []

    def resume(self, generation: int, *, is_whole: bool) -> None:
        """Go on after what was found on disk; begin a new file first if that is not whole."""
        if is_whole:
            self._file = self.disk.open(log_path(self.directory, generation))
            self._file_end = self._file.size()
        numbers = _generations(self.disk, self.directory)
        self._outdated = [
            log_path(self.directory, number)
            for number in numbers
            if not (is_whole and number == generation)
        ]

    @property
    def dirty_bytes(self) -> int:
        """Return the bytes that are not durable yet."""
        return sum(map(len, self._buffer)) + self.written_bytes - self._durable_bytes

    def put(self, name: str, state: ConsumerState) -> None:
        """Note the whole state of a consumer: it is new, or was reset."""
        self._buffer.append(encode_state(name, state))

    def removed(self, name: str) -> None:
        """Note that a consumer is gone."""
        self._buffer.append(encode(Change(REMOVED, name, 0, 0, 0, array("Q"))))

    def delivered(
        self, name: str, consumer_sequence: int, stream_sequences: Sequence[int], time_ns: int
    ) -> None:
        """Note messages delivered, the first of them as `consumer_sequence`: the next one."""
        numbers = array("Q", stream_sequences)
        self._buffer.append(encode(Change(DELIVERED, name, consumer_sequence, 0, time_ns, numbers)))

    def acked(self, name: str, stream_sequences: Sequence[int]) -> None:
        """Note messages acknowledged."""
        self._buffer.append(encode(Change(ACKED, name, 0, 0, 0, array("Q", stream_sequences))))

    def given_up(self, name: str, stream_sequences: Sequence[int]) -> None:
        """Note messages that were delivered as often as they may be, without an ack."""
        self._buffer.append(encode(Change(GIVEN_UP, name, 0, 0, 0, array("Q", stream_sequences))))

    def advanced(self, name: str, consumer_sequence: int, stream_sequence: int) -> None:
        """Note that everything up to here was delivered and is settled."""
        change = Change(ADVANCED, name, consumer_sequence, stream_sequence, 0, array("Q"))
        self._buffer.append(encode(change))

    def flush(self) -> Work | None:
        """Hand what is buffered to the operating system; return what makes it durable."""
        try:
            if self.failure is not None or self._file is None or self._is_overgrown():
                self._begin_file()
            self._write(b"".join(self._buffer))
            self._buffer.clear()
        except OSError as error:
            self._fail(error)
            return None
        if self._sync is not None or self._durable_bytes == self.written_bytes:
            return None
        assert self._file is not None
        self._sync = ConsumerSync(self, self._file, self.directory if self._is_new else None)
        return self._sync

    def _is_overgrown(self) -> bool:
        return self._sync is None and not self._is_new and self._file_end > self._file_bytes_max

    def _begin_file(self) -> None:
        """Begin a new file with the state of every consumer: what is buffered is in there."""
        is_idle = self._file is None and not self._buffer and self.failure is None
        if self._sync is not None or is_idle:
            return
        states = self.snapshot()
        if self._file is not None:
            self._drop_file()
        self._generation += 1
        path = log_path(self.directory, self._generation)
        start = Change(START, "", self._generation, len(states), 0, array("Q"))
        records = [encode_state(name, state) for name, state in states.items()]
        self._file = self.disk.create(path)
        self._file_end = 0
        self._is_new = True
        self._buffer = [encode(start), *records]
        self._file_bytes_max = max(LOG_BYTES_MIN, 4 * sum(map(len, self._buffer)))

    def _drop_file(self) -> None:
        """Leave the file: it goes at once if it never counted, else when the next one does."""
        assert self._file is not None
        self._file.close()
        self._file = None
        path = log_path(self.directory, self._generation)
        self._outdated.append(path)
        if self._is_new:
            self.disk.remove(path)
            self._outdated.pop()

    def _write(self, data: bytes) -> None:
        if data:
            assert self._file is not None
            self._file.write(data, self._file_end)
            self._file_end += len(data)
            self.written_bytes += len(data)

    def synced(self, sync: ConsumerSync, error: OSError | None) -> None:
        """Take note of how a sync went."""
        assert sync is self._sync, "a sync is finished once"
        self._sync = None
        if error is not None:
            self._fail(error)
            return
        self._durable_bytes = sync.covers
        if self.failure is None or self._is_new:
            self._is_new = False
            self.failure = None
            self._remove_outdated()

    def _remove_outdated(self) -> None:
        try:
            while self._outdated:
                self.disk.remove(self._outdated[-1])
                self._outdated.pop()
        except OSError:
            # It is tried again after the next sync; until then the newer file counts.
            return

    def _fail(self, error: OSError) -> None:
        self.failure = f"cannot store consumers in `{self.directory}`: {error.strerror or error}"

    def discard(self) -> None:
        """Let go of the file: nothing in it counts any more."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def close(self) -> None:
        """Make everything durable and let go of the file."""
        for _ in range(2):
            complete(self.flush())
        if self._file is not None:
            self._file.close()
        if self.failure is not None:
            raise StoreError(self.failure)
