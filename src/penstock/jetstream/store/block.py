"""
One block of a stream: a run of messages that are stored, loaded and dropped together.

For a file store a block is a segment; for a memory store it is a list. A message has a *position*
in its block, from 0 in the order of sequences. The columns with the place and the subject of each
message can be read from disk again, so only the blocks in use have them in memory. The part that
cannot be read again is small: the counts, and one byte a message once some are gone.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, compress

from penstock.jetstream.store.columns import Matcher, Places, SubjectColumn

WINDOW_MIN = 256
SWAPPED = bytes.maketrans(b"\0\1", b"\1\0")
"""Turns marks of existing messages into marks of removed ones."""


class Block:
    """The messages of one block: how many, which ones still exist, and where."""

    __slots__ = (
        "count",
        "covers",
        "dense",
        "first_sequence",
        "first_time_ns",
        "last_sequence",
        "last_time_ns",
        "live",
        "number",
        "places",
        "scrub",
        "size_bytes",
        "start",
        "stored_bytes",
        "topics",
        "total",
        "unresolved",
    )

    def __init__(self, number: int, first_sequence: int) -> None:
        self.number = number
        self.covers = number
        """The last segment number merged into this one."""
        self.first_sequence = first_sequence
        self.last_sequence = first_sequence - 1
        self.first_time_ns = 0
        self.last_time_ns = 0
        self.total = 0
        """Positions: messages stored, existing or removed."""
        self.count = 0
        """Existing messages."""
        self.size_bytes = 0
        """The bytes of the existing messages."""
        self.stored_bytes = 0
        """The bytes of all positions."""
        self.start = 0
        """Every message before this position is gone."""
        self.live: bytearray | None = None
        """One byte a position, 1 where the message exists; None: all from `start` on."""
        self.unresolved: array[int] = array("Q")
        """Removed sequences whose position is not known until places are loaded."""
        self.dense = True
        """Whether sequences have no gaps, so that position is sequence minus first."""
        self.scrub = False
        """Whether a message in here is to be erased, not only removed."""
        self.places: Places | None = None
        self.topics: SubjectColumn | None = None

    def extend(self, offset: int, lengths: list[int], subjects: list[bytes]) -> int:
        """Add new messages that follow each other from an offset on; return their bytes."""
        places, topics = self.places, self.topics
        assert places is not None
        assert topics is not None
        count, size = len(lengths), sum(lengths)
        if count == 1:
            places.offsets.append(offset)
        else:
            places.offsets.extend(accumulate(lengths[:-1], initial=offset))
        places.lengths.extend(lengths)
        if places.deltas is not None:
            following = self.last_sequence + 1 - self.first_sequence
            places.deltas.extend(range(following, following + count))
        topics.table.extend(subjects)
        self.total += count
        self.count += count
        self.last_sequence += count
        self.size_bytes += size
        self.stored_bytes += size
        if self.live is not None:
            self.live.extend(b"\1" * count)
        return size

    def leave_gap(self, sequence: int) -> None:
        """Continue with a later sequence: from now on the block lists its sequences."""
        assert self.total
        assert sequence > self.last_sequence
        assert self.places is not None
        if self.places.deltas is None:
            self.places.deltas = array("Q", range(self.total))
            self.dense = False
        self.last_sequence = sequence - 1

    def position(self, sequence: int) -> int:
        """Return the first position whose sequence is at or after one; `total` if there is none."""
        delta = sequence - self.first_sequence
        if delta <= 0:
            return 0
        if self.dense:
            return min(delta, self.total)
        assert self.places is not None
        assert self.places.deltas is not None
        if sequence > self.last_sequence:
            return self.total
        return bisect_left(self.places.deltas, delta)

    def find(self, sequence: int) -> int:
        """Return the position of a message; -1 if it does not exist."""
        if not self.dense:
            position = self.position(sequence)
            if position == self.total or self.sequence(position) != sequence:
                return -1
            return position if self.holds(position) else -1
        # Every get of a key comes through here.
        position, live = sequence - self.first_sequence, self.live
        exists = self.start <= position < self.total and (live is None or live[position])
        return position if exists else -1

    def sequence(self, position: int) -> int:
        """Return the sequence at a position."""
        if self.dense:
            return self.first_sequence + position
        assert self.places is not None
        assert self.places.deltas is not None
        return self.first_sequence + self.places.deltas[position]

    def sequences(self, positions: Iterable[int]) -> list[int]:
        """Return the sequences at some positions."""
        if self.dense and isinstance(positions, range):
            first = self.first_sequence
            return list(range(first + positions.start, first + positions.stop))
        if self.places is not None and self.places.deltas is not None:
            first, deltas = self.first_sequence, self.places.deltas
            return [first + deltas[position] for position in positions]
        return [self.sequence(position) for position in positions]

    def holds(self, position: int) -> bool:
        """Tell whether the message at a position exists."""
        return self.start <= position < self.total and (
            self.live is None or self.live[position] == 1
        )

    def missing(self, sequences: list[int]) -> list[int]:
        """Return those of some sequences, in order, that have no message here."""
        if not self.dense:
            return [each for each in sequences if self.find(each) < 0]
        first = self.first_sequence
        start = bisect_left(sequences, first + self.start)
        stop = bisect_left(sequences, first + self.total, start)
        live = self.live
        gone = [each for each in sequences[start:stop] if not live[each - first]] if live else []
        return sequences[:start] + gone + sequences[stop:]

    def resolve(self) -> None:
        """Find the positions of messages that were removed while the places were not loaded."""
        if self.unresolved:
            gone, self.unresolved = self.unresolved, array("Q")
            for sequence in gone:
                self.clear(self.position(sequence), self.position(sequence) + 1)

    def next_held(self, position: int) -> int:
        """Return the first existing position at or after one; `total` if there is none."""
        position = max(position, self.start)
        if self.live is None or position >= self.total:
            return min(position, self.total)
        found = self.live.find(1, position)
        return self.total if found < 0 else found

    def count_from(self, position: int) -> int:
        """Return the number of existing messages at or after a position."""
        if position <= self.start:
            return self.count
        return self.total - position if self.live is None else self.live.count(1, position)

    def held(self, start: int, stop: int) -> Iterator[int] | range:
        """Return the existing positions in a stretch."""
        start, stop = max(start, self.start), min(stop, self.total)
        if self.live is None or start >= stop:
            return range(start, stop)
        return compress(range(start, stop), self.live[start:stop])

    def bounds(self) -> tuple[int, int]:
        """Return the first and the last existing sequence of a block that is not empty."""
        last = self.total - 1 if self.live is None else self.live.rfind(1)
        return self.sequence(self.next_held(0)), self.sequence(last)

    def gone(self) -> Iterable[int]:
        """Return the removed sequences between these two."""
        if not self.dense:
            held = self.sequences(self.held(0, self.total))
            return chain.from_iterable(map(range, map((1).__add__, held), held[1:]))
        if self.live is None:
            return ()
        first, last = self.bounds()
        start, stop = first - self.first_sequence, last - self.first_sequence
        return compress(range(first, last), self.live[start:stop].translate(SWAPPED))

    def marks(self) -> bytes:
        """Return one byte a position, 1 where the message exists."""
        if self.live is None:
            return bytes(self.start) + b"\1" * (self.total - self.start)
        return bytes(self.start) + self.live[self.start :]

    def recount(self) -> None:
        """Count the existing messages again, from lengths and marks."""
        assert self.places is not None
        lengths = self.places.lengths
        held = list(self.held(0, self.total))
        self.count = len(held)
        self.size_bytes = sum(map(lengths.__getitem__, held))

    def clear(self, start: int, stop: int) -> None:
        """Mark a stretch of positions as gone. The caller updates the counts."""
        if start <= self.start:
            self.start = max(stop, self.start)
        elif self.live is None:
            self.live = bytearray(b"\1" * self.total)
        if self.live is not None:
            self.live[start:stop] = bytes(stop - start)

    def clear_all(self) -> None:
        """Mark every position as gone. The caller updates the counts."""
        self.start, self.live, self.unresolved = self.total, None, array("Q")

    def drop(self, sequences: list[int]) -> None:
        """Mark existing messages as gone; later, if the places are not loaded."""
        if not self.dense and self.places is None:
            self.unresolved.extend(sequences)
            return
        self.resolve()
        if self.live is None:
            self.live = bytearray(self.start) + b"\1" * (self.total - self.start)
        live, first = self.live, self.first_sequence
        if self.dense:
            for sequence in sequences:
                live[sequence - first] = 0
        else:
            for sequence in sequences:
                live[self.position(sequence)] = 0

    def select(
        self, matcher: Matcher | None, start: int, *, stop: int, count_max: int
    ) -> tuple[list[int] | range, int]:
        """Return the first existing positions that match, and where the search ended."""
        start = max(start, self.start)
        stop = min(stop, self.total)
        if matcher is None and self.live is None:
            found = range(start, max(start, min(stop, start + count_max)))
            return found, found.stop
        chosen: list[int] = []
        window = max(WINDOW_MIN, 2 * count_max)
        while start < stop and len(chosen) < count_max:
            ahead = min(stop, start + window)
            chosen += compress(range(start, ahead), self._mask(matcher, start, ahead))
            start = ahead
        if len(chosen) > count_max:
            del chosen[count_max:]
            start = chosen[-1] + 1
        return chosen, start

    def _mask(self, matcher: Matcher | None, start: int, stop: int) -> bytes | bytearray:
        if matcher is None:
            assert self.live is not None
            return self.live[start:stop]
        assert self.topics is not None
        mask = self.topics.mask(matcher, start, stop)
        if self.live is None:
            return mask
        # Both sides are 0 or 1 a byte: one big AND in C is faster than a loop.
        both = int.from_bytes(mask, "little") & int.from_bytes(self.live[start:stop], "little")
        return both.to_bytes(stop - start, "little")

    def count_matching(self, matcher: Matcher, start: int, stop: int | None = None) -> int:
        """Return the number of existing messages that match, from a position on."""
        start, stop = max(start, self.start), self.total if stop is None else stop
        return self._mask(matcher, start, stop).count(1) if start < stop else 0

    def last_matching(self, matcher: Matcher, start: int, stop: int) -> int:
        """Return the last existing position of a stretch that matches; -1 if there is none."""
        start = max(start, self.start)
        place = self._mask(matcher, start, stop).rfind(1) if start < stop else -1
        return start + place if place >= 0 else -1

    def tally(self, start: int, stop: int) -> dict[bytes, int]:
        """Return the number of existing messages of each subject in a stretch."""
        assert self.topics is not None
        start, stop = max(start, self.start), min(stop, self.total)
        if start >= stop:
            return {}
        live = None if self.live is None else self.live[start:stop]
        table, ids = self.topics.table, self.topics.ids
        if ids is None:
            subjects = table[start:stop]
            return Counter(subjects if live is None else compress(subjects, live))
        places = Counter(ids[start:stop] if live is None else compress(ids[start:stop], live))
        return {table[place]: count for place, count in places.items()}

    def named(self, start: int, stop: int) -> list[tuple[int, bytes]]:
        """Return the existing messages in a stretch: sequence, subject."""
        assert self.topics is not None
        held = list(self.held(start, stop))
        names = self.topics.slice(start, stop) if held else []
        found = [names[position - start] for position in held]
        return list(zip(self.sequences(held), found, strict=True))


def by_subject(messages: Iterable[tuple[int, bytes]]) -> dict[bytes, list[int]]:
    """Return the sequences of messages by their subject."""
    found: dict[bytes, list[int]] = {}
    for sequence, subject in messages:
        found.setdefault(subject, []).append(sequence)
    return found
