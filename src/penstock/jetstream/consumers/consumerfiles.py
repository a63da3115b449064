"""
Where the consumers of a stream are kept:

    <stream>/consumers/
        <name>/consumer.json      the configuration and the time of creation
        consumers-00000001.log    how far each of them is, see `consumerlog`

What is to be written is collected and handed over with the next commit, so that
one sync covers the acks of all consumers, and an ack that asked for an answer
gets it when it is safe. Changes that nobody waits for are collected a little
longer: what a crash takes of them is delivered again. A consumer is there once its
`consumer.json` is; what the log says of others does not count.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import StoreError, cause
from penstock.hot.wire import Op
from penstock.jetstream.commit import Independent, side_by_side
from penstock.jetstream.config.consumer import ConsumerConfig
from penstock.jetstream.consumers.consumerlog import open_consumer_log
from penstock.jetstream.consumers.consumerrecords import ConsumerState
from penstock.jetstream.store.file.disk import Disk, read_whole, write_whole
from penstock.jetstream.store.values import Work, complete
from penstock.jetstream.timers import Timer

if TYPE_CHECKING:
    from penstock.jetstream.stream import Stream

log = logging.getLogger("penstock")

FORMAT = 1
META = "consumer.json"
DISCARDED = "the stream was deleted"
COLLECT_NS = 20_000_000
"""How long changes are collected that nobody waits for."""

Done = Callable[[Exception | None], None]


class Meta(NamedTuple):
    """What is known of a consumer beside how far it is."""

    config: ConsumerConfig
    created_ns: int
    resume_sequence: int
    """Where a consumer that began with the last message of each subject goes on; else 0."""


class Filing(Independent):
    """The slow part of a commit: write what is new of consumers, sync the log. A `Work`."""

    def __init__(self, disk: Disk, path: str, jobs: list[Job], sync: Work | None) -> None:
        self._jobs = jobs
        self._disk = disk
        self._path = path
        self._sync = sync
        self._error: Exception | None = None

    def write(self) -> None:
        """Write and remove files, durably. Touches nothing but files."""
        by_consumer: dict[str, list[Job]] = {}
        for job in self._jobs:
            by_consumer.setdefault(job.directory, []).append(job)
        side_by_side([partial(self._write, jobs) for jobs in by_consumer.values()])
        self._sync_names([job for job in self._jobs if job.content is not None])

    def _write(self, jobs: list[Job]) -> None:
        """Do what is to be done for one consumer, in order."""
        for job in jobs:
            try:
                if job.content is None:
                    self._disk.remove_directory(job.directory)
                else:
                    self._disk.add_directory(job.directory)
                    write_whole(self._disk, f"{job.directory}/{META}", job.content)
            except Exception as error:
                job.error = error

    def _sync_names(self, jobs: list[Job]) -> None:
        """Make the directories of all of them durable, with one sync."""
        try:
            if jobs:
                self._disk.sync_directory(self._path)
        except Exception as error:
            for job in jobs:
                job.error = job.error or error

    def run(self) -> None:
        """Return once all of it would survive a power cut."""
        self.write()
        if self._sync is not None:
            try:
                self._sync.run()
            except Exception as error:
                self._error = error

    def finish(self, error: Exception | None = None) -> None:
        """Tell the log how it went."""
        if self._sync is not None:
            self._sync.finish(error or self._error)


class Job:
    """A consumer's file to be written, or its directory to be removed."""

    __slots__ = ("content", "directory", "done", "error")

    def __init__(self, directory: str, content: bytes | None, done: Done) -> None:
        self.directory = directory
        self.content = content
        self.done = done
        self.error: Exception | None = None

    def finish(self, error: Exception | None = None) -> None:
        """Tell whoever waits how it went; what goes wrong with that is of no other's concern."""
        try:
            self.done(self.error or error)
        except Exception as failed:
            log.error("`%s` can not be answered: %s", self.directory, cause(failed))


