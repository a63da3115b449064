"""
What a consumer has delivered, and what of it is settled.

Consumer sequences are given in order, one for each delivery, also for a
redelivery. A message that waits for its ack keeps the one of its first delivery,
so that the ack floor, the point up to which everything is settled, can move past
what was redelivered in between.

The floor is only asked for now and then, so an ack does not move it: it notes
that the floor may be higher by now. Deadlines are looked through all at once,
and at most so often that it does not matter how many there are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import repeat

from penstock.jetstream.consumers.consumerrecords import ConsumerState

LOOK_NS = 1_000
"""How much longer one message that waits may make the others wait for their redelivery."""


class Ledger:
    """Deliveries and acks of one consumer. Stream sequences are just `sequences` here."""

    def __init__(self, next_sequence: int) -> None:
        self.next_consumer_sequence = 1
        self.delivered_sequence = next_sequence - 1
        self.pending: dict[int, tuple[int, int]] = {}
        """Messages that wait for their ack: consumer sequence and deadline."""
        self.redelivered: dict[int, int] = {}
        """How often messages were delivered after the first time, until they are settled."""
        self.due: OrderedDict[int, None] = OrderedDict()
        """Messages to be redelivered, in order. All of them are pending."""
        self.deadline_ns = 0
        """When to look for messages whose ack is overdue; 0 is never."""
        self.backoff_ns: Sequence[int] = ()
        """How long to wait for an ack: the first time, the second, ...; the last goes on."""
        self._floor = (0, next_sequence - 1)
        self._is_floor_stale = False

    @classmethod
    def restore(cls, state: ConsumerState, backoff_ns: Sequence[int]) -> Ledger:
        """Go on where a state ends."""
        ledger = cls(state.delivered_stream_sequence + 1)
        ledger.next_consumer_sequence = state.delivered_consumer_sequence + 1
        ledger._floor = (state.ack_floor_consumer_sequence, state.ack_floor_stream_sequence)
        ledger.redelivered = dict(state.redelivered)
        ledger.backoff_ns = backoff_ns
        for sequence, (consumer_sequence, time_ns) in sorted(state.pending.items()):
            deadline_ns = time_ns + ledger.wait_ns(sequence)
            ledger.pending[sequence] = (consumer_sequence, deadline_ns)
            ledger.watch(deadline_ns)
        return ledger

    def state(self, next_sequence: int) -> ConsumerState:
        """Return everything that has to be known to go on from here."""
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
        """Return how long to wait for the ack of a message, after as many deliveries as it had."""
        waits = self.backoff_ns
        return waits[min(self.redelivered.get(sequence, 0), len(waits) - 1)]

    def watch(self, deadline_ns: int) -> None:
        """Look for overdue acks at this time at the latest."""
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
        """Return how often a message was delivered."""
        return self.redelivered.get(sequence, 0) + 1

    # Acks.

    def settle(self, sequences: Iterable[int]) -> list[int]:
        """Note that messages are done with; return those that were waiting."""
        pop, redelivered = self.pending.pop, self.redelivered
        # One that was given up on may be acked after all.
        settled = [each for each in sequences if pop(each, None) or each in redelivered]
        if redelivered or self.due:
            for sequence in settled:
                redelivered.pop(sequence, None)
                self.due.pop(sequence, None)
        self._is_floor_stale = True
        return settled

    def settle_up_to(self, consumer_sequence: int, sequence: int) -> list[int]:
        """Note that everything up to a message is done with; return what was waiting."""
        if consumer_sequence <= self._floor[0] or sequence <= self._floor[1]:
            return []
        settled = self.settle([each for each in self.pending if each <= sequence])
        self._floor = (consumer_sequence, sequence)
        self._is_floor_stale = False
        return settled

    def settle_delivered(self) -> None:
        """Note that no ack is expected for what was delivered so far."""
        self._floor = (self.next_consumer_sequence - 1, self.delivered_sequence)

    def give_up(self, sequence: int) -> None:
        """Stop to deliver a message, but remember that it is not acked."""
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
        """Wait for the ack of a message until then, and do not redeliver it before."""
        self.due.pop(sequence, None)
        self.pending[sequence] = (self.pending[sequence][0], deadline_ns)
        self.watch(deadline_ns)

    def retry(self, sequences: Iterable[int]) -> None:
        """Redeliver messages that are waiting."""
        for sequence in sequences:
            self.due.setdefault(sequence)

    def overdue(self, now_ns: int) -> list[int]:
        """Return the messages whose ack did not come in time; say when to look again."""
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
