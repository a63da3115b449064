"""
The files of a stream's consumers:

    <stream>/consumers/
        <name>/consumer.json      the configuration and the time of creation
        consumers-00000001.log    the position of each of them, see `consumerlog`

Changes are collected and handed over with the next commit, so that one sync covers the acks of all
consumers, and an ack that asked for an answer gets it when it is safe. Changes that nobody waits
for are collected a little longer: if a crash takes them, their messages are delivered again.
Deliveries that count towards a limit are written immediately, and synced with the others. A
consumer exists once its `consumer.json` does; records of other consumers in the log do not count.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import StoreError, cause
from penstock.hot.wire import Op
from penstock.jetstream.commit import side_by_side
from penstock.jetstream.config.consumer import ConsumerConfig
from penstock.jetstream.consumers.consumerlog import open_consumer_log
from penstock.jetstream.consumers.consumerrecords import ConsumerState
from penstock.jetstream.store.file.disk import Disk, write_whole
from penstock.jetstream.store.file.documents import encode_document, read_document
from penstock.jetstream.store.values import Independent, Work, complete
from penstock.jetstream.timers import Timer

if TYPE_CHECKING:
    from penstock.jetstream.context import Context

log = logging.getLogger("penstock")

FORMAT = 1
META = "consumer.json"
DISCARDED = "the stream was deleted"
COLLECT_NS = 20_000_000
"""How long to collect changes that nobody waits for."""

Done = Callable[[Exception | None], None]


class Meta(NamedTuple):
    """The metadata of a consumer: everything but its position."""

    config: ConsumerConfig
    created_ns: int
    resume_sequence: int
    """Where a consumer that began with the last message of each subject continues; else 0."""


class Filing(Independent):
    """The slow part of a commit: write consumers' changes, sync the log. A `Work`."""

    def __init__(self, disk: Disk, path: str, jobs: list[FileJob], sync: Work | None) -> None:
        self._jobs = jobs
        self._disk = disk
        self._path = path
        self._sync = sync
        self._error: Exception | None = None

    def write(self) -> None:
        """Write and remove files, durably. Touches nothing but files."""
        by_consumer: dict[str, list[FileJob]] = {}
        for job in self._jobs:
            by_consumer.setdefault(job.directory, []).append(job)
        side_by_side([partial(self._write, jobs) for jobs in by_consumer.values()])
        self._sync_names([job for job in self._jobs if job.content is not None])

    def _write(self, jobs: list[FileJob]) -> None:
        """Do the jobs of one consumer, in order."""
        for job in jobs:
            try:
                if job.content is None:
                    self._disk.remove_directory(job.directory)
                else:
                    self._disk.add_directory(job.directory)
                    write_whole(self._disk, f"{job.directory}/{META}", job.content)
            except Exception as error:
                job.error = error

    def _sync_names(self, jobs: list[FileJob]) -> None:
        """Make all their directories durable, with one sync."""
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
        """Report the outcome to the log."""
        if self._sync is not None:
            self._sync.finish(error or self._error)


class FileJob:
    """A consumer's file to be written, or its directory to be removed."""

    __slots__ = ("content", "directory", "done", "error")

    def __init__(self, directory: str, content: bytes | None, done: Done) -> None:
        self.directory = directory
        self.content = content
        self.done = done
        self.error: Exception | None = None

    def finish(self, error: Exception | None = None) -> None:
        """Report the outcome; an error in the callback must not affect other consumers."""
        try:
            self.done(self.error or error)
        except Exception as failed:
            log.error("`%s` cannot be answered: %s", self.directory, cause(failed))


