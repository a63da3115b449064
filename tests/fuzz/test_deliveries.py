"""Whatever a consumer sends, the compiled twin gathers what the reference gathers."""

from __future__ import annotations

import itertools
from types import ModuleType

from tests.fuzz.deliveries import outcomes, streams
from tests.fuzz.memory import keeps_memory

from penstock.hot import deliveries


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

    def use_everything() -> None:
        for data in inputs:
            outcomes(compiled, data)

    assert not keeps_memory(use_everything)
