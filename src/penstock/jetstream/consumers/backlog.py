"""
The messages of a stream that a consumer still has to deliver for the first time.

Reading and taking are two steps: `read` shows the next messages, and `advance` tells how many of
them were delivered. The remaining number is kept up to date by counting only messages that came or
went since. What filters let through of many messages is counted in turns, see `is_behind`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from penstock.jetstream.config.consumer import ConsumerConfig
from penstock.jetstream.store import lookup
from penstock.jetstream.store.certain import CertainReader
from penstock.jetstream.store.store import Store
from penstock.jetstream.store.values import Filters, Message
from penstock.protocol.rfc3339 import parse_time

if TYPE_CHECKING:
    from penstock.jetstream.consumers.source import StreamSource

READ_BYTES_MAX = 1024 * 1024
COUNTED_AT_ONCE = 8192
"""The number of messages that a delivery may look at just to count them."""
REPLAY_GAP_NS_MIN = 1_000_000
"""Messages stored closer together than this are replayed together."""
NEVER = -1
"""The number of removals at a count that no longer holds, whatever was removed."""


class ConsumerBacklog:
    """The messages from `next_sequence` on that a consumer's filters let through."""

    def __init__(
        self,
        stream: StreamSource,
        filters: Filters,
        next_sequence: int,
        selected: LastPerSubject | None,
        *,
        is_paced: bool = False,
        is_copied: bool = False,
    ) -> None:
        """
        Begin; a paced backlog shows messages as far apart as they were stored.

        One that is copied waits for what it would pass by to be gone for good.
        """
        self.next_sequence = next_sequence
        self._stream = stream
        self._store = stream.store
        self._filters = filters
        self._selected = selected
        self._certain = _certain_reader(stream) if is_copied else None
        self._replay = OriginalPace(stream.store.last_sequence) if is_paced else None
        self._end = next_sequence
        """Where to continue when everything that was read is taken."""
        self._read: list[Message] = []
        self._count = self._counted_to = self._counted_removals = 0
        """The number of messages from `_counted_from` on, as of a number of removals."""
        self._counted_from = next_sequence
        self.withdrawn = 0
        """Messages that were removed before their turn, where the count could follow that."""
        self._recount()

    @property
    def is_at_end(self) -> bool:
        """Whether every visible message was taken, or nothing can be before a commit."""
        if self._certain is not None and self._certain.is_waiting:
            return True
        return self._selected is None and self.next_sequence > self._stream.visible_sequence

    @property
    def is_blocked(self) -> bool:
        """Whether the next message was deleted, and that has to be durable before others come."""
        return self.next_sequence in self._stream.unsafe_deletes

    @property
    def due_ns(self) -> int:
        """When the next message is due for replay; 0 if there is none or it is due already."""
        return self._replay.due_ns if self._replay is not None else 0

    def set_filters(self, filters: Filters) -> None:
        """Let other messages through from now on."""
        self._filters = filters
        self._recount()

    def read(self, count_max: int, now_ns: int) -> list[Message]:
        """Return the next messages, without taking them; an empty list is not always the end."""
        messages = self._look_ahead(count_max)
        if self._replay is None:
            return messages
        if self._replay.is_over(self.next_sequence):
            self._replay = None
            return messages
        return self._replay.due(messages, now_ns)

    def _look_ahead(self, count_max: int) -> list[Message]:
        visible_sequence = self._stream.visible_sequence
        first_unsafe = self._stream.unsafe_deletes.first(self.next_sequence)
        if first_unsafe is not None:
            visible_sequence = min(visible_sequence, first_unsafe - 1)
        if self._selected is not None:
            messages = self._selected.read(self._store, count_max, visible_sequence)
            self._end = self._selected.after(messages)
            self._read = messages
            if self._end:
                return messages
            self._resume(self._selected.resume_sequence)
        read = partial(self._certain.read, self._store) if self._certain else self._store.read
        messages, self._end = read(
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
        """Take this number of the messages that `read` returned last; at least one."""
        read = self._read
        self.next_sequence = self._end if taken == len(read) else read[taken][0]
        if self._selected is not None:
            self._selected.advance(read[taken - 1][0])
            if self._selected.is_empty:
                self._resume(self._selected.resume_sequence)
            return
        self._count -= taken
        self._counted_from = self.next_sequence
        is_counted = self._store.removals == self._counted_removals
        if not is_counted or read[taken - 1][0] > self._counted_to:
            # What goes before the next count may have been taken first: nobody could tell.
            self._counted_removals = NEVER

    def _resume(self, sequence: int) -> None:
        """Continue with every message, after the selected ones."""
        self._selected = None
        self.next_sequence = sequence

    def skip_to(self, sequence: int) -> None:
        """Skip everything before a sequence."""
        self.next_sequence = max(self.next_sequence, sequence)

    def go_back(self, sequence: int) -> None:
        """Move back to at most this sequence: later messages were taken back."""
        self.next_sequence = self._end = min(self.next_sequence, sequence)
        self._read = []
        if self._selected is not None:
            self._selected.go_back(sequence)
        self._recount()

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
        """Return the number of messages to deliver: `num_pending`."""
        while not self.count_on():
            pass
        return self._count + self._selected_count

    @property
    def count_max(self) -> int:
        """The most that `count` may return, without a look at many messages."""
        if not self.is_behind:
            return self.count()
        return self._count + self._uncounted + self._selected_count

    @property
    def is_behind(self) -> bool:
        """Whether so much is not counted yet that others need their turn meanwhile."""
        if not self._filters:
            return False
        self._follow()
        return self._uncounted > COUNTED_AT_ONCE

    def count_ahead(self) -> Iterator[None]:
        """Count in turns what `count` would have to count at once."""
        while self.is_behind and not self.count_on():
            yield

    def count_on(self) -> bool:
        """Count what came and went since, or some thousands of it; return whether that is all."""
        store = self._store
        if not self._follow():
            # Without filters, all are counted without a look at each.
            self._recount()
        if self._uncounted <= 0:
            return True
        if self._filters:
            found, following = store.count_stretch(self._counted_to + 1, self._filters)
            self._count, self._counted_to = self._count + found, following - 1
        else:
            self._count, self._counted_to = self._count + self._uncounted, store.last_sequence
        return self._uncounted <= 0

    @property
    def _uncounted(self) -> int:
        return self._store.last_sequence - self._counted_to

    @property
    def _selected_count(self) -> int:
        return len(self._selected) if self._selected is not None else 0

    def _follow(self) -> bool:
        """Take what was removed out of the count, or begin anew; false: only `_recount` can."""
        store, before = self._store, self._counted_removals
        if store.removals == before:
            return True
        if not self._filters:
            return False
        gone = store.count_removed(before, self._counted_from, self._counted_to, self._filters)
        if gone is None:
            # More than is remembered.
            self._counted_from = self.uncounted_sequence
            self._counted_to, self._count, gone = self._counted_from - 1, 0, 0
        self._count -= gone
        self.withdrawn += gone
        self._counted_removals = store.removals
        return True

    @property
    def uncounted_sequence(self) -> int:
        """Where a new count begins."""
        return self._selected.resume_sequence if self._selected is not None else self.next_sequence

    def overlook(self, removals: int) -> None:
        """Keep the count across these removals: all removed messages were delivered before."""
        if removals == self._counted_removals:
            self._counted_removals = self._store.removals

    def _recount(self) -> None:
        store, first = self._store, self.uncounted_sequence
        self._counted_from, self._counted_removals = first, store.removals
        self._counted_to = max(store.last_sequence, self.next_sequence - 1)
        self._count = store.count(first, self._filters)
        if self._filters:
            # What is removed from now on, it wants to know.
            store.count_removed(store.removals, first, first, self._filters)


def _certain_reader(stream: StreamSource) -> CertainReader:
    return CertainReader(stream.touch, waits=stream.context.waits_for_sync)


class LastPerSubject:
    """The last message of each subject, at the time the consumer began."""

    def __init__(self, sequences: list[int], resume_sequence: int) -> None:
        self.resume_sequence = resume_sequence
        """From here on, every message is delivered."""
        self._sequences = sequences
        self._position = 0

    def __len__(self) -> int:
        return len(self._sequences) - self._position

    @property
    def is_empty(self) -> bool:
        """Whether all of them were taken."""
        return self._position == len(self._sequences)

    def read(self, store: Store, count_max: int, visible_sequence: int) -> list[Message]:
        """Return the next ones that still exist."""
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
        # Leave out removed messages, so that the count is right at the last one.
        found = [message[0] for message in messages]
        self._sequences = found + self._sequences[position:]
        self._position = 0
        return messages

    def go_back(self, sequence: int) -> None:
        """Forget the messages from a sequence on: they were taken back."""
        self._sequences = [each for each in self._sequences[self._position :] if each < sequence]
        self._position = 0
        self.resume_sequence = min(self.resume_sequence, sequence)

    def after(self, messages: list[Message]) -> int:
        """Return where to continue after these; 0 if only later messages are left."""
        if not self._sequences:
            return 0
        return messages[-1][0] + 1 if messages else self._sequences[0]

    def advance(self, sequence: int) -> None:
        """Take everything up to a sequence."""
        self._position = bisect_right(self._sequences, sequence)


class OriginalPace:
    """Delivers messages as far apart as they were stored."""

    def __init__(self, last_sequence: int) -> None:
        self._last_sequence = last_sequence
        self._delivered_ns = 0
        self._stored_ns = 0
        self.due_ns = 0
        """When the next message is due; 0 if it is due already."""

    def is_over(self, next_sequence: int) -> bool:
        """Tell whether the consumer has caught up with the messages that existed when it began."""
        return next_sequence > self._last_sequence

    def due(self, messages: list[Message], now_ns: int) -> list[Message]:
        """Return the messages that are due by now; they count as delivered."""
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
) -> tuple[int, LastPerSubject | None]:
    """Return the first sequence for a new consumer, and its selection if it has one."""
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


def _start_last_per_subject(filters: Filters, store: Store) -> tuple[int, LastPerSubject | None]:
    selection = select_last(filters, store, after=0, resume_sequence=store.last_sequence + 1)
    first = selection.after([])
    return (first, selection) if first else (max(store.last_sequence, store.first_sequence), None)


def select_last(
    filters: Filters, store: Store, *, after: int, resume_sequence: int
) -> LastPerSubject:
    """Return the last messages of their subjects between two sequences."""
    found = lookup.every_last(store, filters)
    between = sorted([last for last in found if after < last < resume_sequence])
    return LastPerSubject(between, resume_sequence)


def _last_sequence(filters: Filters, store: Store) -> int:
    if not filters:
        return store.last_sequence
    return max(lookup.every_last(store, filters), default=0)
