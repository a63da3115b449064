"""
The Store: a catalog that says which messages there are, and a log that has their bytes.

Both kinds of storage are this class over another `Log`: segments on disk
(`filestore.py`) or lists in memory (`memstore.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from penstock.jetstream.store.block import Block
from penstock.jetstream.store.catalog import Catalog
from penstock.jetstream.store.columns import Matcher
from penstock.jetstream.store.values import Entry, Filters, Message, StoreLimits, StoreState, Work
from penstock.protocol import subjects as patterns

LITERALS_MAX = 16
"""Filters without wildcards that are worth to be looked up one by one."""
VOID = b""
"""The subject of a record in whose place there is no message: nobody can publish to it."""
SEARCH_MAX = 256 * 1024
"""Messages one `read` looks at before it gives up for now."""


class Log(Protocol):
    """Has the bytes of messages. What it is asked for is in the catalog."""

    compresses: bool
    """Whether to keep them compressed, as far as that can be."""

    @property
    def failure(self) -> str | None:
        """Return why appends are refused, or None."""

    @property
    def durable_sequence(self) -> int:
        """Return the last sequence that would survive a power cut."""

    @property
    def position(self) -> int:
        """See Store."""

    @property
    def durable_position(self) -> int:
        """See Store."""

    @property
    def dirty_bytes(self) -> int:
        """Return the bytes that are not durable yet."""

    def append(
        self,
        first_sequence: int,
        entries: Sequence[Entry],
        *,
        is_atomic: bool = False,
        replaces: bool = False,
    ) -> None:
        """Store messages and tell the catalog; raise StoreError after a failure."""

    def fetch(self, block: Block, positions: Sequence[int]) -> list[Message | None]:
        """Return messages of one block; None for each whose bytes are damaged."""

    def fetch_one(self, block: Block, position: int) -> Message | None:
        """Return one message; None if its bytes are damaged."""

    def flush(self) -> Work | None:
        """See Store."""

    def maintain(self) -> Work | None:
        """See Store."""

    def close(self) -> None:
        """See Store."""

    def discard(self) -> None:
        """See Store."""


class MessageStore:
    """The messages of one stream. See `Store` for what each method promises."""

    def __init__(self, catalog: Catalog, log: Log, limits: StoreLimits) -> None:
        self._limits = limits
        self._catalog = catalog
        self._log = log
        log.compresses = limits.compresses
        self._first_time: tuple[int, int] = (0, 0)

    @property
    def limits(self) -> StoreLimits:
        """Return what the store may hold."""
        return self._limits

    @limits.setter
    def limits(self, limits: StoreLimits) -> None:
        self._limits = limits
        self._log.compresses = limits.compresses
        # Appends must find the subject table as this limit needs it.
        if limits.messages_per_subject_max != self._catalog.subjects.per_subject_max:
            self._catalog.retable(limits.messages_per_subject_max)

    def watch_damage(self, on_lost: Callable[[int], None]) -> None:
        """Call back with the sequence of each message that turns out to be damaged."""
        self._catalog.on_lost = on_lost

    @property
    def lost(self) -> int:
        """Return how many messages were damaged on disk."""
        return self._catalog.lost

    @property
    def first_sequence(self) -> int:
        """Return the first message's sequence, or `last_sequence + 1` when empty."""
        return self._catalog.first_sequence

    @property
    def last_sequence(self) -> int:
        """Return the last sequence ever given."""
        return self._catalog.last_sequence

    @property
    def durable_sequence(self) -> int:
        """Return the last sequence that would survive a power cut."""
        return self._log.durable_sequence

    @property
    def messages(self) -> int:
        """Return how many messages there are."""
        return self._catalog.messages

    @property
    def size_bytes(self) -> int:
        """Return how many bytes they take."""
        return self._catalog.size_bytes

    @property
    def removals(self) -> int:
        """Return a number that changes whenever a message is removed."""
        return self._catalog.removals

    @property
    def position(self) -> int:
        """Return how many bytes were appended, removals on record too."""
        return self._log.position

    @property
    def durable_position(self) -> int:
        """Return up to which position everything would survive a power cut."""
        return self._log.durable_position

    @property
    def dirty_bytes(self) -> int:
        """Return the bytes appended but not yet durable."""
        return self._log.dirty_bytes

    @property
    def failure(self) -> str | None:
        """Return why appends are refused, or None."""
        return self._log.failure

    def append(
        self, entries: Sequence[Entry], *, is_atomic: bool = False, replaces: bool = False
    ) -> int:
        """Add messages, drop what the limits no longer allow, return the first new sequence."""
        catalog = self._catalog
        first = catalog.last_sequence + 1
        if entries:
            self._log.append(first, entries, is_atomic=is_atomic, replaces=replaces)
            catalog.last_time_ns = entries[-1][3]
            if self._limits.messages_max or self._limits.bytes_max:
                self._drop_surplus()
        return first

    def _drop_surplus(self) -> None:
        sequence = self._catalog.surplus_sequence(self.limits)
        if sequence > self._catalog.first_sequence:
            self._catalog.remove_before(sequence)

    def get(self, sequence: int) -> Message | None:
        """Return one message, or None if it is not there."""
        found = self._catalog.locate(sequence)
        if found is None:
            return None
        block, position = found
        message = self._log.fetch_one(self._catalog.placed(block), position)
        if message is None:
            self._catalog.lose(block, position)
        return message

    def read(
        self,
        first_sequence: int,
        *,
        count_max: int,
        bytes_max: int,
        filters: Filters = (),
        last_sequence: int | None = None,
    ) -> tuple[list[Message], int]:
        """Return the next messages in order, and the sequence to continue from."""
        catalog = self._catalog
        last = catalog.last_sequence
        if last_sequence is not None:
            last = min(last, last_sequence)
        sequence = max(first_sequence, catalog.first_sequence)
        sequence, stop = self._span(filters, sequence, last)
        matcher = catalog.matcher(filters)
        if sequence == stop and matcher is not None:
            return self._look_at(stop, matcher), last + 1
        reading = _Reading(catalog, self._log, matcher, count_max, bytes_max)
        for index in range(max(catalog.block_at(sequence), 0), len(catalog.blocks)):
            block = catalog.blocks[index]
            if sequence > stop or reading.done:
                break
            if block.count and block.last_sequence >= sequence:
                sequence = reading.take(block, sequence, stop)
        if not reading.done:
            sequence = max(sequence, last + 1)
        for block, position in reading.damaged:
            catalog.lose(block, position)
        return reading.messages, sequence

    def _look_at(self, sequence: int, matcher: Matcher) -> list[Message]:
        """Return a message if it matches, without the subjects of all that are stored beside it."""
        message = self.get(sequence)
        return [message] if message is not None and matcher[message[2]] else []

    def _span(self, filters: Filters, sequence: int, last: int) -> tuple[int, int]:
        """Return between which sequences a search makes sense: a few subjects are known well."""
        if not 0 < len(filters) <= LITERALS_MAX or not all(map(patterns.is_literal, filters)):
            return sequence, last
        found = [pair for pair in map(self._catalog.last, filters) if pair[1]]
        stop = min(max((each for each, _ in found), default=0), last)
        if all(count == 1 for _, count in found):
            sequence = min((each for each, _ in found if each >= sequence), default=stop + 1)
        return sequence, stop

    def last(self, subject: bytes) -> tuple[int, int]:
        """Return a subject's last sequence and its number of messages; (0, 0) if none."""
        return self._catalog.last(subject)

    def subjects(self, *filters: bytes) -> list[tuple[bytes, int, int]]:
        """Return (subject, last sequence, messages) for every subject that matches."""
        return self._catalog.matching_subjects(filters)

    def sequence_at(self, time_ns: int) -> int:
        """Return the first sequence stored at or after a time."""
        catalog = self._catalog
        for block in catalog.blocks:
            if block.count and block.last_time_ns >= time_ns:
                position = self._position_at(catalog.placed(block), time_ns)
                position = block.next_held(position)
                if position < block.total:
                    return block.sequence(position)
        return catalog.last_sequence + 1

    def _position_at(self, block: Block, time_ns: int) -> int:
        """Search a block for the first position at or after a time."""
        low, high = block.start, block.total
        while low < high:
            middle = (low + high) // 2
            message = self._log.fetch_one(block, middle)
            if message is not None and message[1] < time_ns:
                low = middle + 1
            else:
                high = middle
        return low

    def count(self, first_sequence: int, filters: Filters = ()) -> int:
        """Return how many messages match from a sequence on."""
        return self._catalog.count(first_sequence, filters)

    def deleted(self, count_max: int) -> list[int]:
        """Return the sequences that are gone between the first and the last."""
        return self._catalog.deleted(count_max)

    def remove(self, sequences: Iterable[int], *, erase: bool = False) -> int:
        """Remove single messages, return how many were there."""
        return self._catalog.remove(sequences, erase=erase)

    def skip(self, count: int) -> None:
        """Give so many sequences to messages that are not there."""
        catalog = self._catalog
        if count > 1:
            catalog.skip(count - 1)
        # One record in the end tells where the gap ended.
        first = catalog.last_sequence + 1
        self._log.append(first, [(VOID, b"", b"", catalog.last_time_ns)])
        catalog.remove_range(first, first)
        catalog.settle()

    def purge(self, pattern: bytes = b">", *, before: int = 0, keep: int = 0) -> int:
        """Remove the messages that match; return how many."""
        return self._catalog.remove_matching(pattern, before=before, keep=keep)

    def enforce(self, now_ns: int) -> int:
        """Remove what is over the limits or too old; return how many."""
        catalog, limits = self._catalog, self.limits
        before = catalog.messages
        if limits.age_ns_max and catalog.messages:
            catalog.remove_before(self.sequence_at(now_ns - limits.age_ns_max))
        self._drop_surplus()
        return before - catalog.messages

    def state(self) -> StoreState:
        """Return the figures of the store."""
        catalog = self._catalog
        gone = catalog.last_sequence - catalog.first_sequence + 1 - catalog.messages
        return StoreState(
            messages=catalog.messages,
            size_bytes=catalog.size_bytes,
            first_sequence=catalog.first_sequence,
            first_time_ns=self._first_time_ns(),
            last_sequence=catalog.last_sequence,
            last_time_ns=catalog.last_time_ns,
            subjects=len(catalog.subjects),
            deleted=gone,
            lost=catalog.lost,
        )

    def _first_time_ns(self) -> int:
        while self._catalog.messages and self._first_time[0] != self._catalog.first_sequence:
            # A damaged first message is lost by looking at it; the next one is then first.
            message = self.get(self._catalog.first_sequence)
            if message is not None:
                self._first_time = message[:2]
        return self._first_time[1] if self._catalog.messages else 0

    def flush(self) -> Work | None:
        """Hand what is buffered to the operating system; return what makes it durable."""
        return self._log.flush()

    def maintain(self) -> Work | None:
        """Return the next piece of housekeeping, if there is one."""
        return self._log.maintain()

    def discard(self) -> None:
        """Let go of the files as they are."""
        self._log.discard()

    def close(self) -> None:
        """Make everything durable and let go of the files."""
        self._log.close()


