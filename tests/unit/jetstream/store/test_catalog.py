"""The catalog of a store: whatever is added and removed, it counts and finds what is there."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from penstock.jetstream.store import memory, walk
from penstock.jetstream.store.catalog import Catalog
from penstock.jetstream.store.memory import MemoryLog
from penstock.jetstream.store.ranges import to_ranges
from penstock.jetstream.store.values import Filters, StoreLimits
from penstock.protocol import subjects

SUBJECTS = (b"a.x", b"a.y", b"b.x", b"b.y.z", b"c")
FILTERS: tuple[Filters, ...] = ((), (b">",), (b"a.*",), (b"*.x", b"c"), (b"b.y.z",), (b"none",))


class Model:
    """The same messages in a dictionary."""

    def __init__(self) -> None:
        self.messages: dict[int, bytes] = {}
        self.last = 0

    def matching(self, filters: Filters, first: int = 1) -> list[int]:
        return [
            sequence
            for sequence, subject in self.messages.items()
            if sequence >= first
            and (not filters or any(subjects.matches(each, subject) for each in filters))
        ]


class Both:
    """A catalog and its model, which get the same changes."""

    def __init__(self, per_subject_max: int = 0) -> None:
        self.log = MemoryLog(per_subject_max)
        self.catalog: Catalog = self.log.catalog
        self.model = Model()

    def append(self, *names: bytes) -> None:
        first = self.catalog.last_sequence + 1
        self.log.append(first, [(name, b"", b"x", 1) for name in names])
        self.model.messages |= dict(enumerate(names, first))
        self.model.last = self.catalog.last_sequence

    def remove(self, *sequences: int) -> int:
        for sequence in sequences:
            self.model.messages.pop(sequence, None)
        return self.catalog.remove(sequences)

    def check(self) -> None:
        catalog, model = self.catalog, self.model
        assert len(model.messages) == catalog.messages
        assert min(model.messages, default=model.last + 1) == catalog.first_sequence
        assert model.last == catalog.last_sequence
        counts = Counter(model.messages.values())
        for name in SUBJECTS:
            last = max((s for s, each in model.messages.items() if each == name), default=0)
            assert (last, counts[name]) == catalog.last(name)
        for filters in FILTERS:
            middle = (catalog.first_sequence + catalog.last_sequence) // 2
            for first in (1, middle, catalog.last_sequence + 1):
                assert len(model.matching(filters, first)) == catalog.count(first, filters)
            found = {row[0] for row in catalog.matching_subjects(filters or (b">",))}
            assert {model.messages[s] for s in model.matching(filters)} == found


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "BLOCK_MESSAGES_MAX", 4)


@pytest.mark.parametrize("per_subject_max", [0, 1000])
@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_and_goes_is_counted_and_found(seed: int, per_subject_max: int) -> None:
    chance, both = random.Random(seed), Both(per_subject_max)
    for _ in range(60):
        catalog, there = both.catalog, list(both.model.messages)
        match chance.randrange(6):
            case 0 | 1 | 2:
                both.append(*chance.choices(SUBJECTS, k=chance.randrange(1, 6)))
            case 3 if there:
                both.remove(*chance.sample(there, chance.randrange(1, len(there) + 1) // 2 + 1))
            case 4 if there:
                pattern = chance.choice((b">", b"a.>", b"*.x", b"c"))
                before = chance.choice((0, 0, *there))
                gone = both.model.matching((pattern,))
                gone = [each for each in gone if each < before] if before else gone
                assert len(gone) == catalog.remove_matching(pattern, before=before)
                for sequence in gone:
                    del both.model.messages[sequence]
            case 5 if there:
                sequence = chance.choice(there)
                gone = [each for each in there if each < sequence]
                assert len(gone) == catalog.remove_before(sequence)
                for each in gone:
                    del both.model.messages[each]
        both.check()


def test_a_message_is_removed_once() -> None:
    both = Both()
    both.append(b"a.x", b"a.y")

    assert [1, 0, 0] == [both.remove(1), both.remove(1), both.remove(9)]


def test_a_removal_above_the_last_gives_that_sequence_to_the_next() -> None:
    both = Both()
    both.append(b"a.x", b"a.y")

    assert 2 == both.catalog.remove_before(10)

    assert (10, 9, 0) == (
        both.catalog.first_sequence,
        both.catalog.last_sequence,
        both.catalog.messages,
    )


def test_what_was_skipped_is_not_there() -> None:
    both = Both()
    both.append(b"a.x")
    both.catalog.skip(3)
    both.log.append(5, [(b"c", b"", b"x", 1)])

    assert (5, 2, (5, 1)) == (
        both.catalog.last_sequence,
        both.catalog.messages,
        both.catalog.last(b"c"),
    )
    assert [2, 3, 4] == list(walk.deleted(both.catalog))


def test_matching_messages_go_in_portions() -> None:
    both = Both()
    for _ in range(5):
        both.append(b"a.x", b"b.x", b"a.y")

    portions = list(both.catalog.remove_in_portions(b"a.*", before=10))

    assert 6 == sum(portions)
    assert len(portions) > 1
    assert 9 == both.catalog.messages


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (StoreLimits(), 1),
        (StoreLimits(messages_max=10), 1),
        (StoreLimits(messages_max=3), 8),
        (StoreLimits(bytes_max=2 * (16 + 3 + 1)), 9),
        (StoreLimits(messages_max=3, bytes_max=20), 10),
    ],
)
def test_the_surplus_is_what_the_limits_leave_no_room_for(
    limits: StoreLimits, expected: int
) -> None:
    both = Both()
    both.append(*[b"a.x"] * 10)

    assert expected == both.catalog.surplus_sequence(limits)


@pytest.mark.parametrize(
    ("sequences", "ranges"),
    [
        ([], []),
        ([0], [(0, 0)]),
        ([3, 1, 2, 2], [(1, 3)]),
        ([5, 1, 3, 4], [(1, 1), (3, 5)]),
    ],
)
def test_sequences_make_ranges(sequences: list[int], ranges: list[tuple[int, int]]) -> None:
    assert ranges == to_ranges(sequences)
