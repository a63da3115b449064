"""
What a request costs follows what it asks for, not what is stored.

A stream is filled twice, the second time with four times as many subjects, and the
request that asks for the same few of them must be about the same work (see
`test_work_bounds` for how work is counted).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.jetstream.world import World
from tests.work import work_of

FEW, MANY = 5_000, 20_000
GROWTH_MAX = 1.5
"""How much more work four times as much in store may be: there are more blocks."""


def filled(directory: Path, count: int, **config: Any) -> World:
    """Return a world with a stream of `count` subjects, ten of which begin with `S.seven.`."""
    world = World(directory)
    world.create("S", subjects=["S.>"], allow_direct=True, **config)
    names = [b"S.%d.%d" % (i % 97, i) for i in range(count - 10)]
    names += [b"S.seven.%d" % i for i in range(10)]
    store = world.engine.streams["S"].store
    for start in range(0, count, 1000):
        store.append([(name, b"", b"x", world.now_ns) for name in names[start : start + 1000]])
    world.settle()
    return world


def check_growth(directory: Path, act: Callable[[World], Any], **config: Any) -> None:
    worlds = filled(directory / "few", FEW, **config), filled(directory / "many", MANY, **config)
    few, many = (work_of(lambda world=world: act(world)) for world in worlds)
    assert many < GROWTH_MAX * few + 2_000, (few, many)


@pytest.mark.parametrize("storage", ["memory", "file"])
@pytest.mark.parametrize("limit", [-1, 5])
def test_everything_is_purged_without_a_look_at_it(
    tmp_path: Path, storage: str, limit: int
) -> None:
    def purge(world: World) -> None:
        assert world.call("STREAM.PURGE.S")["purged"] in (FEW, MANY)
        assert world.state("S")["messages"] == 0

    check_growth(tmp_path, purge, storage=storage, max_msgs_per_subject=limit)


CONSUMER = {"ack_policy": "explicit", "deliver_policy": "all", "mem_storage": True}

REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "the subjects of a stream": ("STREAM.INFO.S", {"subjects_filter": "S.seven.*"}),
    "the last message": ("STREAM.MSG.GET.S", {"last_by_subj": "S.seven.>"}),
    "a consumer": (
        "CONSUMER.CREATE.S.c",
        {"stream_name": "S", "config": CONSUMER | {"name": "c", "filter_subject": "S.seven.*"}},
    ),
    "a consumer with many filters": (
        "CONSUMER.CREATE.S.c",
        {
            "stream_name": "S",
            "config": CONSUMER
            | {"name": "c", "filter_subjects": [f"S.seven.{i}.>" for i in range(90)]},
        },
    ),
    "a consumer of last messages": (
        "CONSUMER.CREATE.S.c",
        {
            "stream_name": "S",
            "config": CONSUMER
            | {
                "name": "c",
                "filter_subject": "S.seven.*",
                "deliver_policy": "last_per_subject",
            },
        },
    ),
}


@pytest.mark.parametrize("limit", [-1, 5])
@pytest.mark.parametrize("name", REQUESTS)
def test_a_pattern_costs_what_it_matches(tmp_path: Path, name: str, limit: int) -> None:
    call, fields = REQUESTS[name]

    def ask(world: World) -> None:
        answer = world.call(call, **fields)
        assert "error" not in answer, answer

    check_growth(tmp_path, ask, max_msgs_per_subject=limit)


@pytest.mark.parametrize("limit", [-1, 5])
def test_the_last_messages_of_a_pattern_cost_what_it_matches(tmp_path: Path, limit: int) -> None:
    def ask(world: World) -> None:
        world.publish("$JS.API.DIRECT.GET.S", '{"multi_last":["S.seven.*"]}', reply="_INBOX.m")
        assert len(world.received()) == 11  # and the end

    check_growth(tmp_path, ask, max_msgs_per_subject=limit)
