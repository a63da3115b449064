"""
One stream: its configuration, its store, its consumers, and the answers it owes.

How a message goes through:

    intake.on_publish(batch)    checks it, `store.append`, remembers who waits for the ack
    engine.touch(stream)        the stream has changes that are not safe yet
    begin_commit / end_commit   the disk has them: PubAcks leave, and `visible_sequence` moves
    consumer.on_messages()      each consumer looks for what is new to it

A consumer sees messages up to `visible_sequence` and no further. So nobody can
have seen a message that a power cut takes back, and no consumer ever stands
behind a sequence that is given again.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from penstock.core.routing.route import Subscription
from penstock.errors import JetStreamError, cause
from penstock.hot.wire import Op
from penstock.jetstream.config.patterns import PatternIndex
from penstock.jetstream.config.stream import StreamConfig, store_limits
from penstock.jetstream.copies.origins import Origins
from penstock.jetstream.intake.expiry import Expiry
from penstock.jetstream.intake.publish import Intake
from penstock.jetstream.intake.schedules import Schedules
from penstock.jetstream.store import lookup
from penstock.jetstream.store.values import Store, Work
from penstock.jetstream.timers import Timer
from penstock.protocol import errorcodes
from penstock.protocol.jsontext import Encoded
from penstock.protocol.rfc3339 import format_time

if TYPE_CHECKING:
    from penstock.core.session import Session
    from penstock.jetstream.config.consumer import ConsumerConfig
    from penstock.jetstream.consumers.consumerfiles import ConsumerFiles
    from penstock.jetstream.copies.follower import StreamFollower
    from penstock.jetstream.engine import Engine

log = logging.getLogger("penstock")

AGE_CHECK_NS_MIN = 10_000_000
"""Messages that grow too old within so short a time are removed together."""
AGE_RETRY_NS = 1_000_000_000
"""How long after a failure it is tried again to remove them."""

Json = dict[str, Any]
Owed = tuple[int, list[Any]]
"""
An answer that waits: PubAcks as (first sequence, reply subjects), others as (0, publishes).
"""
LOST_LISTED_MAX = 1000
"""Damaged messages that StreamInfo names."""
LOST_LOGGED_MAX = 100
"""Damaged messages that get a line in the log each; then every hundredth does."""
ANNOUNCED = -1
"""In place of the sequence: publishes that are no answers."""


class Reader(Protocol):
    """What a stream asks of those for whom it may have to keep messages."""

    def wants(self, subject: bytes) -> bool:
        """Tell whether its filters let messages of this subject through."""

    def needs(self, sequence: int, subject: bytes) -> bool:
        """Tell whether it wants this message and has not settled it yet."""


class Consumer(Reader, Protocol):
    """What a stream and the engine ask of a consumer."""

    name: str
    hears_acks: bool
    """Whether acks on `$JS.ACK` are for it."""
    config: ConsumerConfig

    def on_messages(self) -> None:
        """`stream.visible_sequence` has moved up: deliver what is wanted of it."""

    def on_purged(self) -> None:
        """Messages were purged: skip those that are gone, also among the pending ones."""

    def on_acks(self, publishes: list[Op], skip: int) -> None:
        """
        Take acks, in the order in which they came.

        `publish[1][skip:]` is `<delivered>.<stream seq>.<consumer seq>.<time>.<pending>`,
        the payload says which kind, `publish[2]` is who wants to know that it is safe.
        """

    def on_flow_control(self, publish: Op) -> None:
        """Take a client's answer to a flow control request."""

    def on_next(self, publish: Op, publisher: Session | None) -> None:
        """Take a pull request; `publish[2]` is the inbox."""

    def close(self) -> None:
        """Let go of timers, interest and files: the stream is closed. Nothing is deleted."""

    def delete(self) -> None:
        """Tell those who wait that the consumer is gone, remove its files, then as `close`."""


