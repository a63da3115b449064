"""Subjects made from other subjects. What they become was seen from nats-server 2.15.1."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol import transforms
from penstock.protocol.transforms import InvalidTransform, Transform

MADE = [
    (b"a.*", b"b.{{wildcard(1)}}", b"a.x", b"b.x"),
    (b"a.*.*", b"b.$2.$1", b"a.x.y", b"b.y.x"),
    (b"a.>", b"b.>", b"a.x.y", b"b.x.y"),
    (b"a.*.>", b"{{ Wildcard(1) }}.b.>", b"a.x.y.z", b"x.b.y.z"),
    (b"", b"b.>", b"a.x", b"b.a.x"),
    (b">", b">", b"a.x", b"a.x"),
    (b"a", b"b.$x", b"a", b"b.$x"),
    (b"a.*", b"b.{{partition(10,1)}}", b"a.x", b"b.5"),
    (b"a.*.*", b"b.{{partition(5,1,2)}}", b"a.x.y", b"b.2"),
    (b"a.>", b"b.{{partition(7)}}.>", b"a.x", b"b.2.x"),
    (b"a.x", b"b.{{partition(3,1)}}", b"a.x", b"b.2"),
    (b"a.*", b"{{splitFromLeft(1,2)}}", b"a.12345", b"12.345"),
    (b"a.*", b"{{splitFromRight(1,2)}}", b"a.12345", b"123.45"),
    (b"a.*", b"{{splitFromLeft(1,9)}}", b"a.12345", b"12345"),
    (b"a.*", b"{{splitFromRight(1,9)}}", b"a.12345", b"12345"),
    (b"a.*", b"{{sliceFromLeft(1,2)}}", b"a.12345", b"12.34.5"),
    (b"a.*", b"{{sliceFromRight(1,2)}}", b"a.12345", b"1.23.45"),
    (b"a.*", b"{{sliceFromRight(1,2)}}", b"a.1234", b"12.34"),
    (b"a.*", b"{{sliceFromLeft(1,9)}}", b"a.12345", b"12345"),
    (b"a.*", b"{{sliceFromRight(1,9)}}", b"a.12345", b"12345"),
    (b"a.*", b"{{split(1,-)}}", b"a.-1-2--3-", b"1.2.3"),
    (b"a.*", b"{{split(1,)}}", b"a.xyz", b"x.y.z"),
    (b"a.*", b"{{left(1,2)}}", b"a.12345", b"12"),
    (b"a.*", b"{{right(1,2)}}", b"a.12345", b"45"),
    (b"a.*", b"{{left(1,9)}}", b"a.12345", b"12345"),
    (b"a.*", b"{{right(1,9)}}", b"a.12345", b"12345"),
    (b"a.*", b"b.{{random(4)}}", b"a.x", b"b.3"),
]


@pytest.mark.parametrize(("source", "destination", "subject", "made"), MADE)
def test_a_subject_becomes_another(
    source: bytes, destination: bytes, subject: bytes, made: bytes
) -> None:
    assert made == Transform(source, destination, lambda: 0.9).apply(subject)


def test_a_subject_that_the_source_does_not_match_becomes_nothing() -> None:
    assert Transform(b"a.*", b"b.$1", lambda: 0.0).apply(b"c.x") is None


REFUSED = [
    ("a.>", "b", "invalid subject"),
    ("a", "b.>", "invalid subject"),
    ("a.*", "b.*", "invalid subject"),
    ("a..b", "b", "invalid subject"),
    ("a", "b..c", "invalid mapping destination: invalid transform"),
    (">", "b.>.>", "invalid mapping destination: invalid transform in >"),
    ("a", "b c", "invalid mapping destination: invalid transform"),
    ("a.*", "{{bogus(1)}}", "invalid mapping destination: unknown function in {{bogus(1)}}"),
    (
        "a.*",
        "{{wildcard(2)}}",
        "invalid mapping destination: wildcard index out of range in {{wildcard(2)}}: [2]",
    ),
    ("a", "$1", "invalid mapping destination: wildcard index out of range in $1"),
    (
        "a.*",
        "{{wildcard()}}",
        "invalid mapping destination: not enough arguments passed to the function"
        " in {{wildcard()}}",
    ),
    (
        "a.*",
        "{{wildcard(1,2)}}",
        "invalid mapping destination: too many arguments passed to the function"
        " in {{wildcard(1,2)}}",
    ),
    (
        "a.*",
        "{{splitFromLeft(1,x)}}",
        "invalid mapping destination: function argument is invalid or in the wrong format"
        " in {{splitFromLeft(1,x)}}",
    ),
    (
        "a.*",
        "{{split(1, x y)}}",
        "invalid mapping destination: function argument is invalid or in the wrong format"
        " in {{split(1, x y)}}",
    ),
    (
        "a.*",
        "{{random(1,2)}}",
        "invalid mapping destination: not enough arguments passed to the function"
        " in {{random(1,2)}}",
    ),
    (
        "a.*",
        "{{partition(4294967296,1)}}",
        "invalid mapping destination: function argument is invalid or in the wrong format"
        " in {{partition(4294967296,1)}}",
    ),
]


@pytest.mark.parametrize(("source", "destination", "text"), REFUSED)
def test_a_bad_transform_is_refused_in_words(source: str, destination: str, text: str) -> None:
    with pytest.raises(InvalidTransform) as caught:
        transforms.check(source, destination)

    assert text == str(caught.value)


def test_no_destination_is_no_transform() -> None:
    transforms.check("a.*", "")


CALLED = re.compile(rb"\{\{\s*([A-Za-z]+)\s*\((.*)\)\s*\}\}", re.DOTALL)
"""What a function is, in one expression: as nats-server says it, and slow if it is nested."""


@given(
    st.lists(
        st.sampled_from([b"{{", b"}}", b"(", b")", b"wildcard", b"bogus", b" ", b"1", b",", b"{"]),
        max_size=12,
    ).map(b"".join)
)
def test_a_function_is_found_as_one_expression_would_find_it(token: bytes) -> None:
    found = CALLED.search(token)
    is_known = found is not None and found[1] == b"wildcard"
    expected = ("wildcard", transforms.COMMA.split(found[2])) if found and is_known else ("", [])

    assert expected == transforms._called(token)


@pytest.mark.parametrize(
    ("source", "destination", "text"),
    [
        ("a.*", "b" * 1025, "invalid mapping destination: too long, maximum allowed is 1024"),
        ("a" * 4097, "b", "invalid subject"),
    ],
)
def test_a_transform_that_is_too_long_is_refused(source: str, destination: str, text: str) -> None:
    with pytest.raises(InvalidTransform) as caught:
        transforms.check(source, destination)

    assert text == str(caught.value)
