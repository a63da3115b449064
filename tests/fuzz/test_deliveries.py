"""Whatever a consumer sends, the compiled twin gathers what the reference gathers."""

from __future__ import annotations

import gc
import itertools
import sys
from types import ModuleType

import pytest
from tests.compiled import compiled_twin
from tests.fuzz.deliveries import outcomes, streams

from penstock import deliveries


@pytest.fixture(scope="module")
def compiled() -> ModuleType:
    return compiled_twin()


def test_the_twins_agree_on_deliveries_and_broken_deliveries(compiled: ModuleType) -> None:
    for data in itertools.islice(streams(seed=4222), 3000):
        assert outcomes(deliveries, data) == outcomes(compiled, data)


def test_the_twins_agree_on_every_prefix(compiled: ModuleType) -> None:
    for data in itertools.islice(streams(seed=1), 20):
        for end in range(len(data)):
            part = data[:end]
            assert outcomes(deliveries, part) == outcomes(compiled, part)


def test_the_compiled_twin_keeps_no_memory(compiled: ModuleType) -> None:
    inputs = list(itertools.islice(streams(seed=2), 200))

    def use_everything() -> int:
        for data in inputs:
            outcomes(compiled, data)
        gc.collect()
        return sys.getallocatedblocks()

    use_everything()
    before = use_everything()

    assert min(use_everything() for _ in range(5)) - before < 50
