"""
The deliveries and acks of consumers: one small log for all consumers of a stream.

The consumers in memory hold the truth; the log records what changed, and one sync covers the acks
of all of them. When the log has grown, and after a failure of the disk or a restart, the next
change begins a new file with the whole state of every consumer. The old file goes once the new one
is durable. So a failure needs no repair, and a torn end costs only what was never synced. A killed
server may have failed to sync its file: Linux then takes the data for written, and a later sync of
that file would succeed without it.

    consumers-00000007.log = start · one state a consumer · changes …

A file counts only if its start and all the states it announces check out.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence

from penstock.errors import StoreError, reason
from penstock.jetstream.consumers.consumerrecords import (
    ACKED,
    ADVANCED,
    DELIVERED,
    GIVEN_UP,
    REMOVED,
    START,
    Change,
    ConsumerState,
    encode,
    encode_state,
    is_complete,
    replay,
    scan,
)
from penstock.jetstream.store.file.disk import Disk, File, read_whole
from penstock.jetstream.store.values import Work, complete

LOG_BYTES_MIN = 256 * 1024
"""A log smaller than this is never rewritten."""


def log_path(directory: str, generation: int) -> str:
    """Return the path of a log file."""
    return f"{directory}/consumers-{generation:08d}.log"


def open_consumer_log(
    disk: Disk, directory: str
) -> tuple[ConsumerLog, dict[str, ConsumerState], list[str]]:
    """Open the log in a directory, or make one; return it with the states and notes."""
    disk.make_directory(directory)
    notes: list[str] = []
    files = _read_all(disk, directory)
    generations = list(files)
    complete_ones = [each for each, (changes, _) in files.items() if is_complete(changes)]
    log = ConsumerLog(disk, directory, max(generations, default=0))
    if not generations:
        return log, {}, missing_log(disk, directory)
    chosen = max(complete_ones, default=generations[-1])
    path = log_path(directory, chosen)
    changes, damaged = files[chosen]
    if not complete_ones:
        notes.append(f"`{path}` is not complete: a consumer missing in it starts over")
    if damaged:
        notes.append(f"`{path}`: {damaged} bytes are no record: dropped")
    log.replace(generations)
    return log, replay(changes), notes


def missing_log(disk: Disk, directory: str) -> list[str]:
    """Return a note if there are consumers, and nothing says how far they are."""
    # A name has no dot, so whatever has one is a log.
    has_consumers = any("." not in name for name in disk.names(directory))
    if not has_consumers or _generations(disk, directory):
        return []
    return [f"`{directory}` has no log of how far its consumers are: they start over"]


def read_states(disk: Disk, directory: str) -> dict[str, ConsumerState]:
    """Return the position of each consumer, from the log in a directory; change nothing."""
    files = _read_all(disk, directory)
    complete_ones = [each for each, (changes, _) in files.items() if is_complete(changes)]
    return replay(files[max(complete_ones or files)][0]) if files else {}


def _read_all(disk: Disk, directory: str) -> dict[int, tuple[list[Change], int]]:
    """Return the changes in each log file by its number, and the bytes that are not records."""
    return {
        each: scan(read_whole(disk, log_path(directory, each)) or b"")
        for each in _generations(disk, directory)
    }


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

    def replace(self, generations: Sequence[int]) -> None:
        """Begin a new file before anything else is safe, and remove these once it counts."""
        self._outdated = [log_path(self.directory, each) for each in generations]

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
        """Note messages that reached their maximum number of deliveries without an ack."""
        self._buffer.append(encode(Change(GIVEN_UP, name, 0, 0, 0, array("Q", stream_sequences))))

    def advanced(self, name: str, consumer_sequence: int, stream_sequence: int) -> None:
        """Note that everything up to here was delivered and is settled."""
        change = Change(ADVANCED, name, consumer_sequence, stream_sequence, 0, array("Q"))
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
        start = Change(START, "", self._generation, len(states), 0, array("Q"))
        records = [encode_state(name, state) for name, state in states.items()]
        self._file = self.disk.create(path)
        self._file_end = 0
        self._is_new = True
        self._buffer = [encode(start), *records]
        self._file_bytes_max = max(LOG_BYTES_MIN, 4 * sum(map(len, self._buffer)))

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
