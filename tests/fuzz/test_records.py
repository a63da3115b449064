"""Whatever the records, the compiled twin reads and writes what the reference does."""

from __future__ import annotations

import itertools
from types import ModuleType

from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.memory import keeps_memory
from tests.fuzz.records import Example, examples, outcomes

from penstock.hot import records


def test_the_twins_agree_on_examples_mostly_well_formed(compiled: ModuleType) -> None:
    for example in itertools.islice(examples(seed=4222), 3000):
        assert outcomes(records, example) == outcomes(compiled, example)


def test_the_twins_agree_on_every_prefix(compiled: ModuleType) -> None:
    for example in itertools.islice(examples(seed=1), 50):
        for end in range(len(example.buffer)):
            part = example._replace(entries=[], buffer=example.buffer[:end])
            assert outcomes(records, part) == outcomes(compiled, part)


numbers = st.integers(-(2**64), 2**65)
chunk = st.binary(max_size=80)


@given(
    st.builds(
        Example,
        first_sequence=numbers,
        entries=st.lists(st.tuples(chunk, chunk, chunk, numbers), max_size=5),
        salt=numbers,
        buffer=st.binary(max_size=200),
        offsets=st.lists(st.one_of(st.integers(0, 250), numbers), max_size=5),
        base=st.one_of(st.integers(0, 50), numbers),
    )
)
def test_the_twins_agree_on_any_values(compiled: ModuleType, example: Example) -> None:
    assert outcomes(records, example) == outcomes(compiled, example)


def test_the_compiled_twin_keeps_no_memory(compiled: ModuleType) -> None:
    inputs = list(itertools.islice(examples(seed=1), 300))

    def use_everything() -> None:
        for example in inputs:
            outcomes(compiled, example)

    assert not keeps_memory(use_everything)
