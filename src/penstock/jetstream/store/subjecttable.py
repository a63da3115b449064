"""
The subjects of a stream: cheap enough for a million of them.

A subject costs one dictionary entry and one integer, some 150 bytes in all, and 8 bytes more after
the first lookup of a pattern. Without a limit per subject the integer is `last sequence << 32 |
messages` (CountedSubjects). With a limit, the oldest message of a subject must be found
immediately, so its messages are kept: `sequence << 32 | length` for a single one, and an array of
sequence, length, sequence, length, … from the second on (TrackedSubjects).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

from penstock.jetstream.store.subjectindex import SubjectIndex
from penstock.jetstream.store.values import Filters

LOW = 0xFFFF_FFFF

Evicted: TypeAlias = list[tuple[int, int, bytes]]
"""Messages over the limit per subject: sequence, length, subject."""


class SubjectTable(Protocol):
    """Last sequence and number of messages of every subject."""

    per_subject_max: int

    @property
    def stale(self) -> set[bytes] | frozenset[bytes]:
        """Return the subjects whose last message was removed, so another one is the last now."""

    def __len__(self) -> int:
        """Return the number of subjects with messages."""

    def matching(self, filters: Filters) -> list[bytes]:
        """Return the subjects that match one of the filters; without filters, all."""

    def portions(self, filters: Filters) -> Iterator[list[bytes]]:
        """Yield the same a portion at a time, possibly empty, giving others their turn."""

    def messages(self, subjects: Iterable[bytes]) -> int:
        """Return the number of messages of some subjects together."""

    def rows(self, subjects: Iterable[bytes]) -> list[tuple[bytes, int, int]]:
        """Return some subjects, each with its last sequence and number of messages."""

    def sequences(self, subjects: Iterable[bytes]) -> list[int] | None:
        """Return the messages of some subjects; None if the table does not know them."""

    def add(
        self, sequences: Sequence[int], subjects: list[bytes], lengths: Sequence[int]
    ) -> Evicted:
        """Add new messages; return those over the limit of their subject."""

    def last(self, subject: bytes) -> tuple[int, int]:
        """Return last sequence and number of messages; (0, 0) without any."""

    def discard(self, subject: bytes, sequences: list[int]) -> None:
        """Forget messages of one subject that follow each other."""

    def correct(self, subject: bytes, last_sequence: int) -> None:
        """Correct the last sequence of a subject."""


class TableUnderWay(Protocol):
    """A table that is being made beside the one in use."""

    def discard(self, subject: bytes, sequences: list[int]) -> None:
        """Forget messages of one subject that follow each other."""

    def reset(self) -> None:
        """Forget all messages."""


class CountedSubjects:
    """
    Counts without a limit.

    The last sequence of a `stale` subject was removed since. The caller who needs it searches for
    the one before, and corrects it.
    """

    per_subject_max = 0

    def __init__(self) -> None:
        self._packed: dict[bytes, int] = {}
        self._index = SubjectIndex(self._packed)
        self.stale: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._packed)

    def matching(self, filters: Filters) -> list[bytes]:
        """Return the subjects that match one of the filters; without filters, all."""
        return self._index.matching(filters)

    def portions(self, filters: Filters) -> Iterator[list[bytes]]:
        """Yield the same a portion at a time."""
        return self._index.portions(filters)

    def messages(self, subjects: Iterable[bytes]) -> int:
        """Return the number of messages of some subjects together."""
        packed = self._packed
        return sum([packed[subject] & LOW for subject in subjects])

    def rows(self, subjects: Iterable[bytes]) -> list[tuple[bytes, int, int]]:
        """Return some subjects, each with its last sequence and number of messages."""
        packed = self._packed
        return [(each, packed[each] >> 32, packed[each] & LOW) for each in subjects]

    def sequences(self, subjects: Iterable[bytes]) -> list[int] | None:
        """Return the messages of some subjects if each has only one: that is its last."""
        found = [self._packed[subject] for subject in subjects]
        if self.stale.intersection(subjects) or any([packed & LOW > 1 for packed in found]):
            return None
        return [packed >> 32 for packed in found]

    def add(
        self, sequences: Sequence[int], subjects: list[bytes], lengths: Sequence[int]
    ) -> Evicted:
        """Add new messages."""
        packed = self._packed
        known, first = len(packed), subjects[0]
        count = subjects.count(first)
        if count == len(subjects):
            packed[first] = sequences[-1] << 32 | ((packed.get(first, 0) & LOW) + count)
        else:
            self._count_each(sequences, subjects)
        if len(packed) > known:
            self._index.add_newest(len(packed) - known)
        if self.stale:
            self.stale.difference_update(subjects)
        return []

    def _count_each(self, sequences: Sequence[int], subjects: list[bytes]) -> None:
        packed = self._packed
        last = dict(zip(subjects, sequences, strict=True))
        if len(last) == len(subjects):
            for subject, sequence in last.items():
                packed[subject] = sequence << 32 | ((packed.get(subject, 0) & LOW) + 1)
        else:
            for subject, count in Counter(subjects).items():
                packed[subject] = last[subject] << 32 | ((packed.get(subject, 0) & LOW) + count)

    def merge(self, subject: bytes, last_sequence: int, count: int) -> None:
        """Add a subject's figures from the summary of a block."""
        known = self._packed.get(subject, 0)
        self._packed[subject] = last_sequence << 32 | ((known & LOW) + count)
        if not known:
            self._index.add_newest(1)

    def last(self, subject: bytes) -> tuple[int, int]:
        """Return last sequence, which may be stale, and number of messages."""
        packed = self._packed.get(subject, 0)
        return packed >> 32, packed & LOW

    def discard(self, subject: bytes, sequences: list[int]) -> None:
        """Forget messages of one subject that follow each other."""
        self.reduce(subject, len(sequences), sequences[0], sequences[-1])

    def reduce(self, subject: bytes, count: int, first_sequence: int, last_sequence: int) -> None:
        """Forget a number of messages of one subject, all between two sequences."""
        packed = self._packed[subject]
        assert packed & LOW >= count, "more messages of a subject removed than there were"
        if packed & LOW == count:
            del self._packed[subject]
            self.stale.discard(subject)
        else:
            self._packed[subject] = packed - count
            if first_sequence <= packed >> 32 <= last_sequence:
                self.stale.add(subject)

    def correct(self, subject: bytes, last_sequence: int) -> None:
        """Correct the last sequence of a subject."""
        self._packed[subject] = last_sequence << 32 | (self._packed[subject] & LOW)
        self.stale.discard(subject)


