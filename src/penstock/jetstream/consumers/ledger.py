"""
The deliveries of a consumer, and which of them are settled.

Consumer sequences are given in order, one for each delivery, including redeliveries. A message that
waits for its ack keeps the sequence of its first delivery, so that the ack floor, the point up to
which everything is settled, can move past later redeliveries.

The floor is only asked for now and then, so an ack does not move it: it notes that the floor may be
higher by now. All deadlines are checked at once, and rarely enough that their number does not
matter.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import compress, repeat
from typing import Any

from penstock.jetstream.consumers.consumerrecords import ConsumerState

LOOK_NS = 1_000
"""How much each waiting message may delay the redelivery of the others."""


class Ledger:
    """Deliveries and acks of one consumer. Stream sequences are just `sequences` here."""

    def __init__(self, next_sequence: int) -> None:
        self.next_consumer_sequence = 1
        self.delivered_sequence = next_sequence - 1
        self.pending: dict[int, tuple[int, int]] = {}
        """Messages that wait for their ack: consumer sequence and deadline."""
        self.redelivered: dict[int, int] = {}
        """The number of deliveries after the first, until the message is settled."""
        self.due: OrderedDict[int, None] = OrderedDict()
        """Messages to be redelivered, in order. All of them are pending."""
        self.deadline_ns = 0
        """When to look for messages whose ack is overdue; 0 is never."""
        self.backoff_ns: Sequence[int] = ()
        """The ack wait of the first delivery, the second, ...; the last one repeats."""
        self._floor = (0, next_sequence - 1)
        self._is_floor_stale = False

    @classmethod
    def restore(cls, state: ConsumerState, backoff_ns: Sequence[int], now_ns: int) -> Ledger:
        """Continue from a stored state; no message waits for longer than its ack wait from now."""
        ledger = cls(state.delivered_stream_sequence + 1)
        ledger.next_consumer_sequence = state.delivered_consumer_sequence + 1
        ledger._floor = (state.ack_floor_consumer_sequence, state.ack_floor_stream_sequence)
        ledger.redelivered = dict(state.redelivered)
        ledger.backoff_ns = backoff_ns
        for sequence, (consumer_sequence, time_ns) in sorted(state.pending.items()):
            # The clock may have been set back meanwhile.
            deadline_ns = min(time_ns, now_ns) + ledger.wait_ns(sequence)
            ledger.pending[sequence] = (consumer_sequence, deadline_ns)
            ledger.watch(deadline_ns)
        return ledger

    def state(self, next_sequence: int) -> ConsumerState:
        """Return the state needed to continue from here."""
        floor_consumer, floor_stream = self.floor(next_sequence)
        return ConsumerState(
            self.next_consumer_sequence - 1,
            self.delivered_sequence,
            floor_consumer,
            floor_stream,
            {
                sequence: (consumer_sequence, max(deadline_ns - self.wait_ns(sequence), 0))
                for sequence, (consumer_sequence, deadline_ns) in self.pending.items()
            },
            dict(self.redelivered),
        )

    def wait_ns(self, sequence: int) -> int:
        """Return the ack wait of a message, given its number of deliveries."""
        waits = self.backoff_ns
        return waits[min(self.redelivered.get(sequence, 0), len(waits) - 1)]

    def watch(self, deadline_ns: int) -> None:
        """Check for overdue acks at this time at the latest."""
        if not self.deadline_ns or deadline_ns < self.deadline_ns:
            self.deadline_ns = deadline_ns

    # Deliveries.

    def deliver(self, sequences: Sequence[int], now_ns: int) -> int:
        """Note first deliveries that are to be acked; return the first consumer sequence."""
        deadline_ns = now_ns + self.backoff_ns[0]
        first = self.pass_over(sequences)
        numbers = zip(range(first, self.next_consumer_sequence), repeat(deadline_ns))
        self.pending.update(zip(sequences, numbers, strict=True))
        self.watch(deadline_ns)
        return first

    def pass_over(self, sequences: Sequence[int]) -> int:
        """Note first deliveries that need no ack; return the first consumer sequence."""
        first = self.next_consumer_sequence
        self.next_consumer_sequence = first + len(sequences)
        self.delivered_sequence = sequences[-1]
        return first

    def redeliver(self, sequences: Sequence[int], now_ns: int) -> int:
        """Note deliveries of messages that were due; return the first consumer sequence."""
        for sequence in sequences:
            del self.due[sequence]
            self.redelivered[sequence] = self.redelivered.get(sequence, 0) + 1
            self.extend(sequence, now_ns + self.wait_ns(sequence))
        first = self.next_consumer_sequence
        self.next_consumer_sequence = first + len(sequences)
        return first

    def deliveries(self, sequence: int) -> int:
        """Return the number of deliveries of a message."""
        return self.redelivered.get(sequence, 0) + 1

    # Acks.

    def settle(self, sequences: Sequence[int]) -> list[int]:
        """Settle messages; return those that were waiting."""
        redelivered = self.redelivered
        found: Iterable[Any] = map(self.pending.pop, sequences, repeat(None))
        if redelivered:
            # A message that was given up may still be acked.
            found = [
                waited or each in redelivered for waited, each in zip(found, sequences, strict=True)
            ]
        settled = list(compress(sequences, found))
        if redelivered or self.due:
            for sequence in settled:
                redelivered.pop(sequence, None)
                self.due.pop(sequence, None)
        self._is_floor_stale = True
        return settled

    def settle_up_to(self, consumer_sequence: int, sequence: int) -> list[int]:
        """Settle everything up to a message; return the messages that were waiting."""
        if consumer_sequence <= self._floor[0] or sequence <= self._floor[1]:
            return []
        settled = self.settle([each for each in self.pending if each <= sequence])
        self._floor = (consumer_sequence, sequence)
        self._is_floor_stale = False
        return settled

    def go_back(self, next_sequence: int) -> None:
        """Move back to before a sequence: later messages were taken back."""
        self.delivered_sequence = min(self.delivered_sequence, next_sequence - 1)
        self._floor = self._floor[0], min(self._floor[1], next_sequence - 1)

    def skip_to(self, sequence: int) -> None:
        """Count everything before a sequence as delivered: it was purged."""
        self.delivered_sequence = sequence - 1
        self._is_floor_stale = True

    def settle_delivered(self) -> None:
        """Expect no ack for messages delivered so far."""
        self._floor = (self.next_consumer_sequence - 1, self.delivered_sequence)

    def give_up(self, sequence: int) -> None:
        """Stop delivering a message, but remember that it is not acked."""
        self.pending.pop(sequence, None)
        self.due.pop(sequence, None)
        self.redelivered.setdefault(sequence, 0)
        self._is_floor_stale = True

    def floor(self, next_sequence: int) -> tuple[int, int]:
        """Return the ack floor: consumer sequence and stream sequence."""
        if self._is_floor_stale:
            self._raise_floor(next_sequence)
        return self._floor

    def note_empty(self, next_sequence: int) -> None:
        """Move the floor up to here if nothing is waiting: the next message may be far ahead."""
        if self._is_floor_stale and not self.pending:
            self._raise_floor(next_sequence)

    def _raise_floor(self, next_sequence: int) -> None:
        self._is_floor_stale = False
        if not self.pending:
            self._floor = (self.next_consumer_sequence - 1, next_sequence - 1)
            return
        first = min(self.pending)
        consumer_sequence = self.pending[first][0] - 1
        if consumer_sequence > self._floor[0]:
            self._floor = (consumer_sequence, first - 1)

    # Redeliveries.

    def extend(self, sequence: int, deadline_ns: int) -> None:
        """Wait for the ack of a message until this deadline, and redeliver it only then."""
        self.due.pop(sequence, None)
        self.pending[sequence] = (self.pending[sequence][0], deadline_ns)
        self.watch(deadline_ns)

    def retry(self, sequences: Iterable[int]) -> None:
        """Redeliver messages that are waiting."""
        for sequence in sequences:
            self.due.setdefault(sequence)

    def overdue(self, now_ns: int) -> list[int]:
        """Return the messages whose ack is overdue; set the time of the next check."""
        overdue = []
        due = self.due
        next_ns = 0
        for sequence, (_, deadline_ns) in self.pending.items():
            if deadline_ns <= now_ns:
                if sequence not in due:
                    overdue.append(sequence)
            elif not next_ns or deadline_ns < next_ns:
                next_ns = deadline_ns
        self.deadline_ns = next_ns and max(next_ns, now_ns + LOOK_NS * len(self.pending))
        return sorted(overdue)
