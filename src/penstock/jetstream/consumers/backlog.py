"""
What of a stream a consumer still has to deliver for the first time.

Messages are looked at before they are taken: `read` shows what comes next, and
`advance` says how many of them were delivered. The number that is left is kept
up to date by counting only what is new, unless messages were removed.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from penstock.jetstream.config.consumer import ConsumerConfig
from penstock.jetstream.store import lookup
from penstock.jetstream.store.values import Filters, Message, Store
from penstock.protocol.rfc3339 import parse_time

if TYPE_CHECKING:
    from penstock.jetstream.stream import Stream

READ_BYTES_MAX = 1024 * 1024
REPLAY_GAP_NS_MIN = 1_000_000
"""Messages that were stored closer together than this are replayed together."""


class Backlog:
    """The messages from `next_sequence` on that a consumer's filters let through."""

    def __init__(
        self,
        stream: Stream,
        filters: Filters,
        next_sequence: int,
        selected: Selection | None,
        *,
        is_paced: bool = False,
    ) -> None:
        """Begin; a paced one shows messages as far apart as they were stored."""
        self.next_sequence = next_sequence
        self._stream = stream
        self._store = stream.store
        self._filters = filters
        self._selected = selected
        self._replay = Replay(stream.store.last_sequence) if is_paced else None
        self._end = next_sequence
        """Where to go on when everything that was read is taken."""
        self._read: list[Message] = []
        self._count = self._counted_to = self._counted_removals = 0
        self._recount()

    @property
    def is_at_end(self) -> bool:
        """Whether everything that is visible was taken."""
        return self._selected is None and self.next_sequence > self._stream.visible_sequence

    @property
    def due_ns(self) -> int:
        """When the next message is to be shown, if it is there and its time has not come; or 0."""
        return self._replay.due_ns if self._replay is not None else 0

    def set_filters(self, filters: Filters) -> None:
        """Let other messages through from now on."""
        self._filters = filters
        self._recount()

    def read(self, count_max: int, now_ns: int) -> list[Message]:
        """Return the next messages, without taking them; none is not always the end."""
        messages = self._look_ahead(count_max)
        if self._replay is None:
            return messages
        if self._replay.is_over(self.next_sequence):
            self._replay = None
            return messages
        return self._replay.due(messages, now_ns)

    def _look_ahead(self, count_max: int) -> list[Message]:
        visible_sequence = self._stream.visible_sequence
        if self._selected is not None:
            messages = self._selected.read(self._store, count_max, visible_sequence)
            self._end = self._selected.after(messages)
            self._read = messages
            if self._end:
                return messages
            self._resume(self._selected.resume_sequence)
        messages, self._end = self._store.read(
            self.next_sequence,
            count_max=count_max,
            bytes_max=READ_BYTES_MAX,
            filters=self._filters,
            last_sequence=visible_sequence,
        )
        self._read = messages
        if not messages:
            self.next_sequence = self._end
        return messages

    def advance(self, taken: int) -> None:
        """Take the first so many messages of those that `read` returned last; at least one."""
        read = self._read
        self.next_sequence = self._end if taken == len(read) else read[taken][0]
        self._count -= taken
        if self._selected is not None:
            self._selected.advance(read[taken - 1][0])
            if self._selected.is_empty:
                self._resume(self._selected.resume_sequence)

    def _resume(self, sequence: int) -> None:
        """Go on with every message, after those that were selected."""
        self._selected = None
        self.next_sequence = sequence

    def skip_to(self, sequence: int) -> None:
        """Leave out everything before a sequence."""
        self.next_sequence = max(self.next_sequence, sequence)

    def restart(self, sequence: int, resume_sequence: int) -> None:
        """Begin again at a sequence; up to `resume_sequence` only with last messages."""
        self.next_sequence = self._end = sequence
        self._read = []
        self._selected = None
        if sequence < resume_sequence:
            self._selected = select_last(
                self._filters, self._store, after=sequence - 1, resume_sequence=resume_sequence
            )
        self._recount()

    def count(self) -> int:
        """Return how many messages there are to deliver: `num_pending`."""
        store = self._store
        if store.removals != self._counted_removals:
            self._recount()
        elif store.last_sequence > self._counted_to:
            if self._filters:
                self._count += store.count(self._counted_to + 1, self._filters)
            else:
                self._count += store.last_sequence - self._counted_to
            self._counted_to = store.last_sequence
        return self._count

    def overlook(self, removals: int) -> None:
        """Keep the count although messages were removed since: they were all delivered before."""
        if removals == self._counted_removals:
            self._counted_removals = self._store.removals

    def _recount(self) -> None:
        store = self._store
        self._counted_removals = store.removals
        self._counted_to = max(store.last_sequence, self.next_sequence - 1)
        if self._selected is None:
            self._count = store.count(self.next_sequence, self._filters)
        else:
            rest = store.count(self._selected.resume_sequence, self._filters)
            self._count = len(self._selected) + rest