class _Reading:
    """One `read` under way: what it may still take."""

    def __init__(
        self,
        catalog: Catalog,
        log: Log,
        matcher: Matcher | None,
        count_max: int,
        bytes_max: int,
    ) -> None:
        self.messages: list[Message] = []
        self.damaged: list[tuple[Block, int]] = []
        self._catalog = catalog
        self._log = log
        self._matcher = matcher
        self._count_left = count_max
        self._bytes_left = bytes_max
        self._search_left = SEARCH_MAX

    @property
    def done(self) -> bool:
        """Tell whether one of the bounds is reached."""
        return self._count_left <= 0 or self._bytes_left <= 0 or self._search_left <= 0

    def take(self, block: Block, sequence: int, last_sequence: int) -> int:
        """Take what is wanted of one block; return the sequence to continue from."""
        if self._matcher is None:
            self._catalog.placed(block)
        else:
            self._catalog.described(block)
        start, stop = block.position(sequence), block.position(last_sequence + 1)
        chosen, ended = block.select(
            self._matcher,
            start,
            stop=min(stop, start + self._search_left),
            count_max=self._count_left,
        )
        self._search_left -= max(ended - start, 0)
        fitting = self._fit(block, chosen)
        if len(fitting) < len(chosen):
            ended = chosen[len(fitting)]
            self._bytes_left = 0
        self._fetch(block, fitting)
        return block.sequence(ended) if ended < block.total else block.last_sequence + 1

    def _fit(self, block: Block, chosen: Sequence[int]) -> Sequence[int]:
        """Return as many positions as the bytes allow; the very first always."""
        assert block.places is not None
        lengths = block.places.lengths
        if isinstance(chosen, range):
            size_bytes = sum(lengths[chosen.start : chosen.stop])
        else:
            size_bytes = sum(map(lengths.__getitem__, chosen))
        if size_bytes <= self._bytes_left:
            self._bytes_left -= size_bytes
            return chosen
        count = 0
        for position in chosen:
            self._bytes_left -= lengths[position]
            if self._bytes_left < 0 and (count or self.messages):
                break
            count += 1
        return chosen[:count]

    def _fetch(self, block: Block, positions: Sequence[int]) -> None:
        found = self._log.fetch(block, positions) if positions else []
        self._count_left -= len(found)
        if None not in found:
            self.messages += found  # type: ignore[arg-type]
            return
        for position, message in zip(positions, found, strict=True):
            if message is None:
                self.damaged.append((block, position))
            else:
                self.messages.append(message)
