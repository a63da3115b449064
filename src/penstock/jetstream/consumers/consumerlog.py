"""
The deliveries and acks of consumers: one small log for all consumers of a stream.

The consumers in memory hold the truth; the log records what changed, and one sync covers the acks
of all of them. When the log has grown, and after a failure of the disk or a restart, the next
change begins a new file with the whole state of every consumer. The old file goes once the new one
is durable. So a failure needs no repair, and a torn end costs only what was never synced. A killed
server may have failed to sync its file: Linux then takes the data for written, and a later sync of
that file would succeed without it.

    consumers-00000007.log = note · start · one state a consumer · changes …

A file counts only if its start and all the states it announces check out, and if the stream named
in its start is this one. The note says how much of the file was durable, at least: so damage and a
missing end are told from the torn end that a power cut leaves.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple
from zlib import crc32

from penstock.errors import StoreError, reason
from penstock.jetstream.consumers.consumerrecords import (
    ACKED,
    ADVANCED,
    DELIVERED,
    GIVEN_UP,
    REMOVED,
    START,
    ConsumerState,
    RecordedChange,
    encode,
    encode_state,
    is_complete,
    replay,
    scan,
)
from penstock.jetstream.store.file.disk import Disk, File, read_whole
from penstock.jetstream.store.values import Findings, Work, complete

_END, _CHECKSUM = struct.Struct("<Q"), struct.Struct("<I")
NOTE_BYTES = _END.size + _CHECKSUM.size
LOG_BYTES_MIN = 256 * 1024
"""A log smaller than this is never rewritten."""


def log_path(directory: str, generation: int) -> str:
    """Return the path of a log file."""
    return f"{directory}/consumers-{generation:08d}.log"


class FoundFile(NamedTuple):
    """One file, as it was found."""

    path: str
    changes: list[RecordedChange]
    damaged_bytes: int
    """Bytes that were durable and are no record, or are missing."""
    torn_bytes: int
    """Bytes behind the last record: a power cut may leave some."""

    @property
    def owner(self) -> str:
        """The stream it is of; empty if its start is damaged."""
        has_start = bool(self.changes) and self.changes[0].kind == START
        return self.changes[0].name if has_start else ""

    @property
    def faults(self) -> list[str]:
        """The damage, in words."""
        faults = []
        if not is_complete(self.changes):
            faults.append(f"`{self.path}` is not complete: a consumer missing in it starts over")
        if self.damaged_bytes:
            faults.append(f"`{self.path}`: {self.damaged_bytes} bytes are damaged or missing")
        return faults


def read_log(disk: Disk, path: str) -> FoundFile:
    """Read a file, and change nothing."""
    content = read_whole(disk, path) or b""
    changes, damaged, end = scan(content[NOTE_BYTES:])
    end += NOTE_BYTES
    durable_end = _noted_end(content)
    damaged += max(durable_end - end, 0)
    return FoundFile(path, changes, damaged, max(len(content) - max(end, durable_end), 0))


def _note(end: int) -> bytes:
    data = _END.pack(end)
    return data + _CHECKSUM.pack(crc32(data))


def _noted_end(content: bytes) -> int:
    """Return how much of a file was durable, at least."""
    note = content[:NOTE_BYTES]
    end = _END.unpack_from(note)[0] if len(note) == NOTE_BYTES else 0
    return end if note == _note(end) else 0


def open_consumer_log(
    disk: Disk, directory: str
) -> tuple[ConsumerLog, dict[str, ConsumerState], Findings]:
    """Open the log in a directory, or make one; return it with the states and its condition."""
    disk.make_directory(directory)
    own, _ = _read_all(disk, directory)
    faults = foreign_logs(disk, directory)
    log = ConsumerLog(disk, directory, max(_generations(disk, directory), default=0))
    chosen = _chosen(own)
    if chosen is None:
        return log, {}, Findings(faults + missing_log(disk, directory), [])
    log.replace([each.path for each in own])
    notes = [f"`{chosen.path}`: the last {chosen.torn_bytes} bytes are no record: dropped"]
    found = Findings(faults + chosen.faults, notes if chosen.torn_bytes else [])
    return log, replay(chosen.changes), found


def foreign_logs(disk: Disk, directory: str) -> list[str]:
    """Return a fault for each log in a directory that is of another stream."""
    _, foreign = _read_all(disk, directory)
    return [f"`{each.path}` is the log of another stream: left alone" for each in foreign]


def missing_log(disk: Disk, directory: str) -> list[str]:
    """Return a fault if there are consumers, and nothing says how far they are."""
    # A name has no dot, so whatever has one is a log.
    has_consumers = any("." not in name for name in disk.names(directory))
    if not has_consumers or _read_all(disk, directory)[0]:
        return []
    return [f"`{directory}` has no log of how far its consumers are: they start over"]


def read_states(disk: Disk, directory: str) -> dict[str, ConsumerState]:
    """Return the position of each consumer, from the log in a directory; change nothing."""
    chosen = _chosen(_read_all(disk, directory)[0])
    return {} if chosen is None else replay(chosen.changes)


def _chosen(files: list[FoundFile]) -> FoundFile | None:
    """Return the newest complete file; if none is, the newest."""
    return max(files, key=lambda each: (is_complete(each.changes), each.path), default=None)


def _read_all(disk: Disk, directory: str) -> tuple[list[FoundFile], list[FoundFile]]:
    """Return the log files in a directory in order: of its stream, and of others."""
    numbers = _generations(disk, directory)
    files = [read_log(disk, log_path(directory, each)) for each in numbers]
    owners = ("", owner_of(directory))
    own = [each for each in files if each.owner in owners]
    return own, [each for each in files if each.owner not in owners]


def owner_of(directory: str) -> str:
    """Return the stream that a directory of consumers belongs to."""
    return directory.rpartition("/")[0].rpartition("/")[2]


def _generations(disk: Disk, directory: str) -> list[int]:
    stems = [name.removesuffix(".log").removeprefix("consumers-") for name in disk.names(directory)]
    return sorted(int(stem) for stem in stems if len(stem) == 8 and stem.isdecimal())


class ConsumerSync:
    """The work that makes written records durable."""

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

    def finish(self, error: Exception | None = None) -> None:
        """Report the outcome to the log."""
        self._log.synced(self, error)


class ConsumerLog:
    """
    The log of a stream's consumers.

    `snapshot` must be set to a function that returns the current state of every consumer. Every
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

    def replace(self, paths: list[str]) -> None:
        """Begin a new file before anything else is safe, and remove these once it counts."""
        self._outdated = paths

    @property
    def dirty_bytes(self) -> int:
        """Return the bytes that are not durable yet."""
        return sum(map(len, self._buffer)) + self.written_bytes - self._durable_bytes

    def put(self, name: str, state: ConsumerState) -> None:
        """Note the whole state of a consumer: it is new, or was reset."""
        self._buffer.append(encode_state(name, state))

    def removed(self, name: str) -> None:
        """Note that a consumer is gone."""
        self._buffer.append(encode(RecordedChange(REMOVED, name, 0, 0, 0, array("Q"))))

    def delivered(
        self, name: str, consumer_sequence: int, stream_sequences: Sequence[int], time_ns: int
    ) -> None:
        """Note messages delivered, the first of them as `consumer_sequence`: the next one."""
        numbers = array("Q", stream_sequences)
        self._buffer.append(
            encode(RecordedChange(DELIVERED, name, consumer_sequence, 0, time_ns, numbers))
        )

    def acked(self, name: str, stream_sequences: Sequence[int]) -> None:
        """Note messages acknowledged."""
        self._buffer.append(
            encode(RecordedChange(ACKED, name, 0, 0, 0, array("Q", stream_sequences)))
        )

    def given_up(self, name: str, stream_sequences: Sequence[int]) -> None:
        """Note messages that reached their maximum number of deliveries without an ack."""
        self._buffer.append(
            encode(RecordedChange(GIVEN_UP, name, 0, 0, 0, array("Q", stream_sequences)))
        )

    def advanced(self, name: str, consumer_sequence: int, stream_sequence: int) -> None:
        """Note that everything up to here was delivered and is settled."""
        change = RecordedChange(ADVANCED, name, consumer_sequence, stream_sequence, 0, array("Q"))
        self._buffer.append(encode(change))

    def write(self) -> None:
        """Hand the buffer to the operating system, and leave the rest to `flush`."""
        if self.failure is not None:
            return
        try:
            if self._file is None:
                self._begin_file()
            self._write_buffer()
        except OSError as error:
            self._fail(error)

    def flush(self) -> Work | None:
        """Hand the buffer to the operating system; return the work that makes it durable."""
        try:
            if self.failure is not None or self._file is None or self._is_overgrown():
                self._begin_file()
            self._write_buffer()
        except Exception as error:
            # Unforeseen errors too: the next file begins with the current states of the consumers.
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
        """Begin a new file with the state of every consumer, buffered changes included."""
        if self._sync is not None or self._is_idle:
            return
        states = self.snapshot()
        if self._file is not None:
            self._drop_file()
        self._generation += 1
        path = log_path(self.directory, self._generation)
        owner = owner_of(self.directory)
        start = RecordedChange(START, owner, self._generation, len(states), 0, array("Q"))
        records = [encode_state(name, state) for name, state in states.items()]
        self._file = self.disk.create(path)
        self._file_end = 0
        self._is_new = True
        self._buffer = [encode(start), *records]
        self._file_bytes_max = max(LOG_BYTES_MIN, 4 * sum(map(len, self._buffer)))
        # By itself: where files are encrypted, what is written again in its place is a frame.
        self._file.write(_note(0), 0)
        self._file_end = NOTE_BYTES

    @property
    def _is_idle(self) -> bool:
        """Whether there is no file, and no need for one."""
        return not (self._file or self._buffer or self._outdated or self.failure)

    def _drop_file(self) -> None:
        """Leave the file. It goes now if it never counted, else once the next one counts."""
        assert self._file is not None
        self._file.close()
        self._file = None
        path = log_path(self.directory, self._generation)
        self._outdated.append(path)
        if self._is_new:
            self.disk.remove(path)
            self._outdated.pop()

    def _write_buffer(self) -> None:
        data = b"".join(self._buffer)
        if data:
            assert self._file is not None
            self._file.write(data, self._file_end)
            self._file_end += len(data)
            self.written_bytes += len(data)
        self._buffer.clear()

    def synced(self, sync: ConsumerSync, error: Exception | None) -> None:
        """Take note of the outcome of a sync."""
        assert sync is self._sync, "a sync is finished once"
        self._sync = None
        if error is not None:
            self._fail(error)
            return
        self._durable_bytes = sync.covers
        self._note_end()
        if self.failure is None or self._is_new:
            self._is_new = False
            self.failure = None
            self._remove_outdated()

    def _note_end(self) -> None:
        """Write how much of the file is durable into its first bytes, not to be synced itself."""
        behind = self.written_bytes - self._durable_bytes
        if self._file is not None and self._file_end > behind:
            with suppress(OSError):
                self._file.write(_note(self._file_end - behind), 0)

    def _remove_outdated(self) -> None:
        try:
            while self._outdated:
                self.disk.remove(self._outdated[-1])
                self._outdated.pop()
        except OSError:
            # It is tried again after the next sync; until then the newer file counts.
            return

    def _fail(self, error: Exception) -> None:
        self.failure = f"cannot store consumers in `{self.directory}`: {reason(error)}"

    def discard(self) -> None:
        """Close the file: nothing in it counts any more."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def close(self) -> None:
        """Make everything durable and close the file."""
        if self._file is not None or self._buffer or self.failure is not None:
            for _ in range(2):
                complete(self.flush())
        if self._file is not None:
            self._file.close()
        if self.failure is not None:
            raise StoreError(self.failure)
