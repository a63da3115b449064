"""
JetStream in one account: its streams, and everything that happens by itself.

The engine has no socket, no thread and no clock of its own. It listens in its
account, answers through it, and is driven from outside:

    engine.begin_commit()               after each tick: what is to be made durable, see `commit`
    engine.timers.next_deadline_ns()    when something is due without any message
    engine.timers.run(now_ns)           do it

For a consumer the engine is where time comes from (`clock_ns`, `timers.at`), how
messages leave (`account.publish`, `account.deliver_as`), where interest is asked
for (`account.has_interest`) and watched (`account.routes.watch`), and whom to
tell of changes that are not safe yet (`touch`). Acks, flow control and pull
requests come to it through `Consumer.on_acks`, `on_flow_control` and `on_next`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from penstock import hot
from penstock.config.accounts import JetStreamLimits
from penstock.core.account import Account
from penstock.core.routing.route import ACK_PREFIX
from penstock.errors import JetStreamError, StoreError, cause, reason
from penstock.hot.wire import Op
from penstock.jetstream import quota
from penstock.jetstream.advisories import Advisories
from penstock.jetstream.api import clusterapi, consumerapi, snapshotapi, streamapi
from penstock.jetstream.api.api import Api
from penstock.jetstream.commit import Allowance, Change, Commit, Durable, release
from penstock.jetstream.config import originrules, rules
from penstock.jetstream.config.patterns import STEPS_MAX, PatternIndex, Steps, TooManySteps
from penstock.jetstream.config.stream import StreamConfig
from penstock.jetstream.consumers import consumers
from penstock.jetstream.copies.remote import AccountRemote, Remote
from penstock.jetstream.files.rubbish import Rubbish
from penstock.jetstream.files.streamfiles import Creation, Deletion, StreamFiles, close_store
from penstock.jetstream.store.memory import open_memory_store
from penstock.jetstream.store.values import Store, Work
from penstock.jetstream.stream import Consumer, Stream
from penstock.jetstream.timers import Timer, Timers
from penstock.protocol import errorcodes, subjects

if TYPE_CHECKING:
    from penstock.config.server import JetStreamConfig
    from penstock.core.session import Session

log = logging.getLogger("penstock")

CALLS = streamapi.CALLS | snapshotapi.CALLS | consumerapi.CALLS | clusterapi.CALLS
FLOW_CONTROL_PREFIX = b"$JS.FC."
RETRY_NS = 1_000_000_000
"""How long after a failure of the disk it is tried again."""
UNLIMITED = JetStreamLimits()
Made = Callable[[Stream | None, JetStreamError | None], None]
"""Takes the stream once it is as it was asked for, or why it is not."""
NAME_CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class Engine:
    """The streams of one account."""

    def __init__(
        self,
        account: Account,
        config: JetStreamConfig,
        *,
        server_name: str,
        clock_ns: Callable[[], int],
        random: Callable[[], float],
        files: StreamFiles,
        limits: JetStreamLimits = UNLIMITED,
        remotes: Mapping[str, Remote] | None = None,
        beside: Engine | None = None,
    ) -> None:
        """Begin; engines of one server share their deadlines and their commits."""
        self.account = account
        self.config = config
        self.server_name = server_name
        self.domain = config.domain or ""
        self.waits_for_sync = config.sync == "always"
        """Whether answers wait until what they promise would survive a power cut."""
        self.clock_ns = clock_ns
        self.files = files
        self.limits = limits
        self.remotes = {} if remotes is None else remotes
        """Other servers that streams may copy from, by the API prefix that stands for each."""
        self.peers: list[Engine] = [] if beside is None else beside.peers
        """The engines of all accounts, this one among them."""
        self.peers.append(self)
        self.timers: Timers = Timers() if beside is None else beside.timers
        self.streams: dict[str, Stream] = {}
        self._subjects = PatternIndex()
        self.creating: dict[str, Creation] = {}
        """Streams whose files are being made: their names, subjects and room are taken."""
        self.unreadable: dict[str, str] = {}
        """Streams on disk that could not be brought back, and why."""
        self.unreadable_consumers: dict[str, str] = {}
        """Streams with a consumer on disk that could not be brought back, and why."""
        self.dirty: dict[Durable, None] = {} if beside is None else beside.dirty
        """What has changes that no commit has covered yet, in order."""
        self.allowance: Allowance = Allowance() if beside is None else beside.allowance
        self.rubbish: Rubbish = Rubbish(files.disk) if beside is None else beside.rubbish
        """The files of deleted streams of all accounts."""
        self.appended_bytes = 0
        """What all commits together gave the streams to write."""
        self.advisories = Advisories(self)
        self.api = Api(self, CALLS)
        self.random = random
        self._retry: Timer | None = None
        self._turn = 0
        """Which stream is asked first whether it wants housekeeping."""
        self._untidy: set[str] = set()
        """Streams whose housekeeping fails."""

    def open(self) -> None:
        """Bring back the streams on disk and start to listen."""
        self.files.prepare()
        for name in self.files.names():
            self._recover(name)
        self.api.open()
        self.account.listen(ACK_PREFIX + b">", self._on_acks)
        self.account.listen(FLOW_CONTROL_PREFIX + b">", self._on_flow_control)

    def close(self) -> None:
        """Make everything durable and let go of it. Blocks; no commit may be under way."""
        for stream in self.streams.values():
            stream.close()
            if stream.consumer_files is not None:
                stream.consumer_files.close()
            close_store(stream.store)
        self.streams.clear()

    def new_id(self, length: int = 22) -> str:
        """Return a random name: 22 characters for an event, 8 for an ephemeral consumer."""
        return "".join(NAME_CHARACTERS[int(self.random() * 62)] for _ in range(length))

    def is_likely(self, percent: int) -> bool:
        """Return True so often in a hundred times."""
        return self.random() * 100 < percent

    # Commits.

    def touch(self, item: Durable) -> None:
        """Say that something has changes which are to be made durable."""
        self.dirty[item] = None

    def begin_commit(self) -> Commit | None:
        """Begin to make all changes so far durable, if there are any."""
        return Commit(self._take_dirty()) if self.dirty else None

    def write_unsynced(self) -> tuple[list[Work], Commit | None]:
        """
        Write all changes so far, answer, and return what is to make them durable later.

        And a commit for what is answered only then: files that were made, and that
        whoever kills the server now must find.
        """
        items = self._take_dirty()
        prompt = [item for item in items if item.is_prompt]
        works = release([item for item in items if item not in prompt])
        return works, Commit(prompt) if prompt else None

    def _take_dirty(self) -> list[Durable]:
        """Return what the next commit covers; some of what can wait stays for the ones after."""
        self.allowance.renew()
        items = [item for item in self.dirty if not self._waits(item)]
        for item in items:
            del self.dirty[item]
        return items

    def _waits(self, item: Durable) -> bool:
        return isinstance(item, Change) and item.can_wait and not self.allowance.take(1)

    def failed(self) -> None:
        """Try again after a while: the disk may be well by then."""
        if self._retry is None or not self._retry.is_armed:
            deadline_ns = self.clock_ns() + RETRY_NS
            self._retry = self.timers.at(deadline_ns, lambda now_ns: self.retry_failed())

    def retry_failed(self) -> None:
        """Try all streams again that can not store."""
        for stream in self.streams.values():
            if stream.store.failure is not None:
                self.touch(stream)

    def retry(self, item: Durable) -> None:
        """Have something committed again after a while."""
        self.timers.at(self.clock_ns() + RETRY_NS, lambda now_ns: self.touch(item))

    def failures(self) -> dict[str, str]:
        """Return the streams that can not store at the moment, and why."""
        return {
            stream.name: stream.store.failure
            for stream in self.streams.values()
            if stream.store.failure is not None
        }

    def consumer_failures(self) -> dict[str, str]:
        """Return the streams whose consumers can not be kept at the moment, and why."""
        opened = [(each.name, each.consumer_files) for each in self.streams.values()]
        return {
            name: files.log.failure
            for name, files in opened
            if files is not None and files.log.failure is not None
        }

    def maintain(self) -> Work | None:
        """Return the next piece of housekeeping that some store wants done; they take turns."""
        if self.rubbish:
            return self.rubbish.sweep()
        streams = list(self.streams.values())
        for index in range(self._turn, self._turn + len(streams)):
            work = self._maintained(streams[index % len(streams)])
            if work is not None:
                self._turn = index % len(streams) + 1
                return work
        return None

    def _maintained(self, stream: Stream) -> Work | None:
        """Ask one stream; one that fails at it is skipped, and said so once."""
        try:
            work = stream.store.maintain()
        except Exception as error:
            if stream.name not in self._untidy:
                self._untidy.add(stream.name)
                name = f"{self.account.name} > {stream.name}"
                log.error("Stream '%s' can not be kept in order: %s", name, cause(error))
            return None
        self._untidy.discard(stream.name)
        return work

    # Streams.

    def find(self, name: str) -> Stream:
        """Return a stream, or raise the error that says it is not there."""
        stream = self.streams.get(name)
        if stream is None:
            raise JetStreamError(errorcodes.STREAM_NOT_FOUND)
        return stream

    def find_config(self, name: str) -> StreamConfig | None:
        """Return the configuration of a stream, if it is there."""
        stream = self.streams.get(name) or self.creating.get(name)
        return None if stream is None else stream.config

    def create_stream(self, config: StreamConfig, done: Made, *, pedantic: bool = False) -> None:
        """Make a stream, or take the one that is there and is the same; say so when it is safe."""
        config = rules.checked_create(config, self.find_config, pedantic=pedantic)
        originrules.check_reach(config, self._reaches)
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
                self.advisories.stream_action(config.name, "create")
                self._open_stream(stream)
            done(stream, error)

        self._add_stream(config, made)

    def begin_restore(self, config: StreamConfig, done: Made) -> None:
        """Make a stream that is to be filled before it takes messages."""
        rules.check_replicas(config)
        if config.name in self.streams or config.name in self.creating:
            raise JetStreamError(errorcodes.STREAM_NAME_EXIST_RESTORE_FAILED)
        self._add_stream(config, done)

    def end_restore(self, stream: Stream) -> None:
        """Let a stream that was filled take messages."""
        if stream.config.allow_msg_ttl:
            stream.expiry.recover()
        self.advisories.stream_action(stream.name, "create")
        self._open_stream(stream)

    def _add_stream(self, config: StreamConfig, done: Made) -> None:
        self._check_new(config)
        created_ns = self.clock_ns()
        if config.storage == "memory":
            done(self._new_stream(config, created_ns, open_memory_store()), None)
            return
        creation = Creation(self.files, config, created_ns)

        def made(error: Exception | None) -> None:
            del self.creating[config.name]
            if error is None:
                assert creation.store is not None
                done(self._new_stream(config, created_ns, creation.store), None)
            else:
                failure = reason(error)
                log.error("Stream '%s' can not be made: %s", config.name, failure)
                text = f"can not write: {failure}"
                done(None, JetStreamError(errorcodes.STREAM_CREATE, err=text))
            creation.let_go()

        self.creating[config.name] = creation
        self.touch(Change(creation.run, made, last=self.files.sync_names))

    def _new_stream(self, config: StreamConfig, created_ns: int, store: Store) -> Stream:
        stream = Stream(self, config, created_ns=created_ns, store=store)
        self.streams[config.name] = stream
        return stream

    def _open_stream(self, stream: Stream) -> None:
        stream.open()
        for other in self.streams.values():
            if other.config.mirror is not None or other.config.sources:
                other.origins.on_stream(stream)

    def update_stream(
        self, stream: Stream, config: StreamConfig, done: Made, *, pedantic: bool = False
    ) -> None:
        """Change a stream's configuration; say so when it is safe."""
        config = rules.checked_update(stream.config, config, self.find_config, pedantic=pedantic)
        originrules.check_reach(config, self._reaches)
        self._check_overlap(config)
        quota.check_stream(self, config, stream)
        consumers.check_limits(stream, config)
        old = stream.config
        stream.update(config)

        def written(error: Exception | None) -> None:
            if error is None:
                self.advisories.stream_action(config.name, "modify")
                done(stream, None)
                return
            if stream.config is config and not stream.is_closed:
                stream.update(old)
            text = f"can not write: {reason(error)}"
            done(None, JetStreamError(errorcodes.STREAM_UPDATE, err=text))

        def write() -> None:
            # A stream that was deleted meanwhile may have a successor of its name.
            if stream.is_closed:
                raise OSError("the stream was deleted")
            self.files.write(config, stream.created_ns)

        if config.storage == "memory":
            written(None)
        else:
            self.touch(Change(write, written))

    def delete_stream(self, stream: Stream, done: Callable[[], None]) -> None:
        """Take a stream away, and call `done` once it can not come back."""
        path = self._bury(stream)
        del self.streams[stream.name]
        for consumer in tuple(stream.consumers.values()):
            consumer.delete()
        stream.origins.close(for_good=True)
        stream.close()
        self.dirty.pop(stream, None)
        if stream.consumer_files is not None:
            stream.consumer_files.abandon()
        self.advisories.stream_action(stream.name, "delete")

        def gone(error: Exception | None) -> None:
            # What may come back after a power cut must come back whole.
            if path is not None and error is None:
                self.rubbish.add(path)
            done()

        last = self.files.sync_names if path is not None else None
        self.touch(Deletion(stream, gone, last=last))

    def _bury(self, stream: Stream) -> str | None:
        """Take a stream's files out of sight; return where they are now."""
        if stream.config.storage == "memory":
            return None
        try:
            return self.files.bury(stream.name)
        except OSError as error:
            raise JetStreamError(errorcodes.STREAM_DELETE, err=str(error)) from error

    def _recover(self, name: str) -> None:
        """Bring back one stream; one that can not be read does not keep the others away."""
        try:
            config, created_ns = self.files.read(name)
            store, notes = self.files.open_store(config)
            self.files.make_room_for_consumers(name)
            self._serve(Stream(self, config, created_ns=created_ns, store=store))
        except Exception as error:
            self.streams.pop(name, None)
            self.unreadable[name] = str(error)
            told = error if isinstance(error, OSError | StoreError) else cause(error)
            log.error("Stream '%s > %s' can not be recovered: %s", self.account.name, name, told)
            return
        for note in notes:
            log.warning("Stream '%s > %s': %s", self.account.name, name, note)
        log.info(
            "  Restored %s messages for stream '%s > %s'", store.messages, self.account.name, name
        )

    def _serve(self, stream: Stream) -> None:
        """Go on with a stream that was found on disk."""
        self.streams[stream.name] = stream
        # A crash may have kept a message and not the removal of those it pushed out.
        stream.store.enforce(self.clock_ns())
        self.touch(stream)
        stream.open()
        if stream.config.allow_msg_ttl:
            stream.expiry.recover()
        if stream.config.allow_msg_schedules:
            stream.schedules.recover()
        consumers.recover(stream)

    # Origins elsewhere.

    def remote_of(self, origin: Mapping[str, Any]) -> Remote | None:
        """Return how an origin is reached; None if it is a stream here that can be read."""
        external = origin.get("external")
        if external is not None:
            api = external.get("api", "")
            return self.remotes.get(api) or AccountRemote(self, api)
        return AccountRemote(self, originrules.API_PREFIX) if origin.get("consumer") else None

    def _reaches(self, api: str) -> bool:
        imports = [each for each in self.account.config.imports if each.kind == "service"]
        pattern = f"{api}.>".encode()
        imported = any(subjects.overlap(each.local.encode(), pattern) for each in imports)
        return api in self.remotes or (bool(api) and imported)

    # Limits.

    def _check_new(self, config: StreamConfig) -> None:
        self._check_overlap(config)
        quota.check_stream(self, config)

    def _check_overlap(self, config: StreamConfig) -> None:
        if not self.storing(config.subjects) <= {config.name}:
            raise JetStreamError(errorcodes.STREAM_SUBJECT_OVERLAP)

    def storing(self, patterns: Iterable[str]) -> set[str]:
        """Return the names of the streams that store subjects of some patterns."""
        self._subjects.refresh({each.name: each.subjects for each in self._taken()})
        steps = Steps(STEPS_MAX)
        try:
            return {name for each in patterns for name in self._subjects.overlapping(each, steps)}
        except TooManySteps:
            raise rules.invalid(rules.TOO_BROAD) from None

    def reserved_bytes(self, storage: str) -> int:
        """Return what streams with a bound may take together."""
        return sum(max(each.max_bytes, 0) for each in self._taken() if each.storage == storage)

    def _taken(self) -> list[StreamConfig]:
        """Return what the streams are that there are, and those that are being made."""
        made = [each.config for each in self.streams.values()]
        return made + [each.config for each in self.creating.values()]

    def used_bytes(self, storage: str) -> int:
        """Return what streams take together."""
        return sum(each.store.size_bytes for each in self._stored_in(storage))

    def _stored_in(self, storage: str) -> list[Stream]:
        return [each for each in self.streams.values() if each.config.storage == storage]

    # What clients send to consumers.

    def consumer(self, stream: str, name: str) -> Consumer | None:
        """Return a consumer by the names of its stream and its own."""
        found = self.streams.get(stream)
        return found.consumers.get(name) if found is not None else None

    def _on_acks(self, batch: list[Op], publisher: Session | None) -> None:
        """Hand acks to their consumers, those for the same one together."""
        prefix, consumer = self._ack_target(batch[0][1])
        if consumer is not None and hot.have_prefix(batch, prefix):
            consumer.on_acks(batch, len(prefix))
            return
        prefix, consumer = b" ", None
        group: list[Op] = []
        for publish in batch:
            if not publish[1].startswith(prefix):
                if consumer is not None:
                    consumer.on_acks(group, len(prefix))
                prefix, consumer = self._ack_target(publish[1])
                group = []
            if consumer is None:
                self.account.answer_no_responders([publish], publisher)
            group.append(publish)
        if consumer is not None:
            consumer.on_acks(group, len(prefix))

    def _ack_target(self, subject: bytes) -> tuple[bytes, Consumer | None]:
        """Return what the acks of this one's consumer start with, and the consumer."""
        if not subject.startswith(ACK_PREFIX):
            return b" ", None
        tokens = subject.split(b".")
        # The newer form has the domain and a hash of the account before the names.
        start = 4 if len(tokens) >= 11 else 2
        names = [token.decode(errors="replace") for token in tokens[start : start + 2]]
        prefix = b".".join(tokens[: start + 2]) + b"."
        consumer = self.consumer(*names) if len(tokens) >= start + 7 else None
        return prefix, consumer if consumer is not None and consumer.hears_acks else None

    def _on_flow_control(self, batch: list[Op], publisher: Session | None) -> None:
        for publish in batch:
            tokens = publish[1].decode(errors="replace").split(".")
            is_ours = len(tokens) > 3 and publish[1].startswith(FLOW_CONTROL_PREFIX)
            consumer = self.consumer(tokens[2], tokens[3]) if is_ours else None
            if consumer is not None:
                consumer.on_flow_control(publish)
