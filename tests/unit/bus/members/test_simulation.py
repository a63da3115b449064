"""A service of many processes through all that can happen to them, in simulated time."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from tests.unit.bus.members.simulation import EVENTS, TAKEOVER_S, World, live

SEEDS = int(os.environ.get("MEMBERS_SEEDS", "12"))
"""How many lives of each kind; thousands of them take some minutes."""

KINDS: dict[str, Counter[str]] = {
    "nothing happens": Counter(),
    "rolling": Counter(stop=2, join=2, replace=2, pause=3),
    "the broker is away": Counter(away=1, pause=2, join=1, replace=1),
    "everything": Counter(stop=1, join=1, replace=2, kill=1, freeze=1, cut=1, pause=2),
}


@pytest.mark.parametrize("is_rough", [False, True], ids=["smooth", "rough"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_key_keeps_its_order_and_only_what_dies_repeats(kind: str, is_rough: bool) -> None:
    for seed in range(SEEDS):
        try:
            live(seed, KINDS[kind], is_rough=is_rough)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("leads", [True, False], ids=["the leader", "another"])
def test_a_killed_process_is_replaced_within_five_seconds(leads: bool) -> None:
    for seed in range(SEEDS):
        world = busy(seed)
        next(one for one in world.living if leads is (one.group.desk is not None)).kill()
        world.publish(EVENTS)

        assert all_done_s(world) < 5.0, seed


@pytest.mark.parametrize("overlaps", [True, False], ids=["overlap", "stop first"])
@pytest.mark.parametrize("leads", [True, False], ids=["the leader", "another"])
def test_a_rolling_update_stops_handling_for_less_than_a_second(
    leads: bool, overlaps: bool
) -> None:
    for seed in range(SEEDS):
        world = busy(seed)
        old = next(one for one in world.living if leads is (one.group.desk is not None))
        if overlaps:
            world.joined()
            world.run(world.now_s + 0.5)
        world.publish(EVENTS)
        old.stop()
        stopped_s = world.now_s
        all_done_s(world)
        if not overlaps:
            world.joined()
        world.run(world.now_s + TAKEOVER_S)

        assert pause_s(world, stopped_s) < 1.0, seed
        assert not old.is_alive
        assert all(len(some) == 1 for some in world.witness.begun.values())


def test_a_service_that_stops_as_a_whole_does_so_at_once_and_so_it_starts_again() -> None:
    for seed in range(SEEDS):
        world = busy(seed)
        world.publish(EVENTS)
        for one in world.living:
            world.at(world.dice.uniform(0.0, 0.2), one.stop)
        world.run(world.now_s + 1.5 * TAKEOVER_S)
        assert not world.living, seed
        world.joined()

        assert all_done_s(world) < 2.0, seed
        assert all(len(some) == 1 for some in world.witness.begun.values())


def busy(seed: int) -> World:
    """Return a service of three that share the keys."""
    world = World(seed, is_rough=False, is_easy=True)
    for _ in range(3):
        world.joined()
    world.publish(EVENTS)
    world.run(5.0)
    return world


def all_done_s(world: World) -> float:
    """Let time pass until all is handled; return how long that took."""
    began_s, count = world.now_s, len(world.server.keys)
    assert world.run(began_s + 60.0, lambda: len(world.witness.done_s) == count)
    return world.now_s - began_s


def pause_s(world: World, since_s: float) -> float:
    """Return the longest time for which no event of some key was handled although some waited."""
    last_s: dict[str, float] = {}
    longest_s = 0.0
    for number, done_s in sorted(world.witness.done_s.items()):
        if done_s > since_s:
            key = world.server.keys[number - 1]
            longest_s = max(longest_s, done_s - last_s.get(key, since_s))
            last_s[key] = done_s
    return longest_s
