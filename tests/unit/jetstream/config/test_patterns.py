"""Patterns of a list are compared in one go, and come to what comparing each with each does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.routing.trie import Steps, TooManySteps, Trie
from penstock.jetstream.config.patterns import PatternIndex, contained, first_overlap
from penstock.jetstream.store.columns import Matcher
from penstock.protocol import subjects

TOKENS = st.sampled_from([b"a", b"b", b"*", b">"])
PATTERNS = st.lists(TOKENS, min_size=1, max_size=4).map(b".".join).filter(subjects.is_valid)
LISTS = st.lists(PATTERNS, max_size=6)
MANY = 1_000_000


@given(LISTS)
def test_the_first_two_that_overlap_are_found(patterns: list[bytes]) -> None:
    expected = next(
        (
            (i, j)
            for i in range(len(patterns))
            for j in range(i + 1, len(patterns))
            if subjects.overlap(patterns[i], patterns[j])
        ),
        None,
    )

    assert expected == first_overlap(patterns)


@given(LISTS)
def test_a_pattern_within_another_is_found(patterns: list[bytes]) -> None:
    expected = any(
        i != j and subjects.contains(patterns[j], patterns[i])
        for i in range(len(patterns))
        for j in range(len(patterns))
    )

    assert expected == contained(patterns)


@given(LISTS, PATTERNS)
def test_what_overlaps_and_what_contains_is_found(patterns: list[bytes], asked: bytes) -> None:
    trie: Trie[int] = Trie()
    for index, pattern in enumerate(patterns):
        trie.insert(pattern, index)
    every = range(len(patterns))

    overlapping = [each for each in every if subjects.overlap(patterns[each], asked)]
    containing = [each for each in every if subjects.contains(patterns[each], asked)]

    assert overlapping == sorted(trie.overlapping(asked, Steps(MANY)))
    assert containing == sorted(trie.containing(asked, Steps(MANY)))


@given(LISTS, st.lists(TOKENS, min_size=1, max_size=4).map(b".".join))
def test_a_matcher_finds_what_one_of_its_filters_matches(
    filters: list[bytes], subject: bytes
) -> None:
    expected = any(subjects.matches(each, subject) for each in filters)

    assert expected == Matcher(tuple(filters))[subject]


@given(st.lists(st.dictionaries(st.sampled_from("xyz"), LISTS.map(tuple)), max_size=5), PATTERNS)
def test_an_index_knows_who_has_what_now(
    given_ones: list[dict[str, tuple[bytes, ...]]], asked: bytes
) -> None:
    index = PatternIndex()
    for patterns in given_ones:
        index.refresh(patterns)

        expected = {
            name
            for name, mine in patterns.items()
            if any(subjects.overlap(each, asked) for each in mine)
        }
        assert expected == set(index.overlapping(asked, Steps(MANY)))


def test_wildcards_across_each_other_are_given_up() -> None:
    patterns = [b"*.%d" % each for each in range(1000)] + [b"%d.x" % each for each in range(1000)]

    with pytest.raises(TooManySteps):
        first_overlap(patterns)


def test_many_that_have_nothing_in_common_are_compared() -> None:
    patterns = [b"orders.%d.*.created" % each for each in range(2000)]

    assert first_overlap(patterns) is None
    assert not contained(patterns)
