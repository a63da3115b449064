"""Ranges are divided by the messages they hold, and little is asked for it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from penstock.spark.source.census import PART_QUESTIONS_MAX, QUESTIONS_MAX, Census
from penstock.spark.source.position import Range

SPAN = 1_000_000


def old_are_few(sequence: int) -> bool:
    """Most of the older half was deleted."""
    return sequence > SPAN // 2 or sequence % 100 == 0


def one_in_fifty(sequence: int) -> bool:
    """A subject that is on every fiftieth message."""
    return sequence % 50 == 0


def at_the_end(sequence: int) -> bool:
    """A subject that began late."""
    return sequence > SPAN - 10_000


def in_bursts(sequence: int) -> bool:
    """A subject that comes all at once now and then."""
    return sequence % 100_000 < 3000


def anywhere(sequence: int) -> bool:
    """Three in ten, without any order."""
    return hash((sequence * 2654435761) % 2**32) % 10 < 3


SHAPES = [old_are_few, one_in_fifty, at_the_end, in_bursts, anywhere]


class Stream:
    """Messages at some sequences, which can be counted."""

    def __init__(self, sequences: Sequence[int]) -> None:
        self.before = [0]
        held = set(sequences)
        for sequence in range(1, SPAN + 1):
            self.before.append(self.before[-1] + (sequence in held))
        self.questions = 0

    def count(self, counted: Range) -> int:
        """Count messages."""
        self.questions += 1
        return self.held(counted)

    def held(self, counted: Range) -> int:
        """Count messages, as the test does."""
        return self.before[counted.last] - self.before[counted.first - 1]


@pytest.fixture(scope="module", params=SHAPES, ids=lambda shape: shape.__name__)
def shaped(request: pytest.FixtureRequest) -> Stream:
    """Return a stream of each shape."""
    shape: Callable[[int], bool] = request.param
    return Stream([sequence for sequence in range(1, SPAN + 1) if shape(sequence)])


@pytest.fixture
def stream(shaped: Stream) -> Stream:
    """Return it with nothing asked yet."""
    shaped.questions = 0
    return shaped


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_parts_hold_as_many_messages_each(stream: Stream, parts: int) -> None:
    whole = Range(1, SPAN)
    ranges = Census(whole, stream.count).split(parts)

    assert [whole.first, *(each.last + 1 for each in ranges[:-1])] == [
        each.first for each in ranges
    ]
    assert SPAN == ranges[-1].last
    assert parts == len(ranges)
    assert max(map(stream.held, ranges)) <= 1.35 * stream.held(whole) / parts
    assert stream.questions <= QUESTIONS_MAX + PART_QUESTIONS_MAX * parts


@pytest.mark.parametrize("messages", [1, 500, 5000])
def test_no_more_is_taken_than_may_be_and_not_much_less(stream: Stream, messages: int) -> None:
    taken = Census(Range(1, SPAN), stream.count).take(messages)

    assert 1 == taken.whole.first
    assert taken.whole.last >= messages
    assert stream.held(taken.whole) <= messages
    assert stream.questions <= QUESTIONS_MAX + 2
    # Unless there is nothing for most of the range, which the next batch passes over.
    assert stream.held(taken.whole) >= messages // 2 or stream.held(Range(1, SPAN // 2)) == 0
    assert stream.held(taken.whole) == taken.messages


def test_what_is_taken_is_split_by_messages_too(stream: Stream) -> None:
    taken = Census(Range(1, SPAN), stream.count).take(8000)

    held = list(map(stream.held, taken.split(4)))

    assert sum(held) == taken.messages
    assert max(held) <= 1.35 * sum(held) / len(held)


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 10, 99])
def test_without_holes_nothing_is_asked(parts: int) -> None:
    ranges = Census(Range(5, 14)).split(parts)

    assert list(range(5, 15)) == [n for part in ranges for n in range(part.first, part.last + 1)]
    assert min(parts, 10) == len(ranges)
    assert {10 // min(parts, 10)} >= {min(part.size for part in ranges)}
    assert Range(5, 7) == Census(Range(5, 14)).take(3).whole


def test_a_stream_that_turns_out_to_have_no_holes_is_asked_once() -> None:
    questions = []

    def count(counted: Range) -> int:
        questions.append(counted)
        return counted.size

    assert [(1, 250), (251, 500), (501, 750), (751, 1000)] == Census(Range(1, 1000), count).split(4)
    assert 1 == len(questions)


def test_answers_that_contradict_one_another_still_give_ranges() -> None:
    """Replicas may be behind one another."""
    chance = random.Random(1)
    for _ in range(200):
        census = Census(Range(10, 5000), lambda counted: chance.randrange(3 * counted.size + 1))
        ranges = census.take(chance.randrange(1, 4000)).split(chance.randrange(1, 12))

        assert 10 == ranges[0].first
        assert all(each.size > 0 for each in ranges)
        assert [each.last + 1 for each in ranges[:-1]] == [each.first for each in ranges[1:]]


def test_an_empty_range_has_no_parts() -> None:
    empty = Census(Range(5, 4), lambda counted: pytest.fail("asked"))

    assert 0 == empty.messages
    assert [] == empty.split(3)
