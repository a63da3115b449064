"""
JetStream in one account: its streams, and the routing of requests and acks to them.

The engine has no socket, no thread and no clock of its own. It listens in its account and answers
through it. Time and commits are the server's, see `shared`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.config.accounts import JetStreamLimits
from penstock.core.account import Account
from penstock.core.routing.route import ACK_PREFIX, Handler, Subscription, Traced
from penstock.errors import JetStreamError, StoreError, cause, reason
from penstock.jetstream.commit import Change
from penstock.jetstream.config import originrules, rules
from penstock.jetstream.config.patterns import STEPS_MAX, PatternIndex, Steps, TooManySteps
from penstock.jetstream.config.stream import StreamConfig
from penstock.jetstream.consumers import consumers
from penstock.jetstream.consumers.replies import FLOW_CONTROL_PREFIX, ConsumerReplies
from penstock.jetstream.context import Context
from penstock.jetstream.copies.originlookup import OriginLookup
from penstock.jetstream.files.streamfiles import Creation, StreamFiles, close_store
from penstock.jetstream.housekeeping import Housekeeping
from penstock.jetstream.quota import Quota
from penstock.jetstream.shared import Shared
from penstock.jetstream.store.memory import open_memory_store
from penstock.jetstream.store.store import Store
from penstock.jetstream.store.values import Work
from penstock.jetstream.stream import Stream
from penstock.jetstream.streamchanges import Deletion, RestoreEnd
from penstock.protocol import errorcodes

if TYPE_CHECKING:
    from penstock.jetstream.consumers.consumer import Consumer
    from penstock.jetstream.copies.remote import Remote

log = logging.getLogger("penstock")

UNLIMITED = JetStreamLimits()
Made = Callable[[Stream | None, JetStreamError | None], None]
"""Takes the stream once the request is fulfilled, or the error that prevented it."""


class JetStreamEngine:
    """The streams of one account."""

    def __init__(
        self,
        account: Account,
        shared: Shared,
        *,
        files: StreamFiles,
        limits: JetStreamLimits = UNLIMITED,
        remotes: Mapping[str, Remote] | None = None,
    ) -> None:
        """Begin; `remotes` are other servers to copy from, by the API prefix of each."""
        self.account = account
        self.shared = shared
        self.files = files
        self.quota = Quota(limits, shared.config, self, shared.tenants)
        self.context = Context(account, shared, files=files, quota=self.quota)
        self.streams: dict[str, Stream] = {}
        self._origin_lookup = OriginLookup(
            self.context, self.streams, {} if remotes is None else remotes
        )
        self._subjects = PatternIndex()
        """The subjects of the existing streams, and of those being made."""
        self._copying: dict[str, None] = {}
        """The names of the streams that copy from others."""
        self.creating: dict[str, Creation] = {}
        """Streams whose files are being made: their names, subjects and space are taken."""
        self.unreadable: dict[str, str] = {}
        """Streams on disk that could not be brought back, and why."""
        self._subscriptions: list[Subscription] = []
        self._replies = ConsumerReplies(account, self.consumer)
        self._housekeeping = Housekeeping(account.name)
        shared.tenants.append(self)

    def open(self) -> None:
        """Bring back the streams on disk and start listening."""
        self.files.prepare()
        for name in self.files.names():
            self._recover(name)
        self.listen(ACK_PREFIX + b">", self._replies.on_acks)
        self.listen(FLOW_CONTROL_PREFIX + b">", self._replies.on_flow_control)

    def listen(
        self, subject: bytes, handler: Handler, *, traced: Traced | None = None
    ) -> Subscription:
        """Call a handler with clients' messages to a subject, until `stop_listening`."""
        subscription = self.account.listen(subject, handler, traced=traced)
        self._subscriptions.append(subscription)
        return subscription

    def stop_listening(self) -> None:
        """Take no more messages and requests; earlier ones are still stored and answered."""
        for subscription in self._subscriptions:
            self.account.unlisten(subscription)
        self._subscriptions.clear()
        for stream in self.streams.values():
            stream.stop_listening()

    def close(self) -> None:
        """Make everything durable and close it. Blocks; no commit may be under way."""
        self.stop_listening()
        for stream in self.streams.values():
            stream.close()
            if stream.consumer_files is not None:
                stream.consumer_files.close()
            close_store(stream.store)
        self.streams.clear()

    # Failures.

    def retry_failed(self) -> None:
        """Commit again all streams whose disk has failed."""
        for stream in self.streams.values():
            stream.retry_failed()

    def failures(self) -> dict[str, str]:
        """Return the streams that cannot store at the moment, and why."""
        return {
            stream.name: stream.store.failure
            for stream in self.streams.values()
            if stream.store.failure is not None
        }

    def consumer_failures(self) -> dict[str, str]:
        """Return the streams whose consumers cannot be kept at the moment, and why."""
        opened = [(each.name, each.consumer_files) for each in self.streams.values()]
        return {
            name: files.log.failure
            for name, files in opened
            if files is not None and files.log.failure is not None
        }

    def unreadable_consumers(self) -> dict[str, str]:
        """Return the streams with a consumer on disk that could not be brought back, and why."""
        found = {each.name: each.unreadable_consumer for each in self.streams.values()}
        return {name: problem for name, problem in found.items() if problem}

    def maintain(self) -> Work | None:
        """Return the next piece of housekeeping that a store wants done; stores take turns."""
        if self.shared.rubbish:
            return self.shared.rubbish.sweep()
        return self._housekeeping.next(list(self.streams.values()))

    # Streams.

    def find(self, name: str) -> Stream:
        """Return a stream, or raise the error that it does not exist."""
        stream = self.streams.get(name)
        if stream is None:
            raise JetStreamError(errorcodes.STREAM_NOT_FOUND)
        return stream

    def find_config(self, name: str) -> StreamConfig | None:
        """Return the configuration of a stream, if it exists."""
        stream = self.streams.get(name) or self.creating.get(name)
        return None if stream is None else stream.config

    def create_stream(self, config: StreamConfig, done: Made, *, pedantic: bool = False) -> None:
        """Make a stream, or take an identical existing one; call `done` when it is safe."""
        config = rules.checked_create(config, self.find_config, pedantic=pedantic)
        originrules.check_reach(config, self._origin_lookup.includes)
        existing = self.streams.get(config.name)
        if existing is not None:
            if existing.config != config:
                raise JetStreamError(errorcodes.STREAM_NAME_EXIST)
            done(existing, None)
            return

        def made(stream: Stream | None, error: JetStreamError | None) -> None:
            if stream is not None:
                if config.first_seq > 1:
                    stream.purge(b">", before=config.first_seq)
                # First, so that a stream of advisories does not begin with its own.
                self.context.advisories.stream_action(config.name, "create")
                self._open_stream(stream)
            done(stream, error)

        self._add_stream(config, made)

    def begin_restore(self, config: StreamConfig, done: Made) -> None:
        """Make a stream that will be filled before it takes messages."""
        rules.check_replicas(config)
        if config.name in self.streams or config.name in self.creating:
            raise JetStreamError(errorcodes.STREAM_NAME_EXIST_RESTORE_FAILED)
        self._add_stream(config, done, is_restored=True)

    def end_restore(self, stream: Stream, done: Made) -> None:
        """Let a restored stream take messages; call `done` when it cannot be lost any more."""

        def kept(error: Exception | None) -> None:
            if error is not None:
                text = f"cannot write: {reason(error)}"
                done(None, JetStreamError(errorcodes.STREAM_RESTORE, err=text))
                return
            self._wake(stream)
            self.context.advisories.stream_action(stream.name, "create")
            self._open_stream(stream)
            done(stream, None)

        self.context.touch(stream)
        if stream.config.storage == "memory":
            kept(None)
        else:
            self.context.touch(RestoreEnd(stream, kept))

    def _add_stream(self, config: StreamConfig, done: Made, *, is_restored: bool = False) -> None:
        self._check_new(config)
        created_ns = self.context.clock_ns()
        if config.storage == "memory":
            done(self._new_stream(config, created_ns, open_memory_store()), None)
            return
        creation = Creation(self.files, config, created_ns, is_restored=is_restored)

        def made(error: Exception | None) -> None:
            del self.creating[config.name]
            self._forget(config.name)
            if error is None:
                assert creation.store is not None
                done(self._new_stream(config, created_ns, creation.store), None)
            else:
                failure = reason(error)
                log.error("Stream '%s' cannot be made: %s", config.name, failure)
                text = f"cannot write: {failure}"
                done(None, JetStreamError(errorcodes.STREAM_CREATE, err=text))
            creation.let_go()

        self.creating[config.name] = creation
        self._know(config)
        self.context.touch(Change(creation.run, made, last=self.files.sync_names))

    def _new_stream(self, config: StreamConfig, created_ns: int, store: Store) -> Stream:
        stream = Stream(
            self.context,
            config,
            created_ns=created_ns,
            store=store,
            origin_lookup=self._origin_lookup,
        )
        self.streams[stream.name] = stream
        self._know(stream.config)
        return stream

    def _know(self, config: StreamConfig) -> None:
        """Index the subjects and origins of a stream, so that a new one need not ask all others."""
        self._subjects.put(config.name, config.subjects)
        if config.mirror is not None or config.sources:
            self._copying[config.name] = None
        else:
            self._copying.pop(config.name, None)

    def _forget(self, name: str) -> None:
        self._subjects.remove(name)
        self._copying.pop(name, None)

    def _open_stream(self, stream: Stream) -> None:
        stream.open()
        for other in [self.streams.get(name) for name in self._copying]:
            if other is not None:
                other.origins.on_stream(stream)

    def check_update(
        self, stream: Stream, config: StreamConfig, *, pedantic: bool = False
    ) -> StreamConfig:
        """Return a changed configuration as it will be, or raise why it is refused."""
        config = rules.checked_update(stream.config, config, self.find_config, pedantic=pedantic)
        originrules.check_reach(config, self._origin_lookup.includes)
        self._check_overlap(config)
        self.quota.check_stream(config, stream.config)
        consumers.check_limits(stream, config)
        return config

    def update_stream(self, stream: Stream, config: StreamConfig, done: Made) -> None:
        """Change a stream's configuration, which is checked; call `done` when it is safe."""
        old = stream.config
        stream.update(config)
        self._know(config)

        def written(error: Exception | None) -> None:
            if error is None:
                self.context.advisories.stream_action(config.name, "modify")
                done(stream, None)
                return
            if stream.config is config and not stream.is_closed:
                stream.update(old)
                self._know(old)
            text = f"cannot write: {reason(error)}"
            done(None, JetStreamError(errorcodes.STREAM_UPDATE, err=text))

        def write() -> None:
            # A stream that was deleted meanwhile may have a successor of the same name.
            if stream.is_closed:
                raise OSError("the stream was deleted")
            self.files.write(config, stream.created_ns)

        if config.storage == "memory":
            written(None)
        else:
            self.context.touch(Change(write, written))

    def delete_stream(self, stream: Stream, done: Callable[[], None]) -> None:
        """Delete a stream, and call `done` once it cannot come back."""
        path = self._bury(stream)
        del self.streams[stream.name]
        stream.is_dropped = True
        self._forget(stream.name)
        for consumer in tuple(stream.consumers.values()):
            consumer.delete()
        stream.origins.close(for_good=True)
        stream.close()
        self.shared.dirty.pop(stream, None)
        if stream.consumer_files is not None:
            stream.consumer_files.abandon()
        self.context.advisories.stream_action(stream.name, "delete")

        def gone(error: Exception | None) -> None:
            # A stream that may come back after a power cut must come back whole.
            if path is not None and error is None:
                self.shared.rubbish.add(path)
            done()

        last = self.files.sync_names if path is not None else None
        self.context.touch(Deletion(stream, gone, last=last))

    def _bury(self, stream: Stream) -> str | None:
        """Move a stream's files out of sight; return their new path."""
        if stream.config.storage == "memory":
            return None
        try:
            return self.files.bury(stream.name)
        except OSError as error:
            raise JetStreamError(errorcodes.STREAM_DELETE, err=str(error)) from error

    def _recover(self, name: str) -> None:
        """Bring back one stream; an unreadable one does not keep the others away."""
        try:
            config, created_ns = self.files.read(name)
            store, findings = self.files.open_store(config)
            self._follow(config, store)
            stream = self._new_stream(config, created_ns, store)
            stream.losses.tell(findings.faults)
            self._serve(stream)
        except Exception as error:
            dropped = self.streams.pop(name, None)
            if dropped is not None:
                dropped.is_dropped = True
            self._forget(name)
            self.unreadable[name] = str(error)
            told = error if isinstance(error, OSError | StoreError) else cause(error)
            log.error("Stream '%s > %s' cannot be recovered: %s", self.account.name, name, told)
            return
        for note in findings.notes:
            log.warning("Stream '%s > %s': %s", self.account.name, name, note)
        log.info(
            "  Restored %s messages for stream '%s > %s'", store.messages, self.account.name, name
        )

    def _follow(self, config: StreamConfig, store: Store) -> None:
        """Go on from the time of a stream's newest message, if the clock was set back since."""
        # Times in a mirror are those of another clock.
        if config.mirror is None and not self.shared.clock.reach(store.state().last_time_ns):
            log.warning(
                "Stream '%s > %s' has messages of more than a day ahead: they expire late, and so "
                "do new ones in it; check the clock of this machine",
                self.account.name,
                config.name,
            )

    def _serve(self, stream: Stream) -> None:
        """Serve a stream that was found on disk."""
        # After a crash a message may be there without the removal of those it pushed out.
        stream.store.enforce(self.context.clock_ns())
        self.context.touch(stream)
        stream.open()
        self._wake(stream)
        consumers.recover(stream)

    def _wake(self, stream: Stream) -> None:
        """Schedule the timed work for the messages of a recovered stream."""
        if stream.config.allow_msg_ttl:
            stream.intake.expiry.recover()
        if stream.config.allow_msg_schedules:
            stream.intake.schedules.recover()

    # Limits.

    def _check_new(self, config: StreamConfig) -> None:
        self._check_overlap(config)
        self.quota.check_stream(config)

    def _check_overlap(self, config: StreamConfig) -> None:
        if not self.storing(config.subjects) <= {config.name}:
            raise JetStreamError(errorcodes.STREAM_SUBJECT_OVERLAP)

    def storing(self, patterns: Iterable[str]) -> set[str]:
        """Return the names of the streams that store subjects of some patterns."""
        steps = Steps(STEPS_MAX)
        try:
            return {name for each in patterns for name in self._subjects.overlapping(each, steps)}
        except TooManySteps:
            raise rules.invalid(rules.TOO_BROAD) from None

    @property
    def stream_count(self) -> int:
        """The number of streams, including those being made."""
        return len(self.streams) + len(self.creating)

    def reserved_bytes(self, storage: str) -> int:
        """Return the bytes that streams with a `max_bytes` may take together."""
        return sum(max(each.max_bytes, 0) for each in self._taken() if each.storage == storage)

    def _taken(self) -> list[StreamConfig]:
        """Return the configurations of the existing streams, and of those being made."""
        made = [each.config for each in self.streams.values()]
        return made + [each.config for each in self.creating.values()]

    def used_bytes(self, storage: str) -> int:
        """Return the bytes that streams take together."""
        return sum(each.store.size_bytes for each in self._stored_in(storage))

    def _stored_in(self, storage: str) -> list[Stream]:
        return [each for each in self.streams.values() if each.config.storage == storage]

    def consumer(self, stream: str, name: str) -> Consumer | None:
        """Return a consumer by its stream's name and its own."""
        found = self.streams.get(stream)
        return found.consumers.get(name) if found is not None else None
