"""
One stream: its configuration, its store, its consumers, and the answers it owes.

The way of a message:

    intake.on_publish(batch)    checks it, `store.append`, remembers the reply subject
    context.touch(stream)       the stream has changes that are not safe yet
    begin_commit / end_commit   the disk has them: PubAcks leave, and `visible_sequence` moves
    consumer.on_messages()      each consumer looks for new messages

A consumer sees messages only up to `visible_sequence`. So nobody can have seen a message that a
power cut takes back, and no consumer is ever positioned after a sequence that is given again.
Answers that show stored messages also wait for the commit, if those are not durable yet, and so do
answers that report a failure.

When the disk fails, the store goes back to what is durable (see `retreat`), and only then does
everybody who waits get an answer: stored after all, or lost. If even that fails, whoever changed
something waits until it is known, and readers get what is certain, or an error.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.core.routing.route import Subscription
from penstock.errors import JetStreamError, StoreError, cause
from penstock.jetstream.answers import Answers, Owed
from penstock.jetstream.config.patterns import PatternIndex
from penstock.jetstream.config.stream import StreamConfig, store_limits
from penstock.jetstream.copies.origins import Origins
from penstock.jetstream.intake.pubacks import PubAcks
from penstock.jetstream.intake.publish import Intake
from penstock.jetstream.intake.readback import ReadBack
from penstock.jetstream.losses import Losses
from penstock.jetstream.promise import NO_END
from penstock.jetstream.readers import Copier, RetainingReader
from penstock.jetstream.shared import RETRY_NS
from penstock.jetstream.store.retreat import Retreat
from penstock.jetstream.store.store import Store
from penstock.jetstream.store.values import Message, Work
from penstock.jetstream.timers import Timer
from penstock.jetstream.unsafedeletes import UnsafeDeletes
from penstock.protocol import errorcodes

if TYPE_CHECKING:
    from penstock.jetstream.consumers.consumer import Consumer
    from penstock.jetstream.consumers.consumerfiles import ConsumerFiles
    from penstock.jetstream.context import Context
    from penstock.jetstream.copies.originlookup import OriginLookup

log = logging.getLogger("penstock")

AGE_CHECK_NS_MIN = 10_000_000
"""Messages that grow too old within this time of each other are removed together."""
AGED_AT_ONCE = 4096
"""The number of old messages to remove before others have their turn."""
AGE_RETRY_NS = 1_000_000_000
"""How long after a failure to try the removal again."""
PURGES_TOLD_MAX = 16
"""How many purges of one commit consumers compare with their filters."""
EVERYTHING = b">"


class Stream:
    """A stream that is being served."""

    is_prompt = False

    def __init__(
        self,
        context: Context,
        config: StreamConfig,
        *,
        created_ns: int,
        store: Store,
        origin_lookup: OriginLookup,
    ) -> None:
        self.context = context
        self.config = config
        self.name_bytes = config.name.encode()
        self.created_ns = created_ns
        self.store = store
        self.consumers: dict[str, Consumer] = {}
        """By name. After adding or removing one, call `consumers_changed`."""
        self.consumer_files: ConsumerFiles | None = None
        """The files of consumers; opened for the first consumer on disk."""
        self.followers: list[Copier] = []
        """Mirrors and sources that read this stream."""
        self.visible_sequence = store.last_sequence
        """The last message that consumers may see."""
        self.last_time_ns = store.state().last_time_ns
        self.is_closed = False
        self.is_dropped = False
        """Whether its account no longer has it: it is deleted, or could not be read."""
        self.unreadable_consumer = ""
        """The consumer on disk that could not be brought back, and why."""
        pubacks = PubAcks(context.account, context.domain)
        self.answers = Answers(context.account, store, pubacks, self.touch, lambda: self.is_settled)
        self.intake = Intake(self, pubacks)
        self.origins = Origins(self, origin_lookup)
        self._subscriptions: list[Subscription] = []
        self._committing_position = 0
        self._age_timer: Timer | None = None
        self._retry: Timer | None = None
        self.is_held = False
        """Whether consumers wait until it is known which messages exist."""
        self.is_deciding = False
        """Whether the next commit may tell which messages exist, so that requests wait for it."""
        self._waiting: list[Callable[[], None]] = []
        """Actions for when that is known."""
        self._had_failure = False
        self._is_retreating = False
        self._retreats = 0
        self._is_untidy = False
        """Whether messages are to be removed as soon as the disk works again."""
        self._removes = False
        self._purged: dict[bytes, int] = {}
        """The purges that consumers do not know of yet, and what is left: see `skip_purged`."""
        self._removal_position = 0
        """The position up to which the store must be durable for removed messages to be gone."""
        self.unsafe_deletes = UnsafeDeletes()
        self._unneeded = ReadBack(self, "messages nobody waits for", self._remove_unneeded)
        self._looks_again: bool | None = None
        """Whether to look for those once more when the look under way is over; None without one."""
        self.losses = Losses(store, f"{context.account_name} > {config.name}")
        self.consumer_filters = PatternIndex()
        """For a work queue, to find whether two consumers would share messages."""
        self._apply_config()

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self.config.name

    @property
    def identity(self) -> str:
        """Tells the stream from an earlier one of the same name."""
        digest = hashlib.sha256(f"{self.name} {self.created_ns}".encode()).digest()
        return base64.b32encode(digest)[:8].decode()

    def touch(self) -> None:
        """Make the next commit include the changes of the stream."""
        self.context.touch(self)

    def open(self) -> None:
        """Start listening on the subjects of the stream."""
        account = self.context.account
        self._subscriptions = [
            account.listen(
                subject.encode(),
                self.intake.on_publish,
                is_internal=False,
                deliver=lambda _, publishes: self.intake.on_publish(publishes, None),
                traced=self.intake.on_traced,
            )
            for subject in self.config.subjects
        ]
        self._arm_age_timer()
        self.origins.open()
        # Copied messages can be read from their origin again, and others may know of them.
        copies = self.config.mirror is not None or bool(self.config.sources)
        self.store.options.takes_back = self.context.waits_for_sync and not copies

    def close(self) -> None:
        """Stop listening and all timers; the engine closes the store."""
        self.origins.close()
        self.is_closed = True
        for follower in tuple(self.followers):
            follower.detach()
        self.stop_listening()
        for consumer in tuple(self.consumers.values()):
            consumer.close()
        self.consumers.clear()
        if self._age_timer is not None:
            self._age_timer.cancel()
        self.intake.close()
        self._unneeded.cancel()

    @contextmanager
    def prepared(self, config: StreamConfig) -> Iterator[Iterator[None]]:
        """Remove what a new configuration has no room for, with time for others; see the store."""
        with self.store.prepared(store_limits(config)) as portions:
            yield self._touching(portions)

    def _touching(self, portions: Iterator[None]) -> Iterator[None]:
        for _ in portions:
            self.touch()
            yield
            if self.is_closed:
                return

    def update(self, config: StreamConfig) -> None:
        """Apply a checked configuration."""
        self.stop_listening()
        self.config = config
        self._apply_config()
        self.store.enforce(self.context.clock_ns(), aged_max=AGED_AT_ONCE)
        if config.allow_msg_ttl:
            self.intake.expiry.age_out(self.context.clock_ns())
        self.open()
        self.touch()

    def stop_listening(self) -> None:
        """Take no more messages."""
        for subscription in self._subscriptions:
            self.context.account.unlisten(subscription)
        self._subscriptions = []

    def _apply_config(self) -> None:
        self.store.limits = store_limits(self.config)
        self.answers.is_silent = self.config.no_ack
        self.intake.configure()
        self.origins.configure()

    # Visibility.

    @property
    def is_settled(self) -> bool:
        """Whether everything stored would survive a power cut, as far as that is promised."""
        return not self.store.options.takes_back or (self.store.is_settled and not self._is_behind)

    @property
    def _is_behind(self) -> bool:
        """Whether the store has taken messages back that the stream still counts on."""
        return self.store.retreats != self._retreats

    @property
    def safe_sequence(self) -> int:
        """Return the sequence up to which messages may be shown immediately."""
        if self.is_settled:
            return NO_END
        return 0 if self._has_unsafe_removals else self.store.durable_sequence

    @property
    def _has_unsafe_removals(self) -> bool:
        return self._removes or self.store.durable_position < self._removal_position

    @property
    def is_in_doubt(self) -> bool:
        """Whether the disk has failed, and it is not known yet which messages exist."""
        return self.store.failure is not None and not self.is_settled

    def wait(self, action: Callable[[], None]) -> None:
        """Do something when it is known which messages exist, or that this cannot be known."""
        self._waiting.append(action)

    # Commits.

    def begin_commit(self) -> Work | None:
        """Hand the appended messages to the operating system."""
        if self.is_closed:
            # Another stream may have its name, and so its place on disk, by now.
            return None
        store = self.store
        self.answers.begin_commit()
        # Forget the messages taken back before anything new is stored.
        work = store.flush() if store.retreats == self._retreats else None
        self._is_retreating = isinstance(work, Retreat)
        position = store.position
        self.unsafe_deletes.begin_commit(position)
        if self._removes:
            self._removes, self._removal_position = False, position
        self.context.shared.appended_bytes += position - self._committing_position
        self._committing_position = position
        return work

    def end_commit(self) -> None:
        """Send the acks of messages that are safe now, or report the failure; wake consumers."""
        if self.is_closed:
            return
        store, owed = self.store, self.answers.take_committing()
        if store.failure is not None:
            self._on_failure(owed, store.failure)
            return
        if self._had_failure:
            self._on_well()
        self.unsafe_deletes.end_commit(store.durable_position)
        if not self.context.waits_for_sync:
            self.visible_sequence = store.last_sequence
        else:
            self.visible_sequence = store.durable_sequence
            if store.durable_position < self._committing_position:
                # At the end of a segment a store syncs only that, and the rest the next time.
                owed = self.answers.hold_back(owed, self.visible_sequence)
        self.origins.on_safe(self.visible_sequence)
        self.answers.send(owed)
        if self.config.max_age:
            self._arm_age_timer()
        if self._purged and not self._has_unsafe_removals:
            self._tell_purged()
        if self._waiting:
            self._go_on()
        if self.consumers or self.followers:
            self._wake()

    def _go_on(self) -> None:
        """Run the actions that waited until it was known which messages exist."""
        waiting, self._waiting = self._waiting, []
        for action in waiting:
            try:
                action()
            except Exception as error:
                self._complain("a request that waited", error)

    def _wake(self) -> None:
        """Let all readers look for new messages."""
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

    def _tell_purged(self) -> None:
        """Tell consumers that messages are gone, once they cannot come back."""
        purged, self._purged = self._purged, {}
        self.is_held = False
        for consumer in tuple(self.consumers.values()):
            for pattern, left in purged.items():
                consumer.on_purged(pattern, left)

    def fail_commit(self, reason: str) -> None:
        """Try again later: it is not known what is safe."""
        owed = self.answers.take_committing()
        if not self.is_closed:
            self.answers.put_back(owed)
            self._note_failure(reason)
            self.context.retry(self)
            self._stop_deciding(reason)

    # Failures.

    def _on_failure(self, owed: list[Owed], failure: str) -> None:
        """Find out which messages exist, and answer everybody who waits."""
        self._note_failure(failure)
        self.answers.put_back(owed)
        if self._is_behind:
            self.is_held = True
            self._forget_taken_back()
            # Only now: if this fails, because it reads too, all of it is done again.
            self._retreats = self.store.retreats
            self._go_back(JetStreamError(errorcodes.STREAM_STORE_FAILED, err=failure))
        elif self.is_in_doubt and not self._is_retreating:
            self.is_held = self.is_deciding = True
            self.touch()
            return
        self.is_held = False
        self._stop_deciding(failure)
        self._retry_later()

    def _stop_deciding(self, failure: str) -> None:
        """Let nobody wait for the disk except those who must not be refused."""
        self.is_deciding = False
        if self.is_in_doubt:
            error = JetStreamError(errorcodes.STREAM_STORE_FAILED, err=failure)
            self.answers.refuse_views(error, lambda failed: self._complain("an answer", failed))
        self._go_on()

    def _retry_later(self) -> None:
        """Commit again after a while: the disk may work by then."""
        if self._retry is None or not self._retry.is_armed:
            deadline_ns = self.context.clock_ns() + RETRY_NS
            self._retry = self.context.timers.at(deadline_ns, lambda now_ns: self.retry_failed())

    def retry_failed(self) -> None:
        """Commit again if the disk has failed."""
        if self.store.failure is not None:
            self.touch()

    def _note_failure(self, failure: str) -> None:
        if not self._had_failure:
            self._had_failure = True
            account = self.context.account.name
            log.error("Stream '%s > %s' cannot store: %s", account, self.name, failure)

    def _forget_taken_back(self) -> None:
        """Continue with the remaining messages."""
        last_sequence = self.visible_sequence = self.store.last_sequence
        self._is_untidy = True
        self._purged, self._removes = {}, False
        self.unsafe_deletes.clear()
        self.intake.go_back(last_sequence)
        self._arm_age_timer()
        for consumer in tuple(self.consumers.values()):
            consumer.go_back()

    def _go_back(self, error: JetStreamError) -> None:
        """Answer everybody who waits whether their message exists."""
        self.is_held = self.is_deciding = False
        self.answers.decide(error, lambda failed: self._complain("an answer", failed))
        self._wake()

    def _on_well(self) -> None:
        """Take messages again, and do the removals that had to wait."""
        self._had_failure = self.is_deciding = False
        log.info("Stream '%s > %s' stores again", self.context.account.name, self.name)
        if self._is_untidy:
            self._is_untidy = False
            self.store.enforce(self.context.clock_ns())
            for consumer in tuple(self.consumers.values()):
                consumer.drop_settled()
            self.consumers_changed()
            self.touch()

    def _complain(self, what: str, error: Exception) -> None:
        """Log the error of one reader; the others still hear of new messages."""
        account = self.context.account.name
        log.error("Stream '%s > %s': %s cannot go on: %s", account, self.name, what, cause(error))

    # Removal.

    def remove(self, sequences: Iterable[int], *, erase: bool = False) -> int:
        """Remove messages, now or once the disk works again; return how many existed."""
        if self.is_failing:
            self._is_untidy = True
            return 0
        removed = self.store.remove(sequences, erase=erase)
        if removed:
            self._removes = True
            self.touch()
        return removed

    def delete(self, sequence: int, *, erase: bool) -> bool:
        """Remove one message; tell whether it existed. Consumers pass by it once that is safe."""
        removed = self.remove([sequence], erase=erase)
        if removed and self.store.options.takes_back:
            self.unsafe_deletes.add(sequence)
        return bool(removed)

    @property
    def is_failing(self) -> bool:
        """Whether no change is possible for now that might have to be taken back."""
        return self.store.failure is not None and self.store.options.takes_back

    def purge(self, pattern: bytes, *, before: int = 0) -> int:
        """Remove the messages that match; return how many."""
        purged = self.store.purge(pattern, before=before)
        self.skip_purged(pattern)
        return purged

    def purge_in_portions(self, pattern: bytes, *, before: int = 0) -> Iterator[int]:
        """Remove the messages that match; yield how many, with time for others in between."""
        for purged in self.store.purge_in_portions(pattern, before=before):
            self.skip_purged(pattern)
            yield purged
            if self.is_closed:
                return

    def skip_purged(self, pattern: bytes, left: int = 0) -> None:
        """
        Make consumers skip what was purged, once that cannot come back.

        `left` is the first message that still matches, or the number of the next one; 0 if that
        was not looked up.
        """
        self.touch()
        if len(self._purged) >= PURGES_TOLD_MAX:
            # They cannot all be compared with all filters.
            self._purged = {EVERYTHING: 0}
        self._purged[pattern] = left
        if self.store.options.takes_back:
            self._removes = self.is_held = True
        else:
            self._tell_purged()

    def roll_up(self, previous: int) -> None:
        """Remove the one message a subject had before its newest: the usual rollup, done fast."""
        self.remove([previous])
        self.skip_purged(EVERYTHING)

    @property
    def readers(self) -> list[RetainingReader]:
        """All readers for which messages are kept."""
        return [*self.consumers.values(), *self.followers]

    def remove_consumer(self, name: str) -> None:
        """Forget a consumer that is being deleted."""
        self.consumers.pop(name, None)

    def add_copier(self, copier: Copier) -> None:
        """Keep messages for a mirror or source that reads this stream, and notify it of more."""
        self.followers.append(copier)
        self.consumers_changed()

    def remove_copier(self, copier: Copier) -> None:
        """Forget a mirror or source."""
        self.followers.remove(copier)
        if not self.is_closed:
            self.consumers_changed()

    def on_acked(self, reader: RetainingReader, sequences: Iterable[int]) -> None:
        """Drop messages that retention kept only for this reader: it has settled them."""
        if self.config.retention == "workqueue":
            self.remove(sequences)
        elif self.config.retention == "interest":
            self._drop_unneeded(reader, tuple(sequences))

    def _drop_unneeded(self, reader: RetainingReader, sequences: tuple[int, ...]) -> None:
        others = [each for each in self.readers if each is not reader]
        try:
            self.remove([each for each in sequences if not self._is_needed(each, others)])
        except StoreError as error:
            # Who needs a message depends on its subject, which cannot be read for now.
            self._complain("what was acked", error)
            deadline_ns = self.context.clock_ns() + RETRY_NS
            self.context.timers.at(deadline_ns, lambda now_ns: self._drop_again(reader, sequences))

    def _drop_again(self, reader: RetainingReader, sequences: tuple[int, ...]) -> None:
        if not self.is_closed:
            self._drop_unneeded(reader, sequences)

    def _is_needed(self, sequence: int, readers: list[RetainingReader]) -> bool:
        message = self.store.get(sequence) if readers else None
        return message is not None and any(each.needs(sequence, message[2]) for each in readers)

    def consumers_changed(self) -> None:
        """Drop messages that nobody waits for any more; called after a consumer came or went."""
        if self.config.retention != "interest":
            return
        if self._looks_again is None:
            self._looks_again = False
            self._unneeded.begin(self._on_looked)
        else:
            # The look under way has passed some messages already.
            self._looks_again = True

    def _remove_unneeded(self, messages: Sequence[Message]) -> None:
        readers = self.readers
        self.remove(
            stored
            for stored, _, subject, _, _ in messages
            if not any(each.needs(stored, subject) for each in readers)
        )

    def _on_looked(self) -> None:
        again, self._looks_again = self._looks_again, None
        if again:
            self.consumers_changed()

    # Age.

    def _arm_age_timer(self) -> None:
        """Wake up when the oldest message will be too old, unless a timer is set already."""
        if self._age_timer is not None and self._age_timer.is_armed:
            return
        oldest_ns = self._oldest_time_ns() if self.config.max_age else 0
        if oldest_ns:
            deadline_ns = oldest_ns + self.config.max_age
            deadline_ns = max(deadline_ns, self.context.clock_ns() + AGE_CHECK_NS_MIN)
            self._age_timer = self.context.timers.at(deadline_ns, self._on_age)

    def _oldest_time_ns(self) -> int:
        if self.config.allow_msg_ttl:
            return self.intake.expiry.oldest_time_ns()
        return self.store.state().first_time_ns

    def _on_age(self, now_ns: int) -> None:
        try:
            if self.config.allow_msg_ttl:
                self.intake.expiry.age_out(now_ns)
            elif self.store.enforce(now_ns, aged_max=AGED_AT_ONCE):
                self.touch()
            self._arm_age_timer()
        except Exception:
            self._age_timer = self.context.timers.at(now_ns + AGE_RETRY_NS, self._on_age)
            raise

    # For answers.

    @property
    def consumer_count(self) -> int:
        """The number of consumers, without those that serve other streams directly."""
        return sum(not consumer.config.direct for consumer in self.consumers.values())
