"""
The messages of a stream: by sequence and by subject. No bytes, no disk.

Only the catalog counts. It holds the blocks in order, the subject table, and the removals that are
not written down yet. Every limit, acknowledgement or purge comes down to `_clear`: a stretch of one
block is gone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

from penstock.jetstream.store import walk
from penstock.jetstream.store.block import Block, by_subject
from penstock.jetstream.store.columns import Matcher
from penstock.jetstream.store.counted import Counted
from penstock.jetstream.store.file.segment import Removal, ranges_above
from penstock.jetstream.store.ranges import to_ranges
from penstock.jetstream.store.subjecttable import (
    CountedSubjects,
    Evicted,
    SubjectTable,
    TableUnderWay,
    new_subject_table,
)
from penstock.jetstream.store.survey import Survey
from penstock.jetstream.store.trail import NOTED_AT_ONCE, Trail
from penstock.jetstream.store.values import Filters, StoreLimits
from penstock.protocol import subjects

MATCHERS_MAX = 64
PURGED_AT_ONCE = 1024
"""The number of messages to purge before others have their turn."""
MAX = 1 << 64
FEW = 64
"""Removing a message by its sequence costs as much as a look at this number of messages."""


class ColumnLoader(Protocol):
    """Brings back the columns of a block that are not in memory."""

    def load_places(self, block: Block) -> None:
        """Set `block.places`."""

    def load_topics(self, block: Block) -> None:
        """Set `block.topics`."""


class Catalog:
    """The messages of a stream, counted and findable."""

    def __init__(
        self, loader: ColumnLoader, *, per_subject_max: int = 0, journal: bool = True
    ) -> None:
        self.blocks: list[Block] = []
        self.subjects = new_subject_table(per_subject_max)
        self.first_sequence = 1
        self.last_sequence = 0
        self.last_time_ns = 0
        self.messages = 0
        self.size_bytes = 0
        self.removals = 0
        self.lost = 0
        self.on_lost: Callable[[int], None] | None = None
        """Called with the sequence of a message that turns out to be damaged."""
        self.emptied: list[Block] = []
        """Blocks that left the front, until `take_emptied`."""
        self._loader = loader
        self._journal = journal
        """Whether removals are collected to be written down."""
        self._front_moved = False
        self._removed: list[tuple[int, int]] = []
        self._erased: list[tuple[int, int]] = []
        self._floor_recorded = 1
        self._matchers: dict[Filters, Matcher] = {}
        self.counted = Counted()
        self.trail = Trail()
        self.surveys: list[Survey] = []
        """The surveys under way; each is notified of all changes."""
        self.tablings: list[TableUnderWay] = []
        """The subject tables under way; each is notified of all that goes."""

    def add_block(self, block: Block) -> None:
        """Add a block after the others."""
        assert not self.blocks or block.first_sequence > self.blocks[-1].last_sequence
        self.blocks.append(block)

    def insert_block(self, block: Block, *, after: Block) -> None:
        """Add a block with messages that another block had."""
        index = self.blocks.index(after) if after in self.blocks else -1
        self.blocks.insert(index + 1, block)

    def replace_blocks(self, old: list[Block], new: Block) -> None:
        """Put one block in place of neighbours whose messages it has."""
        index = self.blocks.index(old[0])
        assert self.blocks[index : index + len(old)] == old
        self.blocks[index : index + len(old)] = [new]

    def supersede(self, old: list[Block], new: Block) -> None:
        """Put an empty block in place of the last ones, which have no messages left."""
        assert not any(block.count for block in old)
        self.blocks = [block for block in self.blocks if block not in old] + [new]
        self.emptied = [block for block in self.emptied if block not in old]
        self.settle()

    def append(self, block: Block, offset: int, subjects: list[bytes], lengths: list[int]) -> None:
        """Add messages that were just written at an offset of the last block."""
        assert block is self.blocks[-1]
        first = self.last_sequence + 1
        self.size_bytes += block.extend(offset, lengths, subjects)
        self.last_sequence = last = block.last_sequence
        self.messages += len(lengths)
        evicted = self.subjects.add(range(first, last + 1), subjects, lengths)
        if evicted:
            self.evict(evicted, self.subjects)
        if self._front_moved or not self.blocks[0].count:
            self.settle()
        if self.surveys:
            self.tell(subjects)

    def tell(self, subjects: Iterable[bytes]) -> None:
        for survey in self.surveys:
            survey.changed(subjects)

    def evict(self, evicted: Evicted, table: SubjectTable | TableUnderWay) -> None:
        """Remove messages that a table has forgotten; load nothing."""
        evicted.sort()
        start = 0
        while start < len(evicted):
            block = self.blocks[self.block_at(evicted[start][0])]
            stop = bisect_right(evicted, (block.last_sequence, MAX), start)
            group = evicted[start:stop]
            if self.tablings:
                self._discard_elsewhere(group, table)
            block.drop([sequence for sequence, _, _ in group])
            self._reduce(block, len(group), sum([length for _, length, _ in group]))
            start = stop
        if evicted and self.trail.is_kept:
            self.trail.note(self.removals, [(sequence, name) for sequence, _, name in evicted])
        if evicted and evicted[0][0] <= self.first_sequence:
            self._front_moved = True
        if self._journal:
            self._removed += [(sequence, sequence) for sequence, _, _ in evicted]

    def _discard_elsewhere(self, evicted: Evicted, table: SubjectTable | TableUnderWay) -> None:
        """Take messages out of all tables but one."""
        gone = by_subject((sequence, subject) for sequence, _, subject in evicted)
        tables: list[SubjectTable | TableUnderWay] = [self.subjects, *self.tablings]
        for each in tables:
            for subject, sequences in () if each is table else gone.items():
                each.discard(subject, sequences)
        self.tell(gone)

    def _note(self, first: int, last: int, *, erase: bool = False) -> None:
        """Note that a range is gone, for `take_removals`."""
        if first <= self.first_sequence:
            self._front_moved = True
        if self._journal:
            self._removed.append((first, last))
            if erase:
                self._erased.append((first, last))

    def _reduce(self, block: Block, count: int, size_bytes: int) -> None:
        block.count -= count
        block.size_bytes -= size_bytes
        self.messages -= count
        self.size_bytes -= size_bytes
        self.removals += count
        assert block.count >= 0
        assert block.size_bytes >= 0

    def block_at(self, sequence: int) -> int:
        """Return the index of the block a sequence is in, or would be in; -1 before all."""
        return bisect_right(self.blocks, sequence, key=_first_sequence) - 1

    def placed(self, block: Block) -> Block:
        """Return the block with its places loaded."""
        if block.places is None:
            self._loader.load_places(block)
        if block.unresolved:
            block.resolve()
        return block

    def positioned(self, block: Block) -> Block:
        """Return the block, ready to convert sequences to positions."""
        return block if block.dense else self.placed(block)

    def described(self, block: Block) -> Block:
        """Return the block with its places and subjects loaded."""
        if block.topics is None:
            self._loader.load_topics(block)
        return self.placed(block)

    def locate(self, sequence: int) -> tuple[Block, int] | None:
        """Return the block and position of a message, or None if it does not exist."""
        if not self.first_sequence <= sequence <= self.last_sequence:
            return None
        block = self.blocks[self.block_at(sequence)]
        position = (block if block.dense else self.placed(block)).find(sequence)
        return None if position < 0 else (block, position)

    def remove(self, sequences: Iterable[int], *, erase: bool = False) -> int:
        """Remove single messages; return how many existed."""
        before = self.messages
        for first, last in to_ranges(sequences):
            self.remove_range(first, last, erase=erase)
        self.settle()
        return before - self.messages

    def remove_range(self, first: int, last: int, *, erase: bool = False) -> None:
        """Remove all messages from one sequence to another. `settle` must follow."""
        first, last = max(first, self.first_sequence), min(last, self.last_sequence)
        index = max(self.block_at(first), 0)
        while index < len(self.blocks) and self.blocks[index].first_sequence <= last:
            block = self.blocks[index]
            if block.count and block.last_sequence >= first:
                self.described(block)
                self._clear(block, block.position(first), block.position(last + 1), erase=erase)
            index += 1

    def _clear(self, block: Block, start: int, stop: int, *, erase: bool = False) -> None:
        """Take a stretch of one block out of all counts, and note that for the log."""
        before = self.messages
        start = max(start, block.start)
        if stop - start == 1:
            if block.holds(start):
                self._clear_one(block, start)
        elif start < stop:
            self._clear_many(block, start, stop)
        if self.messages == before:
            return
        block.scrub = block.scrub or erase
        self._note(block.sequence(start), block.sequence(stop - 1), erase=erase)

    def _clear_one(self, block: Block, position: int) -> None:
        assert block.places is not None
        assert block.topics is not None
        subject, sequences = block.topics.subject(position), [block.sequence(position)]
        self._discard(subject, sequences)
        block.clear(position, position + 1)
        self._reduce(block, 1, block.places.lengths[position])
        self._tell_of(subject, sequences)

    def _clear_places(self, block: Block, subject: bytes, positions: Sequence[int]) -> None:
        """Take existing messages of one subject, at some positions, out of all counts."""
        assert block.places is not None
        sequences = block.sequences(positions)
        self._discard(subject, sequences)
        block.drop(sequences)
        self._reduce(block, len(sequences), sum(map(block.places.lengths.__getitem__, positions)))
        for first, last in to_ranges(sequences):
            self._note(first, last)
        self._tell_of(subject, sequences)

    def _tell_of(self, subject: bytes, sequences: list[int]) -> None:
        """Tell those who count that messages of one subject are gone."""
        if self.surveys:
            self.tell([subject])
        if self.trail.is_kept:
            self.trail.note(self.removals, [(sequence, subject) for sequence in sequences])

    def _discard(self, subject: bytes, sequences: list[int]) -> None:
        """Take messages of one subject, in order, out of all tables."""
        self.subjects.discard(subject, sequences)
        if self.tablings:
            for each in self.tablings:
                each.discard(subject, sequences)

    def _clear_many(self, block: Block, start: int, stop: int) -> None:
        assert block.places is not None
        assert block.topics is not None
        if isinstance(self.subjects, CountedSubjects) and not self.tablings:
            first, last = block.sequence(start), block.sequence(stop - 1)
            for subject, count in block.tally(start, stop).items():
                self.subjects.reduce(subject, count, first, last)
        else:
            for subject, sequences in by_subject(block.named(start, stop)).items():
                self._discard(subject, sequences)
        lengths = block.places.lengths
        if block.live is None:
            count, size_bytes = stop - start, sum(lengths[start:stop])
        else:
            held = list(block.held(start, stop))
            count, size_bytes = len(held), sum(map(lengths.__getitem__, held))
        touched = set(block.tally(start, stop)) if self.surveys else ()
        is_noted = self.trail.is_kept and count <= NOTED_AT_ONCE
        gone = block.named(start, stop) if is_noted else []
        block.clear(start, stop)
        self._reduce(block, count, size_bytes)
        if touched:
            self.tell(touched)
        if gone:
            self.trail.note(self.removals, gone)

    def lose(self, block: Block, position: int) -> None:
        """Count a message as lost: its bytes are damaged. That is not written down."""
        self.described(block)
        sequence = block.sequence(position)
        self._clear_one(block, position)
        self.lost += 1
        self._front_moved = True
        self.settle()
        if self.on_lost is not None:
            self.on_lost(sequence)

    def remove_before(self, sequence: int) -> int:
        """Remove everything below a sequence; if it is above the last, the next message gets it."""
        before = self.messages
        if (self.last_sequence + 1 - sequence) * FEW <= self.messages and not self.tablings:
            self._leave(sequence)
        else:
            self.remove_range(self.first_sequence, sequence - 1)
        self.last_sequence = max(self.last_sequence, sequence - 1)
        self._front_moved = True
        self.settle()
        return before - self.messages

    def _leave(self, sequence: int) -> None:
        """Remove everything below a sequence, with a look at the few messages that stay."""
        self._note(self.first_sequence, min(sequence - 1, self.last_sequence))
        for block in self.blocks:
            start = block.total
            if block.count and block.last_sequence >= sequence:
                start = self.placed(block).position(sequence)
            kept = list(block.held(start, block.total))
            lengths = block.places.lengths if block.places is not None else ()
            size_bytes = sum([lengths[position] for position in kept])
            self._reduce(block, block.count - len(kept), block.size_bytes - size_bytes)
            block.clear(0, start) if kept else block.clear_all()
        self.reset_subjects(self.subjects.per_subject_max)
        for block in self.blocks:
            if block.count:
                self.tabulate_block(block)

    def skip(self, count: int) -> None:
        """Skip this number of sequences."""
        first = self.last_sequence + 1
        self.last_sequence += count
        self._note(first, self.last_sequence)
        self.settle()

    def remove_matching(self, pattern: bytes, *, before: int) -> int:
        """Remove the messages that match, below a sequence; return how many."""
        before = before or self.last_sequence + 1
        if pattern == b">":
            return self.remove_before(before)
        found = self.subjects.matching((pattern,))
        count = self.subjects.messages(found)
        if count == self.messages:
            return self.remove_before(before)
        if count * FEW < self.messages:
            sequences = self.subjects.sequences(found)
            if sequences is not None:
                return self.remove(each for each in sequences if each < before)
        return sum(self.remove_in_portions(pattern, before=before))

    def remove_in_portions(self, pattern: bytes, *, before: int) -> Iterator[int]:
        """Remove the messages that match, below a sequence; yield the number of each portion."""
        matcher, is_literal = self.matcher((pattern,)), subjects.is_literal(pattern)
        before, sequence = before or self.last_sequence + 1, self.first_sequence
        while block := self.reaching(sequence):
            left = self.last(pattern) if is_literal else (0, MAX)
            if max(sequence, block.first_sequence) >= before or not left[1]:
                return
            self.described(block)
            start, end = block.position(sequence), block.position(before)
            stop = min(start + PURGED_AT_ONCE, end)
            chosen, _ = block.select(matcher, start, stop=stop, count_max=stop - start)
            if is_literal and chosen:
                self._clear_places(block, pattern, chosen)
            for first, last in () if is_literal else to_ranges(chosen):
                self._clear(block, first, last + 1)
            sequence = block.sequence(stop) if stop < end else block.last_sequence + 1
            self.settle()
            yield len(chosen)

    def reaching(self, sequence: int) -> Block | None:
        """Return the first block with messages that ends at or after a sequence."""
        later = islice(self.blocks, max(self.block_at(sequence), 0), None)
        return next((each for each in later if each.count and each.last_sequence >= sequence), None)

    def surplus_sequence(self, limits: StoreLimits) -> int:
        """Return the sequence below which messages exceed the limits for number or bytes."""
        sequence = self.first_sequence
        if limits.messages_max and self.messages > limits.messages_max:
            sequence = self.sequence_after(self.messages - limits.messages_max)
        if limits.bytes_max and self.size_bytes > limits.bytes_max:
            sequence = max(sequence, self._sequence_freeing(self.size_bytes - limits.bytes_max))
        return sequence

    def sequence_after(self, count: int) -> int:
        """Return the sequence that has exactly `count` messages before it."""
        if count <= 0:
            return self.first_sequence
        for block in self.blocks:
            if block.count > count:
                self.positioned(block)
                positions, _ = block.select(None, 0, stop=block.total, count_max=count + 1)
                return block.sequence(positions[-1])
            count -= block.count
        return self.last_sequence + 1

    def _sequence_freeing(self, size_bytes: int) -> int:
        """Return the first sequence with at least this number of bytes before it."""
        for block in self.blocks:
            if block.size_bytes > size_bytes:
                places = self.placed(block).places
                assert places is not None
                for position in block.held(0, block.total):
                    if size_bytes <= 0:
                        return block.sequence(position)
                    size_bytes -= places.lengths[position]
            size_bytes -= block.size_bytes
            if size_bytes <= 0:
                return block.last_sequence + 1
        return self.last_sequence + 1

    def settle(self) -> None:
        """Move the front past removed messages."""
        if not self._front_moved and (not self.blocks or self.blocks[0].count):
            return
        self._front_moved = False
        while len(self.blocks) > 1 and not self.blocks[0].count:
            self.emptied.append(self.blocks.pop(0))
        if not self.messages:
            self.first_sequence = self.last_sequence + 1
            return
        block = self.positioned(self.blocks[0])
        self.first_sequence = block.sequence(block.next_held(0))

    def take_emptied(self) -> list[Block]:
        """Return the blocks that left the front since the last call: they are empty."""
        emptied, self.emptied = self.emptied, []
        return emptied

    @property
    def has_removals(self) -> bool:
        """Whether there are removals that are not written down yet."""
        return bool(self._removed or self._erased) or self.first_sequence != self._floor_recorded

    def take_removals(self) -> list[Removal]:
        """Return the removals since the last call, to be written down."""
        floor = self.first_sequence
        ranges = ranges_above(floor, self._removed)
        erased = ranges_above(floor, self._erased)
        self._removed.clear()
        self._erased.clear()
        if not ranges and not erased and floor == self._floor_recorded:
            return []
        self._floor_recorded = floor
        plain = [Removal(floor, ranges)]
        return [*plain, Removal(floor, erased, erase=True)] if erased else plain

    def matcher(self, filters: Filters) -> Matcher | None:
        """Return a matcher for subjects; None if everything matches."""
        if not filters or b">" in filters:
            return None
        matcher = self._matchers.get(filters)
        if matcher is None:
            if len(self._matchers) >= MATCHERS_MAX:
                self._matchers.clear()
            matcher = self._matchers[filters] = Matcher(filters)
        return matcher

    def count(self, first_sequence: int, filters: Filters) -> int:
        """Return how many messages match from a sequence on."""
        if first_sequence <= self.first_sequence and not filters:
            return self.messages
        matcher = self.matcher(filters)
        known = self.counted.find(first_sequence, self.last_sequence, filters, self.removals)
        if matcher is not None and first_sequence <= self.first_sequence and known is None:
            survey = self._surveyed(filters)
            if survey is not None:
                return survey.messages
            return self.subjects.messages(self.subjects.matching(filters))
        total, last = known or (0, first_sequence - 1)
        first_sequence = last + 1
        for block in reversed(self.blocks):
            if block.last_sequence < first_sequence:
                break
            total += self._count_in(block, first_sequence, matcher)
        return total

    def _count_in(self, block: Block, first_sequence: int, matcher: Matcher | None) -> int:
        if not block.count:
            return 0
        if matcher is not None:
            self.described(block)
            return block.count_matching(matcher, block.position(first_sequence))
        if first_sequence <= block.first_sequence:
            return block.count
        return self.positioned(block).count_from(block.position(first_sequence))

    def last(self, subject: bytes) -> tuple[int, int]:
        """Return a subject's last sequence and its number of messages."""
        if subject in self.subjects.stale:
            for _ in walk.refreshing(self):
                pass
            assert subject not in self.subjects.stale, "messages are counted that do not exist"
        return self.subjects.last(subject)

    def matching_subjects(self, filters: Filters) -> list[tuple[bytes, int, int]]:
        """Return subject, last sequence and number of messages of all that match."""
        return self._rows(self.subjects.matching(filters))

    def subject_portions(self, filters: Filters) -> Iterator[list[tuple[bytes, int, int]]]:
        """Yield the same a portion at a time, giving others their turn in between."""
        table = self.subjects
        for found in table.portions(filters):
            if self.subjects is not table:
                return
            yield self._rows(found)

    def count_portions(self, filters: Filters) -> Iterator[dict[bytes, int]]:
        """Yield the number of messages of each subject that matches, in portions as well."""
        table = self.subjects
        for found in table.portions(filters):
            if self.subjects is not table:
                return
            yield {subject: table.last(subject)[1] for subject in found}

    def last_sequences(self, filters: Filters) -> list[int]:
        """Return the last sequence of each subject that matches."""
        survey = self._surveyed(filters)
        if survey is not None:
            return survey.last_sequences()
        return [last for _, last, _ in self.matching_subjects(filters)]

    def _surveyed(self, filters: Filters) -> Survey | None:
        """Return the survey that has the answer already."""
        for survey in self.surveys:
            if survey.is_complete and survey.filters == filters:
                return survey
        return None

    def _rows(self, found: list[bytes]) -> list[tuple[bytes, int, int]]:
        if not self.subjects.stale.isdisjoint(found):
            for _ in walk.refreshing(self):
                pass
        return self.subjects.rows(found)

    def tabulate(self, per_subject_max: int) -> None:
        """Build the subject table again from the blocks."""
        self.reset_subjects(per_subject_max)
        for block in self.blocks:
            if block.count:
                self.tabulate_block(block)

    def reset_subjects(self, per_subject_max: int) -> None:
        """Start with an empty subject table."""
        for survey in self.surveys:
            survey.void()
        for each in self.tablings:
            each.reset()
        self.subjects = new_subject_table(per_subject_max)

    def restore(
        self, floor_sequence: int, *, last_sequence: int, last_time_ns: int, lost: int
    ) -> None:
        """Take the figures from blocks that were just assembled."""
        self.last_sequence = last_sequence
        self.last_time_ns = last_time_ns
        self.lost = lost
        self.messages = sum(block.count for block in self.blocks)
        self.size_bytes = sum(block.size_bytes for block in self.blocks)
        self._floor_recorded = floor_sequence
        self._front_moved = True

    def tabulate_block(self, block: Block) -> None:
        """Add the messages of a block to the subject table."""
        self.described(block)
        places, topics = block.places, block.topics
        assert places is not None
        assert topics is not None
        if isinstance(self.subjects, CountedSubjects):
            subjects = topics.slice(0, block.total)
            last = {subjects[position]: position for position in block.held(0, block.total)}
            for subject, count in block.tally(0, block.total).items():
                self.subjects.merge(subject, block.sequence(last[subject]), count)
            return
        held = list(block.held(0, block.total))
        subjects = topics.slice(0, block.total)
        evicted = self.subjects.add(
            block.sequences(held),
            [subjects[position] for position in held],
            [places.lengths[position] for position in held],
        )
        self.evict(evicted, self.subjects)


def _first_sequence(block: Block) -> int:
    return block.first_sequence
