"""
Delivery: from the backlog, or from due redeliveries, through the outlet into the ledger.

Messages go in batches. After each batch, others have their turn before the next.
"""

from __future__ import annotations

import logging
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING

from penstock.errors import StoreError
from penstock.jetstream.consumers import encoding
from penstock.jetstream.consumers.deadlines import RETRY_NS
from penstock.jetstream.consumers.encoding import Deliveries

if TYPE_CHECKING:
    from penstock.hot.wire import Op
    from penstock.jetstream.consumers.common import Common
    from penstock.jetstream.consumers.deadlines import Deadlines
    from penstock.jetstream.consumers.settlement import Settler
    from penstock.jetstream.store.values import Message

log = logging.getLogger("penstock")

_sequence = itemgetter(0)


class Dispatch:
    """Delivers the messages of one consumer."""

    def __init__(self, common: Common, settlement: Settler, deadlines: Deadlines) -> None:
        self._common = common
        self._settlement = settlement
        self._deadlines = deadlines
        self._is_unreadable = False
        """Whether messages could not be read the last time."""

    def deliver(self) -> None:
        """Deliver the requested messages, as far as limits allow."""
        common = self._common
        if common.stream.is_held:
            return
        common.wants_delivery = False
        now_ns = common.context.clock_ns()
        if now_ns < common.paused_until_ns:
            common.outlet.idle(now_ns, is_at_end=True)
            self._deadlines.watch()
            return
        try:
            self._deliver_batch(now_ns)
        except StoreError as error:
            # Neither the client who asks nor the consumer is to blame: the disk may recover.
            self._try_again(now_ns, error)
            return
        self._is_unreadable = False
        common.outlet.idle(now_ns, is_at_end=common.is_at_end)
        self._deadlines.watch(now_ns if self._can_go_on() else 0)

    def _try_again(self, now_ns: int, error: StoreError) -> None:
        """Log once that the messages cannot be read, and look again in a while."""
        common = self._common
        if not self._is_unreadable:
            self._is_unreadable = True
            stream = f"{common.context.account_name} > {common.stream.name}"
            log.error("Stream '%s': consumer `%s` has to wait: %s", stream, common.name, error)
        common.wants_delivery = True
        common.outlet.idle(now_ns, is_at_end=True)
        self._deadlines.watch(now_ns + RETRY_NS)

    def _deliver_batch(self, now_ns: int) -> None:
        """Deliver one batch."""
        common = self._common
        room = common.outlet.room()
        if room and common.backlog.is_behind:
            # Each message says how many follow it. They are counted in turns, and then it goes.
            return
        if room and common.ledger.due:
            self._redeliver(room, now_ns)
            return
        if common.pending_max:
            room = min(room, common.pending_max - len(common.ledger.pending))
        if room > 0:
            self._deliver_new(room, now_ns)

    def _can_go_on(self) -> bool:
        """Tell whether there is more to deliver, after others had their turn."""
        common = self._common
        if not common.outlet.room():
            return False
        is_waiting = common.backlog.due_ns > 0
        return bool(common.ledger.due) or not (
            common.backlog.is_at_end or common.backlog.is_blocked or is_waiting or common.is_full
        )

    def _deliver_new(self, room: int, now_ns: int) -> None:
        messages = self._common.backlog.read(room, now_ns)
        taken = self._send_new(messages, now_ns) if messages else 0
        assert 0 <= taken <= len(messages), "an outlet takes what it is offered"
        if taken:
            self._note_delivered(messages, taken, now_ns)

    def _send_new(self, messages: list[Message], now_ns: int) -> int:
        """Deliver messages for the first time; return the number that was requested."""
        common = self._common
        if common.config.headers_only:
            messages = encoding.without_payloads(messages)
        first, pending = common.ledger.next_consumer_sequence, common.backlog.count()
        deliveries = Deliveries(messages, common.ack_prefix, first, pending)
        return common.outlet.send_new(deliveries, now_ns)

    def _note_delivered(self, messages: list[Message], taken: int, now_ns: int) -> None:
        common, ledger = self._common, self._common.ledger
        sequences = list(map(_sequence, messages[:taken]))
        common.backlog.advance(taken)
        common.delivered_ns = now_ns
        if common.expects_acks:
            first = ledger.deliver(sequences, now_ns)
            is_counted = common.config.max_deliver > 0
            common.record.delivered(first, sequences, now_ns, is_counted=is_counted)
        else:
            ledger.pass_over(sequences)
            ledger.settle_delivered()
            common.record.advanced(ledger.next_consumer_sequence - 1, sequences[-1])
            self._settlement.release(sequences)

    def _redeliver(self, room: int, now_ns: int) -> None:
        """Deliver the messages that are due again."""
        common, ledger = self._common, self._common.ledger
        store = common.stream.store
        found = [(each, store.get(each)) for each in islice(ledger.due, room)]
        unsafe = common.stream.unsafe_deletes
        gone = [sequence for sequence, stored in found if stored is None]
        self._settlement.lose([each for each in gone if each not in unsafe])
        messages = [stored for _, stored in found if stored is not None]
        if not messages:
            return
        taken = common.outlet.send(self._encode_again(messages), now_ns)
        sequences = [each[0] for each in messages[:taken]]
        if sequences:
            first = ledger.redeliver(sequences, now_ns)
            common.record.delivered(first, sequences, now_ns, is_counted=True)
            common.delivered_ns = now_ns

    def _encode_again(self, messages: list[Message]) -> list[Op]:
        """Return redeliveries, encoded."""
        common = self._common
        if common.config.headers_only:
            messages = encoding.without_payloads(messages)
        return encoding.redeliveries(
            messages, common.ack_prefix, ledger=common.ledger, pending=common.backlog.count()
        )