class TrackedSubjects:
    """Every message of every subject, for a limit on the messages of one subject."""

    stale: frozenset[bytes] = frozenset()
    """Empty: this table is exact."""

    def __init__(self, per_subject_max: int) -> None:
        assert per_subject_max > 0
        self.per_subject_max = per_subject_max
        self._held: dict[bytes, int | array[int]] = {}
        self._index = SubjectIndex(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def matching(self, filters: Filters) -> list[bytes]:
        """Return the subjects that match one of the filters; without filters, all."""
        return self._index.matching(filters)

    def portions(self, filters: Filters) -> Iterator[list[bytes]]:
        """Yield the same a portion at a time."""
        return self._index.portions(filters)

    def messages(self, subjects: Iterable[bytes]) -> int:
        """Return the number of messages of some subjects together."""
        found = [self._held[subject] for subject in subjects]
        return sum([1 if isinstance(held, int) else len(held) // 2 for held in found])

    def rows(self, subjects: Iterable[bytes]) -> list[tuple[bytes, int, int]]:
        """Return some subjects, each with its last sequence and number of messages."""
        found = [(subject, self._held[subject]) for subject in subjects]
        return [
            (subject, held >> 32, 1)
            if isinstance(held, int)
            else (subject, held[-2], len(held) // 2)
            for subject, held in found
        ]

    def sequences(self, subjects: Iterable[bytes]) -> list[int]:
        """Return the messages of some subjects."""
        sequences: list[int] = []
        for subject in subjects:
            held = self._held[subject]
            sequences.extend((held >> 32,) if isinstance(held, int) else held[::2])
        return sequences

    def add(
        self, sequences: Sequence[int], subjects: list[bytes], lengths: Sequence[int]
    ) -> Evicted:
        """Add new messages; return those over the limit of their subject."""
        evicted: Evicted = []
        held, known = self._held, len(self._held)
        alone = self.per_subject_max == 1
        grown: set[bytes] = set()
        for sequence, subject, length in zip(sequences, subjects, lengths, strict=True):
            new = sequence << 32 | length
            old = held.setdefault(subject, new)
            if old is new:
                continue
            if alone and isinstance(old, int):
                evicted.append((old >> 32, old & LOW, subject))
                held[subject] = new
            else:
                self._push(subject, old, sequence, length)
                grown.add(subject)
        for subject in grown:
            self._trim(subject, evicted)
        if len(held) > known:
            self._index.add_newest(len(held) - known)
        return evicted

    def _push(self, subject: bytes, old: int | array[int], sequence: int, length: int) -> None:
        if isinstance(old, int):
            self._held[subject] = old = array("Q", (old >> 32, old & LOW))
        old.extend((sequence, length))

    def _trim(self, subject: bytes, evicted: Evicted) -> None:
        held = self._held[subject]
        surplus = 0 if isinstance(held, int) else len(held) - 2 * self.per_subject_max
        if surplus > 0:
            assert not isinstance(held, int)
            pairs = zip(held[:surplus:2], held[1:surplus:2], strict=True)
            evicted += [(sequence, length, subject) for sequence, length in pairs]
            del held[:surplus]
            self._hold(subject, held)

    def _hold(self, subject: bytes, messages: array[int]) -> None:
        if not messages:
            del self._held[subject]
        elif len(messages) == 2:
            self._held[subject] = messages[0] << 32 | messages[1]
        else:
            self._held[subject] = messages

    def last(self, subject: bytes) -> tuple[int, int]:
        """Return last sequence and number of messages."""
        held = self._held.get(subject)
        if held is None:
            return 0, 0
        if isinstance(held, int):
            return held >> 32, 1
        return held[-2], len(held) // 2

    def discard(self, subject: bytes, sequences: list[int]) -> None:
        """Forget messages of one subject that follow each other."""
        held = self._held[subject]
        if isinstance(held, int):
            assert sequences == [held >> 32], "a message removed that its subject does not have"
            del self._held[subject]
            return
        first = bisect_left(range(len(held) // 2), sequences[0], key=lambda each: held[2 * each])
        start, stop = 2 * first, 2 * (first + len(sequences))
        assert held[start:stop:2] == array("Q", sequences), "they do not follow each other"
        del held[start:stop]
        self._hold(subject, held)

    def correct(self, subject: bytes, last_sequence: int) -> None:
        """Never needed: this table is exact."""
        raise AssertionError(f"last sequence of {subject!r} is not {last_sequence}")


def new_subject_table(per_subject_max: int) -> SubjectTable:
    """Return an empty table for a limit per subject."""
    return TrackedSubjects(per_subject_max) if per_subject_max else CountedSubjects()
