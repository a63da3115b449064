"""The trie, beside a list of patterns that are matched one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.routing.trie import Trie
from penstock.protocol import subjects

TOKENS = st.sampled_from([b"a", b"b", b"c", b"*", b">", b"a*"])
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=4).map(b".".join)
PATTERNS = SUBJECTS.filter(subjects.is_valid)
LITERALS = st.lists(st.sampled_from([b"a", b"b", b"c", b"new"]), min_size=1, max_size=5).map(
    b".".join
)
PAIRS = st.lists(st.tuples(PATTERNS, st.integers(0, 3)), max_size=20)


def trie_of(pairs: list[tuple[bytes, int]]) -> Trie[tuple[bytes, int]]:
    trie: Trie[tuple[bytes, int]] = Trie()
    for pattern, value in pairs:
        trie.insert(pattern, (pattern, value))
    return trie


@given(PAIRS, SUBJECTS)
def test_it_finds_what_matches_one_by_one(pairs: list[tuple[bytes, int]], subject: bytes) -> None:
    expected = {pair for pair in pairs if subjects.matches(pair[0], subject)}

    found = trie_of(pairs).match(subject)

    assert expected == set(found)
    assert len(expected) == len(found)


@given(PAIRS, st.data())
def test_what_was_removed_is_not_found(pairs: list[tuple[bytes, int]], data: st.DataObject) -> None:
    trie = trie_of(pairs)
    removed = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []

    for pattern, value in removed:
        assert trie.remove(pattern, (pattern, value))

    left = set(pairs) - set(removed)
    assert len(trie) == len(left)
    subject = data.draw(SUBJECTS)
    assert {pair for pair in left if subjects.matches(pair[0], subject)} == set(trie.match(subject))


@given(PAIRS)
def test_an_emptied_trie_keeps_no_nodes(pairs: list[tuple[bytes, int]]) -> None:
    trie = trie_of(pairs)

    for pattern, value in set(pairs):
        assert trie.remove(pattern, (pattern, value))

    assert len(trie) == 0
    assert trie._root.children == {}


@given(PAIRS, LITERALS, st.booleans(), st.data())
def test_where_it_is_uniform_every_longer_subject_has_the_same_matches(
    pairs: list[tuple[bytes, int]], prefix: bytes, any_depth: bool, data: st.DataObject
) -> None:
    trie = trie_of(pairs)
    depth = 4 if any_depth else 1
    rests = st.lists(TOKENS, min_size=1, max_size=depth).map(b".".join)
    one, other = data.draw(rests), data.draw(rests)

    if trie.is_uniform(prefix, any_depth=any_depth):
        assert trie.match(prefix + b"." + one) == trie.match(prefix + b"." + other)


@pytest.mark.parametrize(
    ("pattern", "prefix", "any_depth", "expected"),
    [
        (b"a.*", b"a", False, True),
        (b"a.*", b"a", True, False),
        (b"a.>", b"a", False, True),
        (b"a.>", b"a", True, True),
        (b"a.b", b"a", False, False),
        (b"*.b", b"a", False, False),
        (b"*.b", b"", False, True),
        (b"a", b"", False, False),
        (b"x.y", b"a", False, True),
        (b"a.b", b"a.", False, False),
    ],
)
def test_it_is_uniform_where_only_wildcards_go_on(
    pattern: bytes, prefix: bytes, any_depth: bool, expected: bool
) -> None:
    assert expected == trie_of([(pattern, 1)]).is_uniform(prefix, any_depth=any_depth)


def test_inserting_twice_is_once() -> None:
    trie = trie_of([(b"a.b", 1), (b"a.b", 1)])

    assert len(trie) == 1
    assert trie.match(b"a.b") == [(b"a.b", 1)]


@pytest.mark.parametrize("pattern", [b"a", b"a.b.c", b"x", b"a.*"])
def test_removing_what_is_not_there_changes_nothing(pattern: bytes) -> None:
    trie = trie_of([(b"a.b", 1)])

    assert not trie.remove(pattern, (b"a.b", 1))
    assert not trie.remove(b"a.b", (b"a.b", 2))
    assert trie.match(b"a.b") == [(b"a.b", 1)]


@pytest.mark.parametrize("subject", [b"", b".", b"a.", b".a", b"a..b"])
def test_nothing_matches_an_empty_token(subject: bytes) -> None:
    assert trie_of([(b">", 1), (b"*", 1), (b"a.>", 1), (b"*.*", 1)]).match(subject) == []
