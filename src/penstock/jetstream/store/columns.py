"""
The columns of a block: the place and the subject of each message.

They are compact arrays by position, not an object a message: 8 bytes for the place, 1 to 4 for the
subject. Both can be read from a complete segment again.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from penstock.jetstream.store.file.segment import Scan
from penstock.jetstream.store.subjectindex import any_matches
from penstock.jetstream.store.values import Filters
from penstock.protocol import subjects as patterns


class Places:
    """The places of a block's messages: offset and length by position."""

    __slots__ = ("deltas", "lengths", "offsets")

    def __init__(
        self, offsets: array[int], lengths: array[int], deltas: array[int] | None = None
    ) -> None:
        self.offsets = offsets
        self.lengths = lengths
        self.deltas = deltas
        """Sequence minus the block's first, by position; None when that equals the position."""

    @property
    def memory_bytes(self) -> int:
        """Return the approximate size in memory."""
        return len(self.offsets) * (8 if self.deltas is None else 16) + 200


class SubjectColumn:
    """
    The subjects of a block's messages, by position.

    While a block grows, `table` has one entry a message and `ids` is None. Once it is complete,
    `table` has each subject once, and `ids` has an index into it for each message.
    """

    __slots__ = ("_flags", "ids", "table")

    def __init__(self, table: list[bytes], ids: array[int] | None = None) -> None:
        self.table = table
        self.ids = ids
        self._flags: dict[Filters, bytes] = {}

    @property
    def memory_bytes(self) -> int:
        """Return the approximate size in memory."""
        ids_bytes = len(self.ids) * self.ids.itemsize if self.ids is not None else 0
        return sum(map(len, self.table)) + 41 * len(self.table) + ids_bytes + 200

    def subject(self, position: int) -> bytes:
        """Return the subject of one message."""
        return self.table[position if self.ids is None else self.ids[position]]

    def slice(self, start: int, stop: int) -> list[bytes]:
        """Return the subjects of some messages."""
        if self.ids is None:
            return self.table[start:stop]
        return list(map(self.table.__getitem__, self.ids[start:stop]))

    def condensed(self) -> SubjectColumn:
        """Return the same with every subject once."""
        if self.ids is not None:
            return self
        unique = dict.fromkeys(self.table)
        typecode = "B" if len(unique) <= 0x100 else "H" if len(unique) <= 0x10000 else "I"
        if len(unique) == len(self.table):
            return SubjectColumn(self.table, array(typecode, range(len(unique))))
        table = dict(zip(unique, range(len(unique)), strict=True))
        return SubjectColumn(list(table), array(typecode, map(table.__getitem__, self.table)))

    def mask(self, matcher: Matcher, start: int, stop: int) -> bytes:
        """Return a byte for each message, 1 where the subject matches."""
        if self.ids is None or stop - start < len(self.table):
            # For a short stretch, looking at every subject is not worth it.
            return bytes(map(matcher.test, self.slice(start, stop)))
        flags = self.flags(matcher)
        if self.ids.typecode == "B":
            return self.ids[start:stop].tobytes().translate(flags.ljust(256, b"\0"))
        return bytes(map(flags.__getitem__, self.ids[start:stop]))

    def flags(self, matcher: Matcher) -> bytes:
        """Return a byte for each entry of the table, 1 where it matches."""
        flags = self._flags.get(matcher.filters)
        if flags is None:
            if len(self._flags) >= 8:
                self._flags.clear()
            flags = bytes(map(matcher.test, self.table))
            self._flags[matcher.filters] = flags
        return flags


class Matcher(dict[bytes, bool]):
    """Remembers which subjects match some filters. Bounded."""

    SIZE_MAX = 100_000

    def __init__(self, filters: Filters) -> None:
        super().__init__()
        self.filters = filters
        self._literals = frozenset(filter(patterns.is_literal, filters))
        wild = [pattern for pattern in filters if pattern not in self._literals]
        self._matches_wild = any_matches(wild)
        # Without wildcards there is nothing that would be worth remembering.
        self.test: Callable[[bytes], bool] = (
            self.__getitem__ if wild else self._literals.__contains__
        )
        """Tells whether a subject matches."""

    def __missing__(self, subject: bytes) -> bool:
        if len(self) >= self.SIZE_MAX:
            self.clear()
        found = subject in self._literals or bool(self._matches_wild(subject))
        self[subject] = found
        return found


def columns_of(found: Scan) -> tuple[Places, SubjectColumn]:
    """Return the columns of a segment from a walk over its records."""
    sequences = found.sequences
    if not sequences or sequences[-1] - sequences[0] + 1 == len(sequences):
        deltas = None
    else:
        deltas = array("Q", [sequence - sequences[0] for sequence in sequences])
    return Places(found.offsets, found.lengths, deltas), SubjectColumn(found.subjects)
