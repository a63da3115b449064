"""
Settlement: the fate of delivered messages, and which ones the stream may drop.

Clients ack a message, refuse it, ask for more time, or terminate it. Acks come in batches, and
nearly all of them are plain. Plain acks are only collected, and settled together when another kind
comes or the batch ends. Messages without an ack are delivered again, or given up after a number of
attempts; messages that are gone from the stream are settled too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock import hot
from penstock.core.runs import message_count, new_message, payloads
from penstock.hot.wire import SUBJECT
from penstock.jetstream.consumers import acks
from penstock.jetstream.consumers.acks import ACKS, NAK, NEXT, PROGRESS, TERM, AckedDelivery
from penstock.jetstream.store import lookup

if TYPE_CHECKING:
    from penstock.hot.wire import Op
    from penstock.jetstream.consumers.common import Common
    from penstock.jetstream.consumers.deadlines import Deadlines
    from penstock.jetstream.readers import RetainingReader

GONE_CHECK_NS = 100_000_000
"""How long after a purge to check which messages waiting for an ack are gone."""
LOST_AT_ONCE = 1024
"""The number of those to settle before others have their turn."""
REMOVED_REASON = "Unacknowledged message was deleted"

Request = Callable[[bytes, bytes], None]
"""Takes a pull request: its inbox, and its options."""


class Settler:
    """Settles the messages of one consumer."""

    def __init__(
        self, common: Common, reader: RetainingReader, deadlines: Deadlines, request: Request
    ) -> None:
        """`reader` is the consumer as its stream knows it; `request` takes an ack's request."""
        self._common = common
        self._reader = reader
        self._deadlines = deadlines
        self._request = request
        self._lost: list[int] = []
        """Messages that are gone and still count as waiting."""

    # Acks.

    def take(self, publishes: list[Op], skip: int) -> None:
        """Apply a batch of acks, in order. Their numbers start at `subject[skip]`."""
        prefix = publishes[0][SUBJECT][:skip]
        index = 0
        while index < len(publishes):
            if self._common.acks_in_bulk:
                sequences, index = hot.plain_acks(publishes, prefix, index)
                self._settle_plain(sequences)
            if index < len(publishes):
                self._take_one(publishes[index], skip)
                index += 1

    def _take_one(self, publish: Op, skip: int) -> None:
        """Apply acks of any kind for one message."""
        _, subject, reply, header_bytes, _, data = publish
        delivery = acks.parse(subject[skip:])
        if delivery is None:
            return
        for message in [data] if message_count(publish) == 1 else payloads(publish):
            self._take_payload(delivery, message[header_bytes:-2], reply)

    def _take_payload(self, delivery: AckedDelivery, payload: bytes, reply: bytes) -> None:
        if payload in ACKS:
            self._ack(delivery, reply)
        elif payload.startswith(NEXT):
            self._ack(delivery, b"")
            self._request(reply, payload[len(NEXT) :])
        elif payload.startswith(NAK):
            self._nak(delivery, acks.parse_delay_ns(payload[len(NAK) :]))
            self._confirm(reply)
        elif payload == PROGRESS:
            self._extend(delivery.sequence)
            self._confirm(reply)
        elif payload.startswith(TERM):
            reason = payload[len(TERM) :].strip().decode(errors="replace")
            self._terminate(delivery, reason, reply)
        else:
            self._confirm(reply)

    def _settle_plain(self, sequences: Sequence[int]) -> None:
        """Settle messages that were acked one by one, where nobody waits for an answer."""
        settled = self._common.ledger.settle(sequences)
        if settled:
            self._note_settled(settled)
        elif sequences:
            self._common.acked_ns = self._common.context.clock_ns()

    def _ack(self, delivery: AckedDelivery, reply: bytes) -> None:
        """Settle a message, or all up to it; answer once that is safe."""
        common = self._common
        is_open = delivery.sequence in common.ledger.pending
        if common.sample_percent and common.acks_each and is_open:
            self._sample(delivery)
        self._settle(delivery, reply)

    def _sample(self, delivery: AckedDelivery) -> None:
        """Publish how long the ack took, for the sampled percentage of acks."""
        common = self._common
        if common.context.is_likely(common.sample_percent):
            sequence, ledger = delivery.sequence, common.ledger
            delivered_ns = ledger.pending[sequence][1] - ledger.wait_ns(sequence)
            common.events.acked(delivery, common.context.clock_ns() - delivered_ns)

    def take_flow(self, publish: Op) -> None:
        """Settle the messages that the answer to a flow control request confirms."""
        last_sequence = self._common.backlog.next_sequence - 1
        for delivery in acks.parse_flow(publish):
            # A copy may have more than this consumer has sent since it went back to its acks.
            sequence = min(delivery.sequence, last_sequence)
            self._settle(delivery._replace(sequence=sequence), b"")

    def _settle(self, delivery: AckedDelivery, reply: bytes) -> None:
        common = self._common
        if not common.expects_acks or delivery.sequence >= common.backlog.next_sequence:
            return
        if common.acks_each:
            common.acked_ns = common.context.clock_ns()
            settled = common.ledger.settle((delivery.sequence,))
        else:
            settled = common.ledger.settle_up_to(delivery.consumer_sequence, delivery.sequence)
        if settled:
            self._note_settled(settled)
        self._confirm_when_safe(reply)

    def _nak(self, delivery: AckedDelivery, delay_ns: int) -> None:
        """Redeliver a message, immediately or after a delay."""
        common = self._common
        if delivery.sequence not in common.ledger.pending:
            return
        common.events.naked(delivery)
        if delay_ns > 0:
            common.ledger.extend(delivery.sequence, common.context.clock_ns() + delay_ns)
            self._deadlines.watch()
        else:
            self.retry([delivery.sequence])
            common.wants_delivery = True

    def _extend(self, sequence: int) -> None:
        """Wait longer for the ack of a message: a client is working on it."""
        ledger = self._common.ledger
        if sequence in ledger.pending:
            wait_ns = ledger.wait_ns(sequence)
            ledger.extend(sequence, self._common.context.clock_ns() + wait_ns)

    def _terminate(self, delivery: AckedDelivery, reason: str, reply: bytes) -> None:
        """Settle a message that a client cannot process."""
        common = self._common
        if not common.expects_acks or delivery.sequence >= common.backlog.next_sequence:
            return
        self._settle(delivery, reply)
        common.events.terminated(delivery, reason)

    def _confirm(self, reply: bytes) -> None:
        """Answer an ack immediately."""
        if reply:
            self._common.context.account.send(reply, b"")

    def _confirm_when_safe(self, reply: bytes) -> None:
        if not reply:
            return
        common = self._common
        if common.files is not None:
            common.files.owe(new_message(reply, b""))
        elif common.stream.config.retention != "limits":
            common.stream.answers.owe_confirmation(reply)
        else:
            self._confirm(reply)

    def _note_settled(self, sequences: list[int]) -> None:
        common, ledger = self._common, self._common.ledger
        ledger.note_empty(common.backlog.next_sequence)
        common.acked_ns = common.context.clock_ns()
        if common.acks_each:
            common.record.acked(sequences)
        else:
            common.record.advanced(*ledger.floor(common.backlog.next_sequence))
        self.release(sequences)
        if 0 < common.pending_max <= len(ledger.pending) + len(sequences):
            common.wants_delivery = True

    def release(self, sequences: list[int]) -> None:
        """Let the stream drop messages that it kept only for this consumer."""
        stream = self._common.stream
        if stream.config.retention != "limits":
            removals = stream.store.removals
            stream.on_acked(self._reader, sequences)
            self._common.backlog.overlook(removals)

    # Redelivery.

    def retry(self, sequences: list[int]) -> None:
        """Redeliver messages, except those that reached their maximum number of deliveries."""
        common = self._common
        limit = common.config.max_deliver
        if limit > 0:
            for sequence in sequences:
                if common.ledger.deliveries(sequence) >= limit:
                    self._give_up(sequence)
            sequences = [each for each in sequences if each in common.ledger.pending]
        common.ledger.retry(sequences)

    def _give_up(self, sequence: int) -> None:
        common = self._common
        deliveries = common.ledger.deliveries(sequence)
        common.ledger.give_up(sequence)
        common.ledger.note_empty(common.backlog.next_sequence)
        common.wants_delivery = True
        common.record.given_up(sequence)
        common.events.given_up(sequence, deliveries)

    # Removed messages.

    def on_purged(self, pattern: bytes, left: int) -> None:
        """
        Skip messages that were purged, also among the pending ones.

        `left` is the first message that still matches the pattern of the purge, if that is known.
        """
        common = self._common
        start = common.start_after(pattern, left)
        if common.ledger.delivered_sequence < start - 1:
            common.backlog.skip_to(start)
            common.ledger.skip_to(start)
            common.record.put(common.state())
        if common.ledger.pending or common.ledger.redelivered:
            common.may_have_lost = True
            self._deadlines.watch(common.context.clock_ns() + GONE_CHECK_NS)

    def go_back(self) -> None:
        """Follow the stream, which went back to its durable messages."""
        common = self._common
        following = common.stream.store.last_sequence + 1
        common.backlog.go_back(max(following, common.config.opt_start_seq))
        common.ledger.go_back(common.backlog.next_sequence)
        # Sequences of messages that were taken back are given again.
        self._lost = []
        common.may_have_lost = True

    def drop_settled(self) -> None:
        """Remove acked messages of a work queue, where the ack was safe before the removal."""
        common, stream = self._common, self._common.stream
        if stream.config.retention != "workqueue":
            return
        last_sequence = common.backlog.next_sequence - 1
        for messages in lookup.batches(
            stream.store, filters=common.filters, last_sequence=last_sequence
        ):
            stream.remove([m[0] for m in messages if not common.needs(m[0], m[2])])

    def forget_lost(self) -> None:
        """Settle messages that are not in the stream any more."""
        common, ledger = self._common, self._common.ledger
        if common.may_have_lost and not self._lost:
            common.may_have_lost = False
            waiting = ledger.pending.keys() | ledger.redelivered.keys()
            self._lost = common.stream.store.missing(sorted(waiting))
        lost, self._lost = self._lost[:LOST_AT_ONCE], self._lost[LOST_AT_ONCE:]
        if self._lost or common.may_have_lost:
            self._deadlines.soon()
        self.lose(lost)

    def lose(self, sequences: list[int]) -> None:
        """Settle messages that were found to be gone."""
        if not sequences:
            return
        common, pending = self._common, self._common.ledger.pending
        for sequence in sequences:
            if sequence in pending:
                deliveries = common.ledger.deliveries(sequence)
                delivery = AckedDelivery(deliveries, sequence, pending[sequence][0])
                common.events.terminated(delivery, REMOVED_REASON)
        self._note_settled(common.ledger.settle(sequences))
