"""A full collection looks at what is new; at all objects only when that is due."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from penstock.net.collector import BUSY_SHARE, FIRST_S, QUIET_SHARE, Collector

OBJECTS = 50_000


class Loop:
    """Refers to itself, so only the collector can free it."""

    def __init__(self) -> None:
        self.itself = self


class Clock:
    """Goes on by a second with each look at it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def collector(clock: Clock) -> Iterator[Collector]:
    with Collector(clock) as begun:
        begun.begin()
        clock.now_s += BUSY_SHARE * FIRST_S
        begun.look_at_all_if_quiet(0)
        yield begun


@pytest.fixture
def lost(collector: Collector) -> weakref.ref[Loop]:
    """An object that was set aside, and that nobody has any more."""
    loop = Loop()
    gc.collect()
    return weakref.ref(loop)


def test_a_full_collection_does_not_look_again_at_what_was_there(collector: Collector) -> None:
    held = [{} for _ in range(OBJECTS)]
    gc.collect()

    assert gc.get_freeze_count() > len(held)
    assert len(gc.get_objects(generation=2)) < OBJECTS // 10


@pytest.mark.parametrize(("traffic", "share"), [(0, QUIET_SHARE), (1, BUSY_SHARE)])
def test_all_objects_are_looked_at_rarely_and_sooner_when_it_is_quiet(
    collector: Collector, clock: Clock, lost: weakref.ref[Loop], traffic: int, share: int
) -> None:
    collector.look_at_all_if_quiet(0)
    clock.now_s += share - 10
    collector.look_at_all_if_quiet(traffic)
    gc.collect()
    assert lost() is not None

    clock.now_s += 20
    collector.look_at_all_if_quiet(2 * traffic)
    assert lost() is None


def test_nothing_is_looked_at_during_a_start_and_little_after_it() -> None:
    with Collector() as collector:
        assert not gc.isenabled()
        held = [{} for _ in range(OBJECTS)]

        collector.begin()

        assert gc.isenabled()
        assert gc.get_freeze_count() > len(held)


def test_what_a_start_has_lost_is_found_when_the_server_is_first_quiet(clock: Clock) -> None:
    with Collector(clock) as collector:
        lost = weakref.ref(Loop())
        collector.begin()
        gc.collect()
        collector.look_at_all_if_quiet(0)
        assert lost() is not None

        clock.now_s += QUIET_SHARE * FIRST_S
        collector.look_at_all_if_quiet(0)

        assert lost() is None


@pytest.mark.parametrize("begins", [False, True])
def test_the_collector_is_left_as_it_was(begins: bool) -> None:
    before = (gc.callbacks.copy(), gc.get_freeze_count(), gc.isenabled())
    with Collector() as collector:
        if begins:
            collector.begin()

    assert (gc.callbacks, gc.get_freeze_count(), gc.isenabled()) == before
