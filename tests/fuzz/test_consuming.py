"""Whatever the acks and messages, the compiled twin makes of them what the reference makes."""

from __future__ import annotations

import itertools
from types import ModuleType

from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.consuming import Example, examples, outcomes
from tests.fuzz.memory import keeps_memory

from penstock.hot import consuming
from penstock.hot.wire import PUB


def test_the_twins_agree_on_examples_mostly_well_formed(compiled: ModuleType) -> None:
    for example in itertools.islice(examples(seed=4222), 3000):
        assert outcomes(consuming, example) == outcomes(compiled, example)


numbers = st.integers(-(2**65), 2**65)
publish = st.tuples(st.just(PUB), st.binary(), st.binary(max_size=1), numbers, numbers, st.binary())


@given(
    st.builds(
        Example,
        publishes=st.lists(publish, max_size=5),
        prefix=st.binary(max_size=2),
        start=st.integers(0, 6),
        messages=st.lists(
            st.tuples(numbers, numbers, st.binary(), st.binary(), st.binary()), max_size=5
        ),
        consumer_sequence=numbers,
        pending=numbers,
    )
)
def test_the_twins_agree_on_any_values(compiled: ModuleType, example: Example) -> None:
    assert outcomes(consuming, example) == outcomes(compiled, example)


def test_the_compiled_twin_keeps_no_memory(compiled: ModuleType) -> None:
    inputs = list(itertools.islice(examples(seed=1), 300))

    def use_everything() -> None:
        for example in inputs:
            outcomes(compiled, example)

    assert not keeps_memory(use_everything)