class ConsumerFiles:
    """The files of one stream's consumers. A `commit.Durable`."""

    def __init__(self, context: Context, stream: str) -> None:
        self._context = context
        self._disk = context.files.disk
        self._path = context.files.consumers_path(stream)
        self._jobs: list[FileJob] = []
        self._owed: list[Op] = []
        self._committing: tuple[list[FileJob], list[Op]] = ([], [])
        self._had_failure = False
        self._is_discarded = False
        self._timer: Timer | None = None
        self.unserved: dict[str, ConsumerState] = {}
        """The states of consumers that could not be brought back: somebody may mend their files."""
        self.log, self.states, found = open_consumer_log(self._disk, self._path)
        self.faults = found.faults
        """The damage found when the files were opened, in words."""
        for note in found.notes:
            log.warning("Consumers of '%s > %s': %s", self._context.account_name, stream, note)

    def names(self) -> list[str]:
        """Return the names of the consumers on disk."""
        # A consumer's name has no dot, so a name with one is a log.
        return [name for name in self._disk.names(self._path) if "." not in name]

    def read(self, name: str) -> Meta | None:
        """Return the metadata of a consumer; None if it was never completely written."""
        return read_meta(self._disk, self._path, name)

    def write(self, meta: Meta, done: Done) -> None:
        """Store a consumer's configuration; call `done` when it is safe, or has failed."""
        document = {
            "format": FORMAT,
            "created_ns": meta.created_ns,
            "resume_sequence": meta.resume_sequence,
            "config": meta.config.to_json(),
        }
        path = f"{self._path}/{meta.config.name}"
        self._jobs.append(FileJob(path, encode_document(document), done))
        self._context.touch(self)

    def remove(self, name: str, done: Callable[[], None]) -> None:
        """Remove a consumer; call `done` when it cannot come back."""
        self.log.removed(name)
        self._jobs.append(FileJob(f"{self._path}/{name}", None, lambda error: done()))
        self._context.touch(self)

    def owe(self, publish: Op) -> None:
        """Publish this once everything noted so far is safe."""
        self._owed.append(publish)
        self._context.touch(self)

    def noted(self) -> None:
        """Take note that the log has a change that nobody waits for."""
        if self._timer is None or not self._timer.is_armed:
            deadline_ns = self._context.clock_ns() + COLLECT_NS
            self._timer = self._context.timers.at(deadline_ns, lambda now_ns: self._commit())

    def _commit(self) -> None:
        if not self._is_discarded:
            self._context.touch(self)

    @property
    def is_prompt(self) -> bool:
        """Whether files of consumers are to be written or removed."""
        return bool(self._jobs)

    @property
    def is_idle(self) -> bool:
        """Whether no file and no answer waits for a commit."""
        return not (self._jobs or self._owed or any(self._committing))

    def begin_commit(self) -> Work | None:
        """Hand the noted changes to the operating system."""
        if self._is_discarded:
            return None
        count = self._context.shared.allowance.take(len(self._jobs))
        if self._jobs and not count and not self._owed:
            # Nobody waits for the log alone. The next commit takes this one ahead of those that had
            # their turn.
            self._context.touch(self)
            return None
        jobs, owed = self._committing
        fresh, self._jobs = self._jobs[:count], self._jobs[count:]
        self._committing = (jobs + fresh, owed + self._owed)
        self._owed = []
        sync = self.log.flush()
        return Filing(self._disk, self._path, fresh, sync) if fresh else sync

    def end_commit(self) -> None:
        """Send the answers that waited for the commit; acks keep waiting while the disk fails."""
        jobs, owed = self._committing
        self._committing = ([], [])
        for job in jobs:
            job.finish(OSError(DISCARDED) if self._is_discarded else None)
        if self._is_discarded:
            return
        if self._jobs:
            self._context.touch(self)
        if self.log.failure is not None:
            self._fail(owed)
            return
        self._had_failure = False
        if owed:
            self._context.account.answer(owed)

    def fail_commit(self, reason: str) -> None:
        """Answer that it is unknown what is safe; acks wait for the next commit."""
        jobs, owed = self._committing
        self._committing = ([], [])
        for job in jobs:
            job.finish(OSError(reason))
        self._owed = owed + self._owed
        self._context.retry(self)

    def _fail(self, owed: list[Op]) -> None:
        if not self._had_failure:
            self._had_failure = True
            log.error("%s", self.log.failure)
        self._owed = owed + self._owed
        self._context.retry(self)

    def abandon(self) -> None:
        """Stop writing: the stream is deleted, and a successor may have its place."""
        self._is_discarded = True

    def discard(self) -> None:
        """Close the abandoned files."""
        jobs, self._jobs, self._owed = self._jobs, [], []
        self.log.discard()
        for job in jobs:
            job.finish(OSError(DISCARDED))

    def close(self) -> None:
        """Make everything durable and close the files. Blocks."""
        filing = Filing(self._disk, self._path, self._jobs, None)
        self._jobs = []
        complete(filing)
        try:
            self.log.close()
        except (OSError, StoreError) as error:
            log.error("%s", error)


def read_meta(disk: Disk, directory: str, name: str) -> Meta | None:
    """Return the metadata of a consumer; None if it was never completely written."""
    path = f"{directory}/{name}/{META}"
    document = read_document(disk, path, ("format", "created_ns", "resume_sequence", "config"))
    if document is None:
        return None
    try:
        config = ConsumerConfig.from_json(document["config"])
        meta = Meta(config, int(document["created_ns"]), int(document["resume_sequence"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"`{path}` is damaged: {error!r}") from error
    if config.name != name:
        raise StoreError(f"`{path}` is that of consumer `{config.name}`")
    return meta


class ConsumerRecord:
    """Records the changes of one consumer; does nothing for a consumer in memory."""

    def __init__(self, files: ConsumerFiles | None, name: str) -> None:
        self._files = files
        self._name = name

    def delivered(
        self, consumer_sequence: int, sequences: Sequence[int], time_ns: int, *, is_counted: bool
    ) -> None:
        """
        Note messages delivered, the first of them as `consumer_sequence`.

        Where deliveries are counted, the operating system gets the record before the messages
        leave: a killed server then knows of them, and delivers none too often.
        """
        if self._files is not None:
            self._files.log.delivered(self._name, consumer_sequence, sequences, time_ns)
            if is_counted:
                self._files.log.write()
            self._files.noted()

    def acked(self, sequences: Sequence[int]) -> None:
        """Note messages acknowledged."""
        if self._files is not None:
            self._files.log.acked(self._name, sequences)
            self._files.noted()

    def given_up(self, sequence: int) -> None:
        """Note a message that reached its maximum number of deliveries without an ack."""
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
