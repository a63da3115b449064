"""Whatever the bytes, the compiled twin says what the reference says."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.memory import keeps_memory
from tests.fuzz.twins import CORPUS, TOKENS, broken_publishes, mutations, outcomes, pieces

from penstock.hot import wire

name = st.text("abc.*>$_-", min_size=1, max_size=12).map(str.encode)
payload = st.one_of(st.binary(max_size=40), st.sampled_from(TOKENS), st.just(b"PUB a 9\r\n"))
space = st.sampled_from([b" ", b" ", b" ", b"\t", b"  ", b" \t "])
line_end = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n"])


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """One well-formed operation of a client or a server, or a run of them."""
    verb = draw(st.sampled_from([b"PUB", b"HPUB", b"MSG", b"HMSG", b"SUB", b"UNSUB", b"PING"]))
    verb = draw(st.sampled_from([verb, verb.lower()]))
    fields = [draw(name), *draw(st.lists(name, max_size=2))]
    body = b""
    if verb.upper() in (b"PUB", b"HPUB", b"MSG", b"HMSG"):
        content = draw(payload)
        if verb.upper().startswith(b"H"):
            fields.append(b"%d" % draw(st.integers(0, len(content))))
        fields.append(b"%d" % len(content))
        body = content + b"\r\n"
    line = draw(space).join([verb, *fields]) + draw(line_end)
    return (line + body) * draw(st.sampled_from([1, 1, 2, 5]))


streams = st.lists(frames(), max_size=6).map(b"".join)


@st.composite
def broken_streams(draw: st.DrawFn) -> bytes:
    """A stream with one piece replaced."""
    stream = draw(streams)
    start = draw(st.integers(0, len(stream)))
    end = draw(st.integers(start, min(len(stream), start + 8)))
    return stream[:start] + draw(st.one_of(st.sampled_from(TOKENS), st.binary())) + stream[end:]


def assert_equal(compiled: ModuleType, data: bytes) -> None:
    assert outcomes(wire, data) == outcomes(compiled, data)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_the_twins_agree_on_every_prefix_of_the_corpus(compiled: ModuleType, path: Path) -> None:
    data = path.read_bytes()
    for end in [*range(min(len(data), 300)), len(data)]:
        assert_equal(compiled, data[:end])


@given(st.one_of(streams, broken_streams()))
def test_the_twins_agree_on_streams_and_broken_streams(compiled: ModuleType, data: bytes) -> None:
    assert_equal(compiled, data)


@given(st.one_of(st.binary(), st.lists(st.sampled_from(TOKENS)).map(b"".join)))
def test_the_twins_agree_on_garbage(compiled: ModuleType, data: bytes) -> None:
    assert_equal(compiled, data)


def test_the_twins_agree_on_mutations_of_the_corpus(compiled: ModuleType) -> None:
    for data in itertools.islice(mutations(seed=4222), 2000):
        assert_equal(compiled, data)


def test_the_twins_agree_on_publishes_whose_sizes_do_not_fit(compiled: ModuleType) -> None:
    rng = random.Random(4222)
    for _ in range(2000):
        publishes = broken_publishes(rng)
        assert pieces(wire, publishes) == pieces(compiled, publishes)


@given(st.one_of(streams, broken_streams()), st.lists(st.integers(1, 60), max_size=8))
def test_a_parser_gives_the_twins_the_same_reads(
    compiled: ModuleType, data: bytes, sizes: list[int]
) -> None:
    parsers = [wire.Parser(twin.parse_commands, 100, 50) for twin in (wire, compiled)]
    ends = list(itertools.accumulate(sizes, initial=0))
    for start, end in itertools.pairwise([*ends, len(data)]):
        reference, other = (parser.feed(data[start:end]) for parser in parsers)
        assert reference == other
    assert parsers[0].pending_bytes == parsers[1].pending_bytes


def test_the_compiled_twin_keeps_no_memory(compiled: ModuleType) -> None:
    inputs = list(itertools.islice(mutations(seed=1), 200))
    rng = random.Random(1)
    publishes = [broken_publishes(rng) for _ in range(200)]

    def use_everything() -> None:
        for data in inputs:
            outcomes(compiled, data)
        for broken in publishes:
            pieces(compiled, broken)

    assert not keeps_memory(use_everything)