class ConsumerFiles:
    """The files of one stream's consumers. A `commit.Durable`."""

    def __init__(self, stream: Stream) -> None:
        self._engine = stream.engine
        self._disk = stream.engine.files.disk
        self._path = stream.engine.files.consumers_path(stream.name)
        self._jobs: list[Job] = []
        self._owed: list[Op] = []
        self._committing: tuple[list[Job], list[Op]] = ([], [])
        self._had_failure = False
        self._is_discarded = False
        self._timer: Timer | None = None
        self.log, self.states, notes = open_consumer_log(self._disk, self._path)
        for note in notes:
            log.warning("Consumers of '%s > %s': %s", self._engine.account.name, stream.name, note)

    def names(self) -> list[str]:
        """Return the names of the consumers that are there."""
        # A name has no dot, so whatever has one is a log.
        return [name for name in self._disk.names(self._path) if "." not in name]

    def read(self, name: str) -> Meta | None:
        """Return what is known of a consumer; None if it was never completely written."""
        return read_meta(self._disk, self._path, name)

    def write(self, meta: Meta, done: Done) -> None:
        """Keep a consumer's configuration; call `done` when it is safe, or could not be kept."""
        document = {
            "format": FORMAT,
            "created_ns": meta.created_ns,
            "resume_sequence": meta.resume_sequence,
            "config": meta.config.to_json(),
        }
        content = json.dumps(document, indent=1).encode()
        self._jobs.append(Job(f"{self._path}/{meta.config.name}", content, done))
        self._engine.touch(self)

    def remove(self, name: str, done: Callable[[], None]) -> None:
        """Remove a consumer; call `done` when it can not come back."""
        self.log.removed(name)
        self._jobs.append(Job(f"{self._path}/{name}", None, lambda error: done()))
        self._engine.touch(self)

    def owe(self, publish: Op) -> None:
        """Publish this once everything noted so far is safe."""
        self._owed.append(publish)
        self._engine.touch(self)

    def noted(self) -> None:
        """Say that something was noted in the log that nobody waits for."""
        if self._timer is None or not self._timer.is_armed:
            deadline_ns = self._engine.clock_ns() + COLLECT_NS
            self._timer = self._engine.timers.at(deadline_ns, lambda now_ns: self._commit())

    def _commit(self) -> None:
        if not self._is_discarded:
            self._engine.touch(self)

    @property
    def is_prompt(self) -> bool:
        """Whether files of consumers are to be written or removed."""
        return bool(self._jobs)

    def begin_commit(self) -> Work | None:
        """Hand what was noted to the operating system."""
        if self._is_discarded:
            return None
        count = self._engine.allowance.take(len(self._jobs))
        if self._jobs and not count and not self._owed:
            # Nobody waits for the log alone. The next commit asks this one before those that
            # had their turn.
            self._engine.touch(self)
            return None
        jobs, owed = self._committing
        fresh, self._jobs = self._jobs[:count], self._jobs[count:]
        self._committing = (jobs + fresh, owed + self._owed)
        self._owed = []
        sync = self.log.flush()
        return Filing(self._disk, self._path, fresh, sync) if fresh else sync

    def end_commit(self) -> None:
        """Answer what waited for it; acks wait on while the disk fails."""
        jobs, owed = self._committing
        self._committing = ([], [])
        for job in jobs:
            job.finish(OSError(DISCARDED) if self._is_discarded else None)
        if self._is_discarded:
            return
        if self._jobs:
            self._engine.touch(self)
        if self.log.failure is not None:
            self._fail(owed)
            return
        self._had_failure = False
        if owed:
            self._engine.account.answer(owed)

    def fail_commit(self, reason: str) -> None:
        """Answer that nothing is known to be safe; acks wait for the next commit."""
        jobs, owed = self._committing
        self._committing = ([], [])
        for job in jobs:
            job.finish(OSError(reason))
        self._owed = owed + self._owed
        self._engine.retry(self)

    def _fail(self, owed: list[Op]) -> None:
        if not self._had_failure:
            self._had_failure = True
            log.error("%s", self.log.failure)
        self._owed = owed + self._owed
        self._engine.retry(self)

    def abandon(self) -> None:
        """Write no more: the stream is deleted, and a successor may have its place."""
        self._is_discarded = True

    def discard(self) -> None:
        """Let go of the files, which were abandoned."""
        jobs, self._jobs, self._owed = self._jobs, [], []
        self.log.discard()
        for job in jobs:
            job.finish(OSError(DISCARDED))

    def close(self) -> None:
        """Make everything durable and let go of the files. Blocks."""
        filing = Filing(self._disk, self._path, self._jobs, None)
        self._jobs = []
        complete(filing)
        try:
            self.log.close()
        except (OSError, StoreError) as error:
            log.error("%s", error)


def read_meta(disk: Disk, directory: str, name: str) -> Meta | None:
    """Return what is known of a consumer; None if it was never completely written."""
    path = f"{directory}/{name}/{META}"
    content = read_whole(disk, path)
    if content is None:
        return None
    try:
        document = json.loads(content)
        return Meta(
            ConsumerConfig.from_json(document["config"]),
            int(document["created_ns"]),
            int(document["resume_sequence"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"`{path}` is damaged: {error!r}") from error


class ConsumerRecord:
    """What is written down of one consumer as it goes; nothing of one that is not kept."""

    def __init__(self, files: ConsumerFiles | None, name: str) -> None:
        self._files = files
        self._name = name

    def delivered(self, consumer_sequence: int, sequences: Sequence[int], time_ns: int) -> None:
        """Note messages delivered, the first of them as `consumer_sequence`."""
        if self._files is not None:
            self._files.log.delivered(self._name, consumer_sequence, sequences, time_ns)
            self._files.noted()

    def acked(self, sequences: Sequence[int]) -> None:
        """Note messages acknowledged."""
        if self._files is not None:
            self._files.log.acked(self._name, sequences)
            self._files.noted()

    def given_up(self, sequence: int) -> None:
        """Note a message that was delivered as often as it may be, without an ack."""
        if self._files is not None:
            self._files.log.given_up(self._name, (sequence,))
            self._files.noted()

    def advanced(self, consumer_sequence: int, sequence: int) -> None:
        """Note that everything up to here was delivered and is settled."""
        if self._files is not None:
            self._files.log.advanced(self._name, consumer_sequence, sequence)
            self._files.noted()

    def put(self, state: ConsumerState) -> None:
        """Note the whole state: the consumer was reset."""
        if self._files is not None:
            self._files.log.put(self._name, state)
            self._files.noted()
