"""
One consumer: what it delivers next, to whom, and what happens by itself.

    backlog   what of the stream is still to come, in order
    ledger    what was delivered, and what of it is settled
    outlet    where messages go: waiting pull requests, or a deliver subject

Everything that may let messages flow (a request, an ack, a new message, a
deadline, a subscriber) ends in `deliver`, which moves them in batches from the
backlog, or from what is due again, through the outlet into the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.core.account import new_message, payloads
from penstock.hot.wire import Op
from penstock.jetstream.config.consumer import ConsumerConfig
from penstock.jetstream.config.stream import is_api_level_known
from penstock.jetstream.consumers import acks, consumerinfo, encoding
from penstock.jetstream.consumers.acks import Delivery
from penstock.jetstream.consumers.backlog import Backlog
from penstock.jetstream.consumers.consumerevents import ConsumerEvents
from penstock.jetstream.consumers.consumerfiles import ConsumerFiles, ConsumerRecord
from penstock.jetstream.consumers.consumerrecords import ConsumerState
from penstock.jetstream.consumers.encoding import Deliveries
from penstock.jetstream.consumers.ledger import Ledger
from penstock.jetstream.consumers.outlets import new_outlet, update_outlet
from penstock.jetstream.consumers.pull import PullRequests
from penstock.jetstream.consumers.pullrequest import encode_status
from penstock.jetstream.consumers.push import TOKEN_LENGTH, PushDelivery
from penstock.jetstream.store.columns import Matcher
from penstock.jetstream.store.values import Message
from penstock.jetstream.timers import Timer
from penstock.protocol import subjects

if TYPE_CHECKING:
    from penstock.core.session import Session
    from penstock.jetstream.stream import Stream

GONE_CHECK_NS = 100_000_000
"""How long after a purge it is looked which messages that wait for an ack are gone."""
RETRY_NS = 1_000_000_000
"""How long after a failure it is looked again at what is due."""
FILTERS_COMPARED = 8
"""Filters that are compared with a subject one by one."""
REMOVED_REASON = "Unacknowledged message was deleted"


class Consumer:
    """A consumer that is being served."""

    def __init__(
        self,
        stream: Stream,
        config: ConsumerConfig,
        *,
        created_ns: int,
        backlog: Backlog,
        ledger: Ledger,
        files: ConsumerFiles | None = None,
        resume_sequence: int = 0,
    ) -> None:
        self.name = config.name
        self.stream = stream
        self.engine = stream.engine
        self.created_ns = created_ns
        self.backlog = backlog
        self.ledger = ledger
        self.files = files
        self._record = ConsumerRecord(files, self.name)
        self.resume_sequence = resume_sequence
        """Where it goes on after the last message of each subject, if it begins with those."""
        self.is_closed = False
        self.delivered_ns = self.acked_ns = 0
        """When something was delivered, and acked, the last time; 0 is never."""
        self._timer: Timer | None = None
        self._wants_delivery = False
        self._may_have_lost = False
        """Whether messages that wait for an ack may have been removed from the stream."""
        self.events = ConsumerEvents(self.engine, stream.name, self.name)
        names = f"{stream.name}.{self.name}"
        self._ack_prefix = f"$JS.ACK.{names}.".encode()
        self._flow_control_prefix = f"$JS.FC.{names}."
        self._set_config(config)
        self.outlet = new_outlet(self)
        self.outlet.last_active_ns = self.engine.clock_ns()

    def _set_config(self, config: ConsumerConfig) -> None:
        self.config = config
        self.filters = config.filters
        is_long = len(self.filters) > FILTERS_COMPARED
        self._matcher = Matcher(self.filters) if is_long else None
        self.acks_each = config.ack_policy == "explicit"
        self.sample_percent = config.sample_percent
        self.acks_in_bulk = self.acks_each and not self.sample_percent
        """Whether plain acks may be settled together: nobody wants to know more of them."""
        until_ns = config.pause_until_ns
        self.paused_until_ns = until_ns if until_ns > self.engine.clock_ns() else 0
        """Until when nothing is delivered; 0 if it is not paused."""
        self.expects_acks = config.ack_policy != "none"
        self.acks_by_flow = config.ack_policy == "flow_control"
        """Whether acks come with the answers to flow control requests, and no other way."""
        self.hears_acks = self.expects_acks and not self.acks_by_flow
        self._pending_max = config.max_ack_pending if config.max_ack_pending > 0 else 0
        self.ledger.backoff_ns = config.ack_waits_ns

    # Life.

    def open(self) -> None:
        """Start to deliver."""
        self.bind()
        self.deliver()

    def bind(self) -> None:
        """See whether somebody listens, from now on."""
        if isinstance(self.outlet, PushDelivery):
            self.engine.account.routes.watch(self._deliver_subject(), self._on_interest)
            self.outlet.look_for_interest(self.engine.clock_ns())

    def close(self) -> None:
        """Let go of timers and interest; nothing is deleted."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if isinstance(self.outlet, PushDelivery):
            self.engine.account.routes.unwatch(self._deliver_subject(), self._on_interest)
        self.outlet.end("409 Server Shutdown", with_pending=True)

    def delete(self, done: Callable[[], None] = lambda: None) -> None:
        """Tell those who wait that the consumer is gone; call `done` once it cannot come back."""
        self.outlet.end("409 Consumer Deleted")
        self.close()
        self.stream.consumers.pop(self.name, None)
        is_alone = self.engine.streams.get(self.stream.name) is self.stream
        if is_alone:
            self.stream.consumers_changed()
        self.engine.advisories.consumer_action(self.stream.name, self.name, "delete")
        if self.files is not None and is_alone:
            self.files.remove(self.name, done)
        else:
            done()

    def update(self, config: ConsumerConfig) -> None:
        """Become what a checked configuration says."""
        old, now_ns = self.config, self.engine.clock_ns()
        if isinstance(self.outlet, PushDelivery):
            self.engine.account.routes.unwatch(self._deliver_subject(), self._on_interest)
        self._set_config(config)
        update_outlet(self)
        self.outlet.last_active_ns = now_ns
        if config.pause_until_ns != old.pause_until_ns:
            self.advise_pause()
        if config.filters != old.filters:
            self.backlog.set_filters(config.filters)
            self.stream.consumers_changed()
        if config.deliver_subject != old.deliver_subject:
            self._retry([each for each in self.ledger.pending if each not in self.ledger.due])
        if (config.ack_wait, config.backoff) != (old.ack_wait, old.backoff):
            for sequence in self.ledger.pending:
                self.ledger.watch(now_ns + self.ledger.wait_ns(sequence))
        self.open()

    def restart(self, sequence: int) -> None:
        """Begin again at a sequence, as if nothing had been delivered yet."""
        self.ledger = Ledger(sequence)
        self.ledger.backoff_ns = self.config.ack_waits_ns
        self.backlog.restart(sequence, self.resume_sequence)
        self.delivered_ns = self.acked_ns = 0
        self._record.put(self.state())
        self.stream.consumers_changed()

    def unpin(self, group: str) -> None:
        """Let another client of a priority group be pinned."""
        assert isinstance(self.outlet, PullRequests)
        assert self.outlet.group is not None
        self.outlet.group.release(group, "admin")
        self.deliver()

    def advise_pause(self) -> None:
        """Say until when nothing is delivered, or that it is over."""
        self.events.paused(self.paused_until_ns > 0, self.config.pause_until_ns)

    # Delivery.

    def on_messages(self) -> None:
        """`stream.visible_sequence` has moved up: deliver what is wanted of it."""
        if self.outlet.room() or self.outlet.is_braked:
            self.deliver()

    def deliver(self) -> None:
        """Deliver what is asked for and may be delivered."""
        self._wants_delivery = False
        now_ns = self.engine.clock_ns()
        if now_ns < self.paused_until_ns:
            self.outlet.idle(now_ns, is_at_end=True)
            self._watch_clock()
            return
        self._deliver_batch(now_ns)
        self.outlet.idle(now_ns, is_at_end=self._is_at_end())
        self._watch_clock(now_ns if self._can_go_on() else 0)

    def _deliver_batch(self, now_ns: int) -> None:
        """Deliver what fits in one go."""
        room = self.outlet.room()
        if room and self.ledger.due:
            self._redeliver(room, now_ns)
            return
        if self._pending_max:
            room = min(room, self._pending_max - len(self.ledger.pending))
        if room > 0:
            self._deliver_new(room, now_ns)

    def _can_go_on(self) -> bool:
        """Tell whether there is more to deliver at once, after others had their turn."""
        if not self.outlet.room():
            return False
        is_waiting = self.backlog.due_ns > 0
        is_full = 0 < self._pending_max <= len(self.ledger.pending)
        return bool(self.ledger.due) or not (self.backlog.is_at_end or is_waiting or is_full)

    def _is_at_end(self) -> bool:
        is_full = 0 < self._pending_max <= len(self.ledger.pending)
        return self.backlog.is_at_end and not self.ledger.due and not is_full

    def _deliver_new(self, room: int, now_ns: int) -> None:
        messages = self.backlog.read(room, now_ns)
        taken = self._send_new(messages, now_ns) if messages else 0
        if taken:
            self._note_delivered(messages, taken, now_ns)

    def _send_new(self, messages: list[Message], now_ns: int) -> int:
        """Deliver messages for the first time; return how many were asked for."""
        if self.config.headers_only:
            messages = encoding.without_payloads(messages)
        first, pending = self.ledger.next_consumer_sequence, self.backlog.count()
        return self.outlet.send_new(Deliveries(messages, self._ack_prefix, first, pending), now_ns)

    def _note_delivered(self, messages: list[Message], taken: int, now_ns: int) -> None:
        sequences = [each[0] for each in messages[:taken]]
        ledger = self.ledger
        self.backlog.advance(taken)
        self.delivered_ns = now_ns
        if self.expects_acks:
            self._record.delivered(ledger.deliver(sequences, now_ns), sequences, now_ns)
        else:
            ledger.pass_over(sequences)
            ledger.settle_delivered()
            self._record.advanced(ledger.next_consumer_sequence - 1, sequences[-1])
            self._release(sequences)

    def _redeliver(self, room: int, now_ns: int) -> None:
        """Deliver again what is due."""
        store, ledger = self.stream.store, self.ledger
        found = [(each, store.get(each)) for each in islice(ledger.due, room)]
        self._lose([sequence for sequence, stored in found if stored is None])
        messages = [stored for _, stored in found if stored is not None]
        if not messages:
            return
        taken = self.outlet.send(self._encode_again(messages), now_ns)
        sequences = [each[0] for each in messages[:taken]]
        if sequences:
            self._record.delivered(ledger.redeliver(sequences, now_ns), sequences, now_ns)
            self.delivered_ns = now_ns

    def _encode_again(self, messages: list[Message]) -> list[Op]:
        """Return redeliveries as they go out."""
        if self.config.headers_only:
            messages = encoding.without_payloads(messages)
        return encoding.redeliveries(
            messages, self._ack_prefix, ledger=self.ledger, pending=self.backlog.count()
        )

    # Requests and acks.

    def on_next(self, publish: Op, publisher: Session | None) -> None:
        """Take pull requests; `publish[2]` is the inbox."""
        header_bytes = publish[3]
        for each in payloads(publish):
            if is_api_level_known(each[:header_bytes]):
                self.on_request(publish[2], each[header_bytes:-2])
            else:
                self._answer_status(publish[2], "412 Required Api Level")
        if self._wants_delivery:
            self.deliver()

    def on_request(self, inbox: bytes, payload: bytes) -> None:
        """Let a request wait for messages."""
        if not inbox:
            return
        if not isinstance(self.outlet, PullRequests):
            self._answer_status(inbox, "409 Consumer is push based")
            return
        available = self.backlog.count() + len(self.ledger.due)
        self.outlet.add(inbox, payload, available=available, now_ns=self.engine.clock_ns())
        self._wants_delivery = True

    def _answer_status(self, inbox: bytes, status: str) -> None:
        if inbox:
            self.engine.account.send(inbox, b"", header=encode_status(status))

    def on_acks(self, publishes: list[Op], skip: int) -> None:
        """Take acks, in the order in which they came."""
        acks.take(self, publishes, skip)
        if self._wants_delivery:
            self.deliver()

    def on_acked(self, sequences: Sequence[int]) -> None:
        """Settle messages that were acked one by one, and of which nobody waits for an answer."""
        settled = self.ledger.settle(sequences)
        if settled:
            self._note_settled(settled)
        elif sequences:
            self.acked_ns = self.engine.clock_ns()

    def on_ack(self, delivery: Delivery, reply: bytes) -> None:
        """Settle a message, or all up to it; answer once that is safe."""
        if self.sample_percent and self.acks_each and delivery.sequence in self.ledger.pending:
            self._sample(delivery)
        self._settle(delivery, reply)

    def _sample(self, delivery: Delivery) -> None:
        """Publish how long the ack took, of as many acks as are to be sampled."""
        if self.engine.is_likely(self.sample_percent):
            sequence, ledger = delivery.sequence, self.ledger
            delivered_ns = ledger.pending[sequence][1] - ledger.wait_ns(sequence)
            self.events.acked(delivery, self.engine.clock_ns() - delivered_ns)

    def _settle(self, delivery: Delivery, reply: bytes) -> None:
        if not self.expects_acks or delivery.sequence >= self.backlog.next_sequence:
            return
        if self.acks_each:
            self.acked_ns = self.engine.clock_ns()
            settled = self.ledger.settle((delivery.sequence,))
        else:
            settled = self.ledger.settle_up_to(delivery.consumer_sequence, delivery.sequence)
        if settled:
            self._note_settled(settled)
        self._confirm_when_safe(reply)

    def on_nak(self, delivery: Delivery, delay_ns: int) -> None:
        """Redeliver a message, at once or after a while."""
        if delivery.sequence not in self.ledger.pending:
            return
        self.events.naked(delivery)
        if delay_ns > 0:
            self.ledger.extend(delivery.sequence, self.engine.clock_ns() + delay_ns)
            self._watch_clock()
        else:
            self._retry([delivery.sequence])
            self._wants_delivery = True

    def on_progress(self, sequence: int) -> None:
        """Wait longer for the ack of a message: somebody is working on it."""
        if sequence in self.ledger.pending:
            wait_ns = self.ledger.wait_ns(sequence)
            self.ledger.extend(sequence, self.engine.clock_ns() + wait_ns)

    def on_term(self, delivery: Delivery, reason: str, reply: bytes) -> None:
        """Settle a message that nobody could make sense of."""
        if not self.expects_acks or delivery.sequence >= self.backlog.next_sequence:
            return
        self._settle(delivery, reply)
        self.events.terminated(delivery, reason)

    def on_flow_control(self, publish: Op) -> None:
        """Take a client's answer to a flow control request."""
        if isinstance(self.outlet, PushDelivery) and self.outlet.flow_control is not None:
            if self.outlet.flow_control.answered(publish[1]):
                for delivery in acks.parse_flow(publish) if self.acks_by_flow else ():
                    self._settle(delivery, b"")
                self.deliver()

    def confirm(self, reply: bytes) -> None:
        """Answer an ack at once."""
        if reply:
            self.engine.account.send(reply, b"")

    def _confirm_when_safe(self, reply: bytes) -> None:
        if not reply:
            return
        if self.files is not None:
            self.files.owe(new_message(reply, b""))
        elif self.stream.config.retention != "limits":
            self.stream.owe([new_message(reply, b"")])
            self.engine.touch(self.stream)
        else:
            self.confirm(reply)

    def _note_settled(self, sequences: list[int]) -> None:
        ledger = self.ledger
        ledger.note_empty(self.backlog.next_sequence)
        self.acked_ns = self.engine.clock_ns()
        if self.acks_each:
            self._record.acked(sequences)
        else:
            self._record.advanced(*ledger.floor(self.backlog.next_sequence))
        self._release(sequences)
        if 0 < self._pending_max <= len(ledger.pending) + len(sequences):
            self._wants_delivery = True

    def _release(self, sequences: list[int]) -> None:
        """Let the stream drop what it kept for this consumer only."""
        if self.stream.config.retention != "limits":
            removals = self.stream.store.removals
            self.stream.on_acked(self, sequences)
            self.backlog.overlook(removals)

    # Redelivery.

    def _retry(self, sequences: list[int]) -> None:
        """Redeliver messages, except those that were delivered often enough."""
        limit = self.config.max_deliver
        if limit > 0:
            for sequence in sequences:
                if self.ledger.deliveries(sequence) >= limit:
                    self._give_up(sequence)
            sequences = [each for each in sequences if each in self.ledger.pending]
        self.ledger.retry(sequences)

    def _give_up(self, sequence: int) -> None:
        deliveries = self.ledger.deliveries(sequence)
        self.ledger.give_up(sequence)
        self.ledger.note_empty(self.backlog.next_sequence)
        self._wants_delivery = True
        self._record.given_up(sequence)
        self.events.given_up(sequence, deliveries)

    def on_purged(self) -> None:
        """Messages were purged: skip those that are gone, also among the pending ones."""
        first_sequence = self.stream.store.first_sequence
        if self.backlog.next_sequence < first_sequence:
            self.backlog.skip_to(first_sequence)
            self.ledger.delivered_sequence = first_sequence - 1
            self._record.put(self.state())
        if self.ledger.pending or self.ledger.redelivered:
            self._may_have_lost = True
            self._watch_clock(self.engine.clock_ns() + GONE_CHECK_NS)

    def forget_lost(self) -> None:
        """Settle messages that are not in the stream any more."""
        if self._may_have_lost:
            self._may_have_lost = False
            get = self.stream.store.get
            waiting = {**self.ledger.pending, **self.ledger.redelivered}
            self._lose([each for each in waiting if get(each) is None])

    def _lose(self, sequences: list[int]) -> None:
        if not sequences:
            return
        pending = self.ledger.pending
        for sequence in sequences:
            if sequence in pending:
                deliveries = self.ledger.deliveries(sequence)
                delivery = Delivery(deliveries, sequence, pending[sequence][0])
                self.events.terminated(delivery, REMOVED_REASON)
        self._note_settled(self.ledger.settle(sequences))

    # Time.

    def _watch_clock(self, deadline_ns: int = 0) -> None:
        """See that `_on_time` is called when something is due."""
        deadlines = (
            deadline_ns,
            self.ledger.deadline_ns,
            self.outlet.deadline_ns,
            self._inactive_ns(),
            self.backlog.due_ns,
            self.paused_until_ns,
        )
        next_ns = min([each for each in deadlines if each], default=0)
        if not next_ns:
            return
        if self._timer is not None and self._timer.is_armed:
            if self._timer.deadline_ns <= next_ns:
                return
            self._timer.cancel()
        self._timer = self.engine.timers.at(next_ns, self._on_time)

    def _on_time(self, now_ns: int) -> None:
        """Do what is due: redeliveries, heartbeats, expired requests, the end of an idle one."""
        if self.is_closed:
            return
        try:
            self._do_what_is_due(now_ns)
        except Exception:
            self._timer = self.engine.timers.at(now_ns + RETRY_NS, self._on_time)
            raise

    def _do_what_is_due(self, now_ns: int) -> None:
        if self._is_inactive(now_ns):
            self.delete()
            return
        if 0 < self.paused_until_ns <= now_ns:
            self.paused_until_ns = 0
            self.advise_pause()
        self.forget_lost()
        if 0 < self.ledger.deadline_ns <= now_ns:
            self._retry(self.ledger.overdue(now_ns))
        if 0 < self.outlet.deadline_ns <= now_ns:
            self.outlet.look(now_ns, is_at_end=self._is_at_end())
        self.deliver()

    def _inactive_ns(self) -> int:
        """Return when the consumer was idle long enough to be removed; 0 is never."""
        threshold_ns = self.config.inactive_threshold
        is_idle = threshold_ns > 0 and not self.outlet.is_bound
        return self.outlet.last_active_ns + threshold_ns if is_idle else 0

    def _is_inactive(self, now_ns: int) -> bool:
        """Tell whether nobody uses the consumer any more, as far as one can know."""
        if not 0 < self._inactive_ns() <= now_ns:
            return False
        self.outlet.look(now_ns, is_at_end=True)
        # Somebody may still work on what was delivered, until the acks are due.
        latest_ns = max((each for _, each in self.ledger.pending.values()), default=0)
        if len(self.outlet) or latest_ns + self.config.inactive_threshold > now_ns:
            self.outlet.last_active_ns = now_ns if len(self.outlet) else latest_ns
            return False
        return True

    def _on_interest(self) -> None:
        """Somebody came to the deliver subject, or left it."""
        assert isinstance(self.outlet, PushDelivery)
        if self.outlet.look_for_interest(self.engine.clock_ns()):
            # Not at once: this is called in the middle of a subscription.
            self._watch_clock(self.engine.clock_ns())

    def _deliver_subject(self) -> bytes:
        return self.config.deliver_subject.encode()

    # What it needs, and what is told about it.

    def wants(self, subject: bytes) -> bool:
        """Tell whether its filters let messages of this subject through."""
        filters = self.filters
        if self.config.direct:
            return False
        if self._matcher is not None:
            return self._matcher[subject]
        return not filters or any(subjects.matches(each, subject) for each in filters)

    def needs(self, sequence: int, subject: bytes) -> bool:
        """Tell whether it wants this message and has not settled it yet."""
        is_open = (
            sequence >= self.backlog.next_sequence
            or sequence in self.ledger.pending
            or sequence in self.ledger.redelivered
        )
        return is_open and self.wants(subject)

    def state(self) -> ConsumerState:
        """Return how far the consumer is."""
        return self.ledger.state(self.backlog.next_sequence)

    def info(self) -> dict[str, Any]:
        """Return ConsumerInfo."""
        self.forget_lost()
        now_ns = self.engine.clock_ns()
        self.outlet.look(now_ns, is_at_end=False)
        self._watch_clock()
        return consumerinfo.describe(self, now_ns)

    def heartbeat(self) -> bytes:
        """Return the header that says how far the consumer is."""
        return (
            f"NATS/1.0 100 Idle Heartbeat\r\n"
            f"Nats-Last-Consumer: {self.ledger.next_consumer_sequence - 1}\r\n"
            f"Nats-Last-Stream: {self.backlog.next_sequence - 1}\r\n\r\n"
        ).encode()

    def flow_control_subject(self) -> bytes:
        """Return a subject for the answer to a flow control request."""
        return (self._flow_control_prefix + self.engine.new_id(TOKEN_LENGTH)).encode()