class Selection:
    """The last message of each subject, as it was when the consumer began."""

    def __init__(self, sequences: list[int], resume_sequence: int) -> None:
        self.resume_sequence = resume_sequence
        """From here on every message is wanted."""
        self._sequences = sequences
        self._position = 0

    def __len__(self) -> int:
        return len(self._sequences) - self._position

    @property
    def is_empty(self) -> bool:
        """Whether all of them were taken."""
        return self._position == len(self._sequences)

    def read(self, store: Store, count_max: int, visible_sequence: int) -> list[Message]:
        """Return the next ones that are still there."""
        messages: list[Message] = []
        size_bytes = 0
        position = self._position
        while position < len(self._sequences) and len(messages) < count_max:
            sequence = self._sequences[position]
            if sequence > visible_sequence or size_bytes > READ_BYTES_MAX:
                break
            message = store.get(sequence)
            if message is not None:
                messages.append(message)
                size_bytes += len(message[4])
            position += 1
        # Without those that are gone, so that the count is right when it comes to the last.
        found = [message[0] for message in messages]
        self._sequences = found + self._sequences[position:]
        self._position = 0
        return messages

    def after(self, messages: list[Message]) -> int:
        """Return where to go on after these; 0 if nothing is left but what comes later."""
        if not self._sequences:
            return 0
        return messages[-1][0] + 1 if messages else self._sequences[0]

    def advance(self, sequence: int) -> None:
        """Take everything up to a sequence."""
        self._position = bisect_right(self._sequences, sequence)


class Replay:
    """Deliver messages as far apart as they were stored."""

    def __init__(self, last_sequence: int) -> None:
        self._last_sequence = last_sequence
        self._delivered_ns = 0
        self._stored_ns = 0
        self.due_ns = 0
        """When the next message is to be delivered, if it is not yet."""

    def is_over(self, next_sequence: int) -> bool:
        """Tell whether the consumer has caught up with what was there when it began."""
        return next_sequence > self._last_sequence

    def due(self, messages: list[Message], now_ns: int) -> list[Message]:
        """Return those that are due by now: they are as good as delivered."""
        self.due_ns = 0
        if not self._stored_ns and messages:
            self._delivered_ns, self._stored_ns = now_ns, messages[0][1]
        reached_ns = self._stored_ns + now_ns - self._delivered_ns
        for index, (_, stored_ns, *_) in enumerate(messages):
            if stored_ns > reached_ns + REPLAY_GAP_NS_MIN:
                self.due_ns = now_ns + stored_ns - reached_ns
                messages = messages[:index]
                break
        if messages:
            # The next gap is measured from here.
            self._delivered_ns, self._stored_ns = now_ns, messages[-1][1]
        return messages


def start(
    config: ConsumerConfig, store: Store, per_subject_max: int
) -> tuple[int, Selection | None]:
    """Return the first sequence a new consumer is to look at, and its selection if it has one."""
    policy, last_sequence = config.deliver_policy, store.last_sequence
    if policy == "by_start_sequence":
        return max(config.opt_start_seq, store.first_sequence), None
    if policy == "last_per_subject" and per_subject_max != 1:
        return _start_last_per_subject(config.filters, store)
    sequence = store.first_sequence
    if policy == "last":
        sequence = _last_sequence(config.filters, store)
    elif policy == "new":
        sequence = last_sequence + 1
    elif policy == "by_start_time":
        sequence = store.sequence_at(parse_time(config.opt_start_time))
    return max(min(sequence, last_sequence + 1), store.first_sequence), None


def _start_last_per_subject(filters: Filters, store: Store) -> tuple[int, Selection | None]:
    selection = select_last(filters, store, after=0, resume_sequence=store.last_sequence + 1)
    first = selection.after([])
    return (first, selection) if first else (max(store.last_sequence, store.first_sequence), None)


def select_last(filters: Filters, store: Store, *, after: int, resume_sequence: int) -> Selection:
    """Return the last messages of their subjects that lie between two sequences."""
    rows = lookup.matching(store, filters)
    between = sorted([last for _, last, _ in rows if after < last < resume_sequence])
    return Selection(between, resume_sequence)


def _last_sequence(filters: Filters, store: Store) -> int:
    if not filters:
        return store.last_sequence
    return max((last for _, last, _ in lookup.matching(store, filters)), default=0)
