"""Subjects and patterns, checked against a table and against every small pattern there is."""

from __future__ import annotations

import itertools

import pytest

from penstock.protocol import subjects

LITERALS = [
    b".".join(tokens)
    for count in (1, 2, 3, 4)
    for tokens in itertools.product((b"a", b"b"), repeat=count)
]
PATTERNS = [
    b".".join([*tokens, *end])
    for count in (0, 1, 2, 3)
    for tokens in itertools.product((b"a", b"b", b"*"), repeat=count)
    for end in ([], [b">"])
    if tokens or end
]


@pytest.mark.parametrize(
    "pattern",
    [
        b"a",
        b"a.b",
        b"*",
        b">",
        b"a.*",
        b"a.>",
        b"*.*.>",
        b"a*.b",
        b"a>.b",
        b"$JS.API",
        "ñ.☃".encode(),
        b"\x0b.\x0c",
    ],
)
def test_a_pattern_of_whole_tokens_is_valid(pattern: bytes) -> None:
    assert subjects.is_valid(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        b"",
        b".",
        b"a.",
        b".a",
        b"a..b",
        b">.a",
        b"a.>.b",
        b"a b",
        b"a\tb",
        b"a\r\nb",
    ],
)
def test_empty_tokens_white_space_and_an_early_full_wildcard_are_invalid(pattern: bytes) -> None:
    assert not subjects.is_valid(pattern)
    assert not subjects.is_valid_literal(pattern)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (b"a.b", True),
        (b"a*", True),
        (b"a>.b", True),
        (b"*", False),
        (b"a.*.b", False),
        (b"a.>", False),
    ],
)
def test_a_wildcard_is_one_only_as_a_whole_token(pattern: bytes, expected: bool) -> None:
    assert expected == subjects.is_literal(pattern)
    assert expected == subjects.is_valid_literal(pattern)


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        (b"a.b", b"a.b", True),
        (b"a.b", b"a.c", False),
        (b"a.b", b"a", False),
        (b"a", b"a.b", False),
        (b"a.*", b"a.b", True),
        (b"a.*", b"a", False),
        (b"a.*", b"a.b.c", False),
        (b"*.b", b"a.b", True),
        (b">", b"a", True),
        (b">", b"a.b.c", True),
        (b"a.>", b"a.b.c", True),
        (b"a.>", b"a", False),
        (b"a.>", b"b.c", False),
        (b"a*", b"ab", False),
        (b"a*", b"a*", True),
    ],
)
def test_a_pattern_matches_as_the_table_says(
    pattern: bytes, subject: bytes, expected: bool
) -> None:
    assert expected == subjects.matches(pattern, subject)


def test_wildcards_of_a_published_subject_are_literal_tokens() -> None:
    # nats-server 2.15.1 denies a publish to `a.>` where `a.*` is denied.
    assert subjects.matches(b"a.*", b"a.>")
    assert subjects.matches(b"a.*", b"a.*")
    assert not subjects.matches(b"a.b", b"a.*")
    assert not subjects.matches(b"a.b", b"a.>")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_containing_and_overlapping_follow_from_matching(pattern: bytes) -> None:
    matched = {subject for subject in LITERALS if subjects.matches(pattern, subject)}
    for other in PATTERNS:
        matched_by_other = {subject for subject in LITERALS if subjects.matches(other, subject)}

        assert (matched_by_other <= matched) == subjects.contains(pattern, other)
        assert bool(matched_by_other & matched) == subjects.overlap(pattern, other)


def test_covering_follows_from_matching() -> None:
    """By several patterns together, and with a token that is in none of them."""
    literals = [
        b".".join(tokens)
        for count in (1, 2, 3, 4)
        for tokens in itertools.product((b"a", b"b", b"other"), repeat=count)
    ]
    short = [pattern for pattern in PATTERNS if pattern.count(b".") < 2]
    matched = {
        pattern: {subject for subject in literals if subjects.matches(pattern, subject)}
        for pattern in short
    }
    for patterns in itertools.combinations(short, 2):
        together = matched[patterns[0]] | matched[patterns[1]]
        for other in short:
            assert (matched[other] <= together) == subjects.cover(patterns, other)
    assert subjects.cover([b"*", b"*.*", b"*.*.>"], b">")
    assert not subjects.cover([b"*", b"*.*.>", b"a.b"], b">")
    assert not subjects.cover([], b"a")


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [
        (b"a.b", b"a.b"),
        (b"a.*", b"a."),
        (b"a.b.*.c", b"a.b."),
        (b"*.a", b""),
        (b">", b""),
        (b"a*", b"a*"),
    ],
)
def test_the_literal_prefix_ends_at_the_first_wildcard(pattern: bytes, prefix: bytes) -> None:
    assert prefix == subjects.literal_prefix(pattern)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_subject_of_a_pattern_starts_with_its_literal_prefix(pattern: bytes) -> None:
    prefix = subjects.literal_prefix(pattern)

    for subject in LITERALS:
        assert not subjects.matches(pattern, subject) or subject.startswith(prefix)