class Stream:
    """A stream that is being served."""

    def __init__(
        self, engine: Engine, config: StreamConfig, *, created_ns: int, store: Store
    ) -> None:
        self.engine = engine
        self.config = config
        self.name_bytes = config.name.encode()
        self.created_ns = created_ns
        self.store = store
        self.consumers: dict[str, Consumer] = {}
        """By name. Whoever adds or removes one calls `consumers_changed`."""
        self.consumer_files: ConsumerFiles | None = None
        """Where consumers are kept; opened for the first that is."""
        self.followers: list[StreamFollower] = []
        """Mirrors and sources that read this stream."""
        self.visible_sequence = store.last_sequence
        """The last message that consumers may see."""
        self.last_time_ns = store.state().last_time_ns
        self.is_closed = False
        self.is_prompt = False
        """Whether it waits until a file is written that says how far its sources were read."""
        self.intake = Intake(self)
        self.expiry = Expiry(self)
        self.schedules = Schedules(self)
        self.origins = Origins(self)
        self._subscriptions: list[Subscription] = []
        self._owed: list[Owed] = []
        self._committing: list[Owed] = []
        self._committing_position = 0
        self._age_timer: Timer | None = None
        self._had_failure = False
        self._lost_sequences: list[int] = []
        store.watch_damage(self._on_lost)
        self.consumer_filters = PatternIndex()
        """Of a work queue, to find whether two consumers would share messages."""
        self._apply_config()

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self.config.name

    @property
    def identity(self) -> str:
        """What tells the stream from another that had its name before."""
        digest = hashlib.sha256(f"{self.name} {self.created_ns}".encode()).digest()
        return base64.b32encode(digest)[:8].decode()

    def open(self) -> None:
        """Start to listen on the subjects of the stream."""
        account = self.engine.account
        self._subscriptions = [
            account.listen(
                subject.encode(),
                self.intake.on_publish,
                is_internal=False,
                deliver=lambda _, publishes: self.intake.on_publish(publishes, None),
            )
            for subject in self.config.subjects
        ]
        self._arm_age_timer()
        self.origins.open()

    def close(self) -> None:
        """Stop to listen and to do anything by itself; the store is left to the engine."""
        self.origins.close()
        self.is_closed = True
        for follower in tuple(self.followers):
            follower.detach()
        self._stop_listening()
        for consumer in tuple(self.consumers.values()):
            consumer.close()
        self.consumers.clear()
        if self._age_timer is not None:
            self._age_timer.cancel()
        self.expiry.close()
        self.schedules.close()
        self.intake.close()

    def update(self, config: StreamConfig) -> None:
        """Become what a checked configuration says."""
        self._stop_listening()
        self.config = config
        self._apply_config()
        self.store.enforce(self.engine.clock_ns())
        self.expiry.age_out(self.engine.clock_ns())
        self.open()
        self.engine.touch(self)

    def _stop_listening(self) -> None:
        for subscription in self._subscriptions:
            self.engine.account.unlisten(subscription)
        self._subscriptions = []

    def _apply_config(self) -> None:
        self.store.limits = store_limits(self.config)
        self.intake.configure()
        self.expiry.configure()
        self.origins.configure()

    # Acks.

    def owe_acks(self, first_sequence: int, replies: list[bytes]) -> None:
        """Answer each reply subject, b"" is none, with its sequence once that is safe."""
        self._owed.append((first_sequence, replies))

    def owe(self, publishes: list[Op]) -> None:
        """Publish these once everything before them is safe."""
        self._owed.append((0, publishes))

    def announce(self, publishes: list[Op]) -> None:
        """As `owe`, but nobody waits: if the disk fails, they leave once it is well again."""
        self._owed.append((ANNOUNCED, publishes))

    def answer(self, reply: bytes, document: bytes) -> None:
        """Answer at once, without waiting for anything."""
        if reply and not self.config.no_ack:
            self.engine.account.send(reply, document)

    def begin_commit(self) -> Work | None:
        """Hand what was appended to the operating system."""
        self._committing += self._owed
        self._owed = []
        work = self.store.flush()
        position = self.store.position
        self.engine.appended_bytes += position - self._committing_position
        self._committing_position = position
        return work

    def end_commit(self) -> None:
        """Send the acks of what is safe now, or say why it is not; wake the consumers."""
        if self.is_closed:
            return
        owed, self._committing = self._committing, []
        failure = self.store.failure
        if failure is not None:
            self._fail(owed, failure)
            return
        if self._had_failure:
            self._had_failure = False
            log.info("Stream '%s > %s' stores again", self.engine.account.name, self.name)
        store = self.store
        if not self.engine.waits_for_sync:
            self.visible_sequence = store.last_sequence
        else:
            self.visible_sequence = store.durable_sequence
            if store.durable_position < self._committing_position:
                # At the end of a segment a store syncs that first, and the rest the next time.
                owed = self._hold_back(owed)
        self.is_prompt = self.origins.on_safe(self.visible_sequence)
        if self.is_prompt:
            self._owed = owed + self._owed
            self.engine.touch(self)
        else:
            self._send(owed)
        if self.config.max_age:
            self._arm_age_timer()
        for consumer in tuple(self.consumers.values()):
            try:
                consumer.on_messages()
            except Exception as error:
                self._complain(f"consumer `{consumer.name}`", error)
        for follower in tuple(self.followers):
            try:
                follower.on_messages()
            except Exception as error:
                self._complain("who copies from it", error)

    def fail_commit(self, reason: str) -> None:
        """Tell everybody who waits that it failed, and try again."""
        owed, self._committing = self._committing, []
        if not self.is_closed:
            self._fail(owed, reason)
            self.engine.retry(self)

    def _complain(self, what: str, error: Exception) -> None:
        """Say what went wrong with one of many who hear of new messages."""
        account = self.engine.account.name
        log.error("Stream '%s > %s': %s can not go on: %s", account, self.name, what, cause(error))

    def _hold_back(self, owed: list[Owed]) -> list[Owed]:
        """Return what is safe of what is owed; all behind that waits for the next commit."""
        self.engine.touch(self)
        for index, (first_sequence, items) in enumerate(owed):
            # An ack needs its message; other answers need everything before them.
            safe = max(self.visible_sequence + 1 - first_sequence, 0) if first_sequence > 0 else 0
            if safe < len(items):
                rest = (first_sequence + safe, items[safe:])
                self._owed = [rest, *owed[index + 1 :], *self._owed]
                return owed[:index] + ([(first_sequence, items[:safe])] if safe else [])
        return owed

    def _send(self, owed: list[Owed]) -> None:
        for first_sequence, items in owed:
            if first_sequence > 0:
                self.intake.send_acks(first_sequence, items)
            elif first_sequence == ANNOUNCED:
                self.engine.account.publish(items, None)
            else:
                self.engine.account.answer(items)

    def _fail(self, owed: list[Owed], failure: str) -> None:
        """Answer everybody who waited that the disk failed; try again with the next commit."""
        if not self._had_failure:
            self._had_failure = True
            log.error(
                "Stream '%s > %s' can not store: %s", self.engine.account.name, self.name, failure
            )
        error = self.intake.refusal(JetStreamError(errorcodes.STREAM_STORE_FAILED, err=failure))
        self._owed = [each for each in owed if each[0] == ANNOUNCED] + self._owed
        for sequence, items in owed:
            if sequence == ANNOUNCED:
                continue
            replies = items if sequence else [publish[1] for publish in items]
            for reply in replies:
                self.answer(reply, error)
        self.engine.failed()

    def _on_lost(self, sequence: int) -> None:
        """Report a message that is damaged on disk; of many, the first few and then the sum."""
        if len(self._lost_sequences) < LOST_LISTED_MAX:
            self._lost_sequences.append(sequence)
        lost = self.store.lost
        if lost <= LOST_LOGGED_MAX or lost % LOST_LOGGED_MAX == 0:
            log.error(
                "Stream '%s > %s': message %d is damaged on disk and lost (%d so far); "
                "hint: `penstock store check` tells what else is",
                self.engine.account.name,
                self.name,
                sequence,
                lost,
            )

    # Removal.

    def remove(self, sequences: Iterable[int], *, erase: bool = False) -> int:
        """Remove messages; return how many were there."""
        removed = self.store.remove(sequences, erase=erase)
        if removed:
            self.engine.touch(self)
        return removed

    def purge(self, pattern: bytes, *, before: int = 0, keep: int = 0) -> int:
        """Remove the messages that match; return how many."""
        purged = self.store.purge(pattern, before=before, keep=keep)
        self.origins.on_purged()
        self.engine.touch(self)
        for consumer in tuple(self.consumers.values()):
            consumer.on_purged()
        return purged

    def roll_up(self, previous: int) -> None:
        """Remove the one message a subject had before its newest: the usual rollup, done fast."""
        self.remove([previous])
        for consumer in tuple(self.consumers.values()):
            consumer.on_purged()

    @property
    def readers(self) -> list[Reader]:
        """Everybody for whom messages are kept."""
        return [*self.consumers.values(), *self.followers]

    def on_acked(self, reader: Reader, sequences: Iterable[int]) -> None:
        """Drop what retention kept for this reader only: it has settled these messages."""
        if self.config.retention == "workqueue":
            self.remove(sequences)
        elif self.config.retention == "interest":
            others = [each for each in self.readers if each is not reader]
            self.remove([each for each in sequences if not self._is_needed(each, others)])

    def _is_needed(self, sequence: int, readers: list[Reader]) -> bool:
        message = self.store.get(sequence) if readers else None
        return message is not None and any(each.needs(sequence, message[2]) for each in readers)

    def consumers_changed(self) -> None:
        """Drop what nobody waits for any more; called after a consumer came or went."""
        if self.config.retention != "interest":
            return
        readers = self.readers
        for messages in lookup.batches(self.store):
            self.remove(
                stored
                for stored, _, subject, _, _ in messages
                if not any(each.needs(stored, subject) for each in readers)
            )

    # Age.

    def _arm_age_timer(self) -> None:
        """Wake up when the oldest message will be too old, unless that is arranged for."""
        if self._age_timer is not None and self._age_timer.is_armed:
            return
        oldest_ns = self._oldest_time_ns() if self.config.max_age else 0
        if oldest_ns:
            deadline_ns = oldest_ns + self.config.max_age
            deadline_ns = max(deadline_ns, self.engine.clock_ns() + AGE_CHECK_NS_MIN)
            self._age_timer = self.engine.timers.at(deadline_ns, self._on_age)

    def _oldest_time_ns(self) -> int:
        if self.config.allow_msg_ttl:
            return self.expiry.oldest_time_ns()
        return self.store.state().first_time_ns

    def _on_age(self, now_ns: int) -> None:
        try:
            if self.config.allow_msg_ttl:
                self.expiry.age_out(now_ns)
            elif self.store.enforce(now_ns):
                self.engine.touch(self)
            self._arm_age_timer()
        except Exception:
            self._age_timer = self.engine.timers.at(now_ns + AGE_RETRY_NS, self._on_age)
            raise

    # What clients are told.

    @property
    def consumer_count(self) -> int:
        """How many consumers there are, without those that serve other streams directly."""
        return sum(not consumer.config.direct for consumer in self.consumers.values())

    def info(self) -> Json:
        """Return StreamInfo as create and update answer it."""
        return self.info_with(self.config.to_answer())

    def info_with(self, config: Json | Encoded) -> Json:
        """Return StreamInfo with the configuration as it is told."""
        info: Json = {
            "config": config,
            "created": format_time(self.created_ns),
            "state": self.state(),
        }
        if self.engine.domain:
            info["domain"] = self.engine.domain
        info |= self.origins.info()
        return info | {"ts": format_time(self.engine.clock_ns())}

    def state(self, *, subjects: Mapping[str, int] | None = None, deleted_max: int = 0) -> Json:
        """Return the figures of the stream, with these subjects, and so many deleted sequences."""
        state = self.store.state()
        document: Json = {
            "messages": state.messages,
            "bytes": state.size_bytes,
            "first_seq": state.first_sequence if state.last_sequence else 0,
            "first_ts": format_time(state.first_time_ns),
            "last_seq": state.last_sequence,
            "last_ts": format_time(state.last_time_ns or self.last_time_ns),
        }
        optional: Json = {
            "num_subjects": state.subjects,
            "subjects": subjects,
            "num_deleted": state.deleted,
            "deleted": self.store.deleted(deleted_max) if deleted_max else None,
            "lost": state.lost
            and {"msgs": self._lost_sequences or None, "bytes": 0, "count": state.lost},
        }
        document |= {name: value for name, value in optional.items() if value}
        return document | {"consumer_count": self.consumer_count}
